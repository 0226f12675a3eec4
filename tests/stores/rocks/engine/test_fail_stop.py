"""The engine after a failed write or sync: it stops, all waiting calls fail, and no acknowledged change is lost."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.engine import Durability
from tests.crash.rocks import open_store, verify_store
from tests.stores.rocks.engine.disk import CALLERS, PATIENCE_S, Disk, begin, opened, payloads, turns


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


async def test_a_waiting_claim_ends_when_the_store_stops(tmp_path: Path, disk: Disk) -> None:
    """Otherwise it would wait forever, because nothing is enqueued any more."""
    with suppress(StoreUnavailable):
        async with opened(tmp_path, disk) as hf:
            queue = hf.queue("mail")
            waiting = begin(queue.claim(1, wait=None))
            await turns()
            disk.fails_sync = OSError("no medium")
            with pytest.raises(StoreUnavailable):
                await queue.enqueue(b"a")
            done, _ = await asyncio.wait([waiting], timeout=PATIENCE_S)
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
