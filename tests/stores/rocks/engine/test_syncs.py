"""The calls that share a sync, that wait for one, and that do not wait."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.model.message import NewMessage
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy
from holdfast.server.embedded import Embedded
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import ManualClock
from tests.crash.rocks import open_store
from tests.stores.rocks.engine.disk import CALLERS, PATIENCE_S, Disk, begin, opened, payloads, turns

# --- Shared syncs ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.3")
async def test_tasks_that_wait_at_the_same_moment_share_one_sync(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        queue, before = hf.queue("mail"), disk.syncs
        await asyncio.gather(*(queue.enqueue(b"%d" % number) for number in range(CALLERS)))
        assert disk.syncs - before <= 2
        messages = await queue.claim(CALLERS)
        before = disk.syncs
        await asyncio.gather(*(message.ack() for message in messages))
        assert disk.syncs - before <= 2


async def test_tasks_that_come_during_a_sync_share_the_next_one(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        disk.hold_syncs()
        first = begin(queue.enqueue(b"first"))
        await disk.sync_begun()
        later = [begin(queue.enqueue(b"%d" % number)) for number in range(CALLERS)]
        await turns()
        before = disk.syncs
        disk.let_all_go()
        await asyncio.gather(first, *later)
        assert disk.syncs - before == 1


@pytest.mark.spec("4.3")
def test_threads_share_syncs(tmp_path: Path, disk: Disk) -> None:
    with open_store(tmp_path / "store", durability="fsync") as hf:
        queue = hf.queue("mail")
        disk.hold_syncs()
        before = disk.syncs
        started = threading.Barrier(CALLERS)

        def call(number: int) -> None:
            started.wait(PATIENCE_S)
            queue.enqueue(b"%d" % number)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        # Each sync lasts a while, as on a slow disk: so the other threads come meanwhile.
        while any(thread.is_alive() for thread in threads):
            if disk._begun.acquire(timeout=0.2):
                threads[-1].join(0.05)
                disk.let_one_go()
        disk.let_all_go()
        assert disk.syncs - before <= CALLERS // 5
        assert queue.stats().ready == CALLERS


# --- Answered after the sync -----------------------------------------------------------------------------------------


async def test_a_queue_that_two_callers_make_at_once_is_on_disk_before_either_is_answered(
    tmp_path: Path, disk: Disk
) -> None:
    async with opened(tmp_path, disk) as hf:
        disk.hold_syncs()
        first = begin(hf.queue("new").set_policy())
        await disk.sync_begun()
        second = begin(hf.queue("new").set_policy())
        directory = cast(Embedded, hf._transport).core.store.directory
        third = begin(directory.create_queue(QueueRef("default", "new"), 0))
        await turns()
        assert not any(each.done() for each in (first, second, third))
        disk.let_all_go()
        assert await first == await second == (await third).policy


async def test_making_a_queue_with_the_default_policy_is_one_write(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        before = disk.writes
        policy = await hf.queue("new").set_policy()
        assert disk.writes - before == 1
        assert await hf.queue("new").policy() == policy == QueuePolicy()


@pytest.mark.spec("4.3")
async def test_an_answer_waits_for_a_sync_that_began_after_its_write(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        disk.hold_syncs()
        first = begin(queue.enqueue(b"first"))
        await disk.sync_begun()
        second = begin(queue.enqueue(b"second"))
        await turns()
        assert not first.done()
        disk.let_one_go()
        await first
        # The sync that ended began before the second was written: it does not count.
        await disk.sync_begun()
        await turns()
        assert not second.done()
        disk.let_one_go()
        await second


VERBS: dict[str, Callable[[Any, Any], Coroutine[Any, Any, Any]]] = {
    "ack": lambda queue, message: message.ack(),
    "nack": lambda queue, message: message.nack("failed"),
    "release": lambda queue, message: message.release(),
    "state": lambda queue, message: message.save_state({"step": 1}),
    "remove": lambda queue, message: queue.remove(message.id),
    "purge": lambda queue, message: queue.purge(),
    "pause": lambda queue, message: queue.pause(),
    "policy": lambda queue, message: queue.set_policy(max_retries=9),
    "ledger": lambda queue, message: queue.ledger_ack("spark", 1),
    "ledger claim": lambda queue, message: queue.claim(1, ledger=("spark", 2)),
}


@pytest.mark.spec("4.3")
@pytest.mark.parametrize("verb", VERBS)
async def test_every_change_but_claim_and_extend_waits_for_its_sync(tmp_path: Path, disk: Disk, verb: str) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        await queue.enqueue([b"a", b"b", b"c"])
        [message] = await queue.claim(1, state=True)
        await queue.claim(1, ledger=("spark", 1))
        disk.hold_syncs()
        call = begin(VERBS[verb](queue, message))
        await disk.sync_begun()
        await turns()
        assert not call.done()
        disk.let_all_go()
        await call


async def test_a_duplicate_is_answered_only_once_the_first_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    """Its response says that the message is kept, which must be true by then."""
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        disk.hold_syncs()
        first = begin(queue.enqueue(b"a", key="k"))
        await disk.sync_begun()
        again = begin(queue.enqueue(b"a", key="k"))
        await turns()
        assert not again.done()
        disk.let_all_go()
        assert (await first)[0] == (await again)[0]
        assert (await again)[0].duplicate


@pytest.mark.spec("3.12")
async def test_a_ledgers_claim_is_read_again_only_once_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    """A caller must not rely on a number that a power cut can undo."""
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        disk.hold_syncs()
        first = begin(queue.claim(1, ledger=("spark", 1)))
        await disk.sync_begun()
        first.cancel()
        again = begin(queue.claim(1, ledger=("spark", 1)))
        await turns()
        assert not again.done()
        disk.let_all_go()
        [message] = await again
        assert message.attempt == 1


@pytest.mark.spec("4.3")
async def test_a_claim_and_an_extension_are_answered_without_a_sync(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        await queue.enqueue([b"a", b"b"])
        before = disk.syncs
        [message] = await queue.claim(1)
        await message.extend("1m")
        assert disk.syncs == before
        # Not even while one is under way.
        disk.hold_syncs()
        other = begin(queue.enqueue(b"c"))
        await disk.sync_begun()
        [message] = await queue.claim(1)
        await message.extend("1m")
        assert not other.done()


@pytest.mark.spec("4.3")
async def test_with_durability_os_nothing_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk, Durability.OS) as hf:
        before = disk.syncs
        queue = hf.queue("mail")
        await queue.enqueue([b"a", b"b"])
        [message] = await queue.claim(1)
        await message.ack()
        [message] = await queue.claim(1)
        await message.nack("failed")
        assert disk.syncs == before


# --- Claimable after the sync ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"group": "g"}, {"priority": 1}, {"key": "k"}])
async def test_a_message_cannot_be_claimed_before_its_sync(tmp_path: Path, disk: Disk, options: dict[str, Any]) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        waiting = begin(queue.claim(1, wait=None))
        await turns()
        disk.hold_syncs()
        enqueue = begin(queue.enqueue([NewMessage(b"a", **options)]))
        await disk.sync_begun()
        await turns()
        assert not waiting.done()
        assert await queue.claim(1) == []
        disk.let_all_go()
        await enqueue
        assert payloads(await waiting) == [b"a"]


async def test_a_message_that_follows_in_its_group_cannot_be_claimed_before_its_sync(
    tmp_path: Path, disk: Disk
) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"first", group="g")
        disk.hold_syncs()
        enqueue = begin(queue.enqueue(b"second", group="g"))
        await disk.sync_begun()
        [first] = await queue.claim(10)
        assert first.payload == b"first"
        disk.let_all_go()
        await enqueue
        await first.ack()
        assert payloads(await queue.claim(10)) == [b"second"]


async def test_a_queue_whose_deleter_left_is_deleted_all_the_same(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, clock=clock) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        disk.hold_syncs()
        delete = begin(queue.delete(force_after=0))
        await disk.sync_begun()
        delete.cancel()
        await turns()
        assert delete.cancelled()
        disk.let_all_go()
        async with asyncio.timeout(PATIENCE_S):
            while await hf.queues():
                clock.advance(100)
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("verb", ["nack", "release"])
async def test_a_message_that_was_given_back_cannot_be_claimed_before_its_sync(
    tmp_path: Path, disk: Disk, verb: str
) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        [message] = await queue.claim(1)
        disk.hold_syncs()
        back = begin(VERBS[verb](queue, message))
        await disk.sync_begun()
        assert await queue.claim(1) == []
        disk.let_all_go()
        await back
        assert payloads(await queue.claim(1)) == [b"a"]


async def test_a_message_whose_sender_left_is_shown_once_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        waiting = begin(queue.claim(1, wait=None))
        disk.hold_syncs()
        enqueue = begin(queue.enqueue(b"a"))
        await disk.sync_begun()
        enqueue.cancel()
        await turns()
        assert enqueue.cancelled()
        assert not waiting.done()
        disk.let_all_go()
        assert payloads(await asyncio.wait_for(waiting, PATIENCE_S)) == [b"a"]


@pytest.mark.spec("9.1")
async def test_the_journal_shows_nothing_before_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk) as hf:
        disk.hold_syncs()
        enqueue = begin(hf.queue("mail").enqueue(b"a"))
        await disk.sync_begun()
        reading = begin(hf.journal())
        await turns()
        assert not reading.done() or not reading.result()
        disk.let_all_go()
        await enqueue
        await reading
        assert [event.event for event in await hf.journal()] == ["enqueued"]


async def test_a_store_buffered_by_the_system_syncs_nothing_for_a_verb_that_matched_nothing(
    tmp_path: Path, disk: Disk
) -> None:
    """Otherwise a sync would run on a thread that closing does not wait for, and closing the store during it fails."""
    async with opened(tmp_path, disk, Durability.OS) as hf:
        queue, before = hf.queue("mail"), disk.syncs
        await queue.redrive()
        assert await queue.claim(1) == []
        await turns()
        assert disk.syncs == before
