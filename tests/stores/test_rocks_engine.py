"""The one writer: what shares a sync, what waits for one and what does not, and what happens when the disk says no."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.message import NewMessage
from holdfast.server.embedded import open_on_loop
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.engine import Durability
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, open_store, verify_store

PATIENCE_S = 20.0
CALLERS = 50


class Disk:
    """Counts the writes and syncs of every store, and holds or fails them when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = self.syncs = 0
        self.fails_write: OSError | None = None
        self.fails_sync: OSError | None = None
        self._is_holding = False
        self._begun = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        write, sync = Database.write, Database.sync

        def watched_write(database: Database, batch: Any) -> None:
            self.writes += 1
            self._fail(self.fails_write)
            write(database, batch)

        def watched_sync(database: Database) -> None:
            self.syncs += 1
            if self._is_holding:
                self._begun.release()
                assert self._go_on.acquire(timeout=PATIENCE_S), "a held sync was never let go"
            self._fail(self.fails_sync)
            sync(database)

        monkeypatch.setattr(Database, "write", watched_write)
        monkeypatch.setattr(Database, "sync", watched_sync)

    def _fail(self, error: OSError | None) -> None:
        """Once: whatever is tried after it would succeed."""
        if error is not None:
            self.fails_write = self.fails_sync = None
            raise error

    def hold_syncs(self) -> None:
        self._is_holding = True

    async def sync_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=PATIENCE_S), "no sync began"

    def wait_for_sync(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE_S), "no sync began"

    def let_one_go(self) -> None:
        self._go_on.release()

    def let_all_go(self) -> None:
        self._is_holding = False
        self._go_on.release(1_000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    watched = Disk(monkeypatch)
    yield watched
    watched.let_all_go()


@asynccontextmanager
async def opened(
    path: Path, disk: Disk, durability: Durability = Durability.FSYNC, clock: ManualClock | None = None
) -> AsyncIterator[AsyncHoldfast]:
    store = RocksStore(path / "store", SeededDice(0), durability=durability, journal_retention_ms=WEEK_MS)
    async with open_on_loop("", {}, clock=clock or ManualClock(), store=store) as hf:
        await hf.queue("mail").set_policy(backoff_base_ms=0)
        try:
            yield hf
        finally:
            disk.let_all_go()


async def turns() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


# --- Shared syncs ----------------------------------------------------------------------------------------------------


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
    """Its answer says that the message is kept: it must not say so before it is true."""
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


async def test_a_ledgers_claim_is_read_again_only_once_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    """Whoever counts on the number must not be told of one that a power cut takes back."""
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


# --- Fail-stop -------------------------------------------------------------------------------------------------------


async def every_call_is_refused(hf: AsyncHoldfast, message: Any) -> None:
    queue = hf.queue("mail")
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: queue.enqueue(b"x"),
        lambda: queue.claim(1),
        lambda: queue.claim(1, wait=None),
        message.ack,
        message.nack,
        message.extend,
        message.release,
        queue.stats,
        queue.peek,
        queue.list,
        lambda: queue.get(message.id),
        queue.purge,
        queue.redrive,
        queue.pause,
        queue.set_policy,
        lambda: queue.ledger("spark"),
        hf.queues,
        hf.tenants,
        hf.journal,
        lambda: hf.tenant("default").stats(),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(call(), PATIENCE_S)


@pytest.mark.parametrize("durability", Durability)
async def test_a_failed_write_stops_the_store_and_loses_nothing_that_was_answered(
    tmp_path: Path, disk: Disk, durability: Durability
) -> None:
    with suppress(StoreUnavailable):  # closing may say once more that it stopped
        async with opened(tmp_path, disk, durability) as hf:
            queue = hf.queue("mail")
            ids = await queue.enqueue([b"a", b"b"])
            [message] = await queue.claim(1)
            disk.fails_write = OSError("no medium")
            with pytest.raises(StoreUnavailable, match="no medium"):
                await queue.enqueue(b"c")
            await every_call_is_refused(hf, message)
    verify_store(tmp_path / "store", "after a failed write")
    async with opened(tmp_path, disk) as hf:
        assert [info.id for info in await hf.queue("mail").list()] == ids
        assert (await hf.queue("mail").stats()).in_flight == 1


async def test_a_failed_sync_fails_everyone_who_waits_for_it_and_everyone_after(tmp_path: Path, disk: Disk) -> None:
    with suppress(StoreUnavailable):
        async with opened(tmp_path, disk) as hf:
            queue = hf.queue("mail")
            ids = await queue.enqueue([b"a", b"b"])
            [message] = await queue.claim(1)
            disk.hold_syncs()
            waiting = [begin(queue.enqueue(b"lost"))]
            await disk.sync_begun()
            waiting += [begin(queue.enqueue(b"lost")) for _ in range(CALLERS)]
            await turns()
            disk.fails_sync = OSError("no medium")
            disk.let_all_go()
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, StoreUnavailable)
                assert "no medium" in str(result)
            await every_call_is_refused(hf, message)
    verify_store(tmp_path / "store", "after a failed sync")
    async with opened(tmp_path, disk) as hf:
        # What failed may be there or not: its callers were told that nobody knows.
        assert set(ids) <= {info.id for info in await hf.queue("mail").list(limit=1_000)}


def test_a_failed_sync_fails_every_thread_that_waits_for_it(tmp_path: Path, disk: Disk) -> None:
    hf = open_store(tmp_path / "store", durability="fsync")
    queue = hf.queue("mail")
    ids = queue.enqueue([b"a"])
    disk.hold_syncs()
    raised: list[BaseException] = []

    def call() -> None:
        try:
            queue.enqueue(b"lost")
        except StoreUnavailable as error:
            raised.append(error)

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    disk.wait_for_sync()
    disk.fails_sync = OSError("no medium")
    disk.let_all_go()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(raised) == len(threads)
    with suppress(StoreUnavailable):
        hf.close()
    with open_store(tmp_path / "store") as reopened:
        assert set(ids) <= {info.id for info in reopened.queue("mail").list(limit=100)}


async def test_a_claim_that_waits_is_told_when_the_store_stops(tmp_path: Path, disk: Disk) -> None:
    """It would wait for ever: nothing is enqueued any more."""
    with suppress(StoreUnavailable):
        async with opened(tmp_path, disk) as hf:
            queue = hf.queue("mail")
            waiting = begin(queue.claim(1, wait=None))
            await turns()
            disk.fails_sync = OSError("no medium")
            with pytest.raises(StoreUnavailable):
                await queue.enqueue(b"a")
            done, _ = await asyncio.wait([waiting], timeout=2)
            waiting.cancel()
            assert done
            assert isinstance(waiting.exception(), StoreUnavailable)


async def test_a_read_that_fails_in_the_middle_of_a_claim_leaves_nothing_half_done(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, disk) as hf:
        ids = await hf.queue("mail").enqueue([b"%d" % number for number in range(10)])
    get_many = Database.get_many

    def fail(*arguments: Any) -> Any:
        monkeypatch.setattr(Database, "get_many", get_many)
        raise Exception("Corruption: block checksum mismatch")  # what the binding raises

    with suppress(StoreUnavailable):
        async with opened(tmp_path, disk) as hf:
            monkeypatch.setattr(Database, "get_many", fail)
            with pytest.raises(Exception, match="Corruption"):
                await hf.queue("mail").claim(10)
            with suppress(StoreUnavailable):  # it may have stopped
                await hf.queue("mail").enqueue(b"a")
    verify_store(tmp_path / "store", "after a failed read")
    async with opened(tmp_path, disk) as hf:
        found = [info.id for info in await hf.queue("mail").list()]
        assert found[:10] == ids


async def test_a_store_that_stopped_can_be_closed_and_opened_again(tmp_path: Path, disk: Disk) -> None:
    with suppress(StoreUnavailable):
        async with opened(tmp_path, disk) as hf:
            disk.fails_sync = OSError("no medium")
            with pytest.raises(StoreUnavailable):
                await hf.queue("mail").enqueue(b"a")
    async with opened(tmp_path, disk) as hf:
        await hf.queue("mail").enqueue(b"b")
        assert b"b" in payloads(await hf.queue("mail").claim(10))


async def test_closing_answers_those_who_wait_for_a_sync(tmp_path: Path, disk: Disk) -> None:
    answered: list[str] = []
    async with opened(tmp_path, disk) as hf:
        queue = hf.queue("mail")
        disk.hold_syncs()
        waiting = begin(queue.enqueue(b"a"))
        await disk.sync_begun()
        closing = begin(hf.close())
        await turns()
        disk.let_all_go()
        await asyncio.wait_for(closing, PATIENCE_S)
        with suppress(HoldfastError):
            answered += await asyncio.wait_for(waiting, PATIENCE_S)
    async with opened(tmp_path, disk) as hf:
        assert set(answered) <= {info.id for info in await hf.queue("mail").list()}
