"""A stopped store reopens by itself: no acknowledged change is lost, and nothing in memory survives the stop."""

import asyncio
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import Worker, open_async
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded
from holdfast.stores.rocks.engine import database, reopening
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import list_segments
from holdfast.stores.rocks.recovery.layout import read_layout
from holdfast.stores.rocks.recovery.opening import open_rocksdb, read_covered_position
from holdfast.telemetry.figures import Figures
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, open_store, verify_store
from tests.stores.rocks.engine.disk import PATIENCE_S, Disk, begin, opened, payloads, turns
from tests.waiting import until

REOPEN_MS = 5_000
_UNFLUSHED = "rocksdb.num-entries-active-mem-table"


def core_of(hf: AsyncHoldfast) -> Core:
    return cast(Embedded, hf._transport).core


async def figures_of(hf: AsyncHoldfast) -> Figures:
    return await core_of(hf).store.figures()


async def is_up(hf: AsyncHoldfast) -> bool:
    return (await figures_of(hf)).is_up


async def reopened(hf: AsyncHoldfast, clock: ManualClock, after_ms: int = REOPEN_MS) -> None:
    clock.advance(after_ms)
    await until(lambda: is_up(hf))


async def stop_by_sync(hf: AsyncHoldfast, disk: Disk) -> None:
    disk.fails_sync = OSError("no medium")
    with pytest.raises(StoreUnavailable, match="no medium"):
        await hf.queue("mail").enqueue(b"unknown")


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [record for record in caplog.records if record.getMessage() == name]


@pytest.mark.spec("4.10")
@pytest.mark.parametrize("durability", Durability)
async def test_a_store_stopped_by_a_failed_write_reopens_by_itself(
    tmp_path: Path, disk: Disk, durability: Durability
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, durability, clock) as hf:
        queue = hf.queue("mail")
        ids = await queue.enqueue([b"a", b"b", b"c"])
        [message] = await queue.claim(1)
        await message.ack()
        disk.fails_write = OSError("no medium")
        with pytest.raises(StoreUnavailable, match="no medium"):
            await queue.enqueue(b"unknown")
        with pytest.raises(StoreUnavailable, match="reopens by itself"):
            await queue.stats()
        clock.advance(REOPEN_MS - 1)
        await turns()
        assert not await is_up(hf)
        await reopened(hf, clock, 1)
        assert [info.id for info in await queue.list()][:2] == ids[1:]
        await queue.enqueue(b"after")
        assert payloads(await queue.claim(10))[:2] == [b"b", b"c"]
    verify_store(tmp_path / "store", "after a reopening")


@pytest.mark.spec("4.10")
async def test_a_store_stopped_by_a_failed_sync_reopens_with_all_that_was_answered(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, clock=clock) as hf:
        queue = hf.queue("mail")
        ids = await queue.enqueue([b"a", b"b", b"c"])
        [acked, held] = await queue.claim(2, lease="1h")
        await acked.ack()
        await stop_by_sync(hf, disk)
        await reopened(hf, clock)
        found = [info.id for info in await queue.list()]
        assert found[:2] == ids[1:]
        assert len(found) <= 3
        stats = await queue.stats()
        assert stats.ready + stats.in_flight == len(found)
        # The lease may have been lost with the failed sync, so its receipt is stale: the message is claimable again.
        assert stats.in_flight in (0, 1)
        assert held.id in found
        assert (await figures_of(hf)).stops == 1
    verify_store(tmp_path / "store", "after a reopening")


@pytest.mark.spec("4.10")
def test_everything_that_the_old_log_held_is_flushed_before_the_first_answer_after_a_reopening(tmp_path: Path) -> None:
    """A failed sync may have left pages of the log that only look written."""
    with open_store(tmp_path / "store", durability="fsync") as hf:
        hf.queue("mail").enqueue([b"%d" % number for number in range(100)])
        killed = copy_store(tmp_path / "store", tmp_path / "killed")
    old_segments = set(list_segments(killed / LOG))
    [opened] = reopening.open_after_failure(read_layout(killed)).databases
    # Nothing is left in memory alone, neither in a layer of ours nor in RocksDB, and the old log is gone.
    assert sum(map(len, opened._layers)) == 0
    assert sum(int(each.property_value(_UNFLUSHED) or 0) for each in opened._families) == 0
    assert opened.figures()["m"].files_bytes > 0
    [segment] = list_segments(killed / LOG)
    assert segment not in old_segments
    # RocksDB says so itself, on disk: it needs no frame of the old log.
    on_disk = open_rocksdb(copy_store(killed, tmp_path / "killed again"), is_read_only=True)
    assert read_covered_position(on_disk).generation == segment
    on_disk.close()
    opened.close()


@pytest.mark.spec("4.10")
async def test_the_stop_and_the_reopening_are_logged_once_with_path_free_bytes_and_cause(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    caplog.set_level(logging.INFO, "holdfast")
    async with opened(tmp_path, disk, clock=clock) as hf:
        await stop_by_sync(hf, disk)
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await hf.queue("mail").enqueue(b"x")
        await reopened(hf, clock)
    [stop] = events(caplog, "store_stopped")
    assert stop.path == str(tmp_path / "store")
    assert stop.free_bytes > 0
    assert "no medium" in stop.cause
    [back] = events(caplog, "store_reopened")
    assert back.path == stop.path


@pytest.mark.spec("4.10")
async def test_a_store_is_not_reopened_before_a_probe_write_succeeds_and_pauses_double(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    probes: list[int] = []

    def failing_probe(path: Path) -> None:
        probes.append(clock.now_ms())
        raise OSError("still no medium")

    probe = reopening.probe
    monkeypatch.setattr(reopening, "probe", failing_probe)
    async with opened(tmp_path, disk, clock=clock) as hf:
        await hf.queue("mail").enqueue(b"a")
        began = clock.now_ms()
        await stop_by_sync(hf, disk)
        for number, pause_ms in enumerate([5_000, 10_000, 20_000, 40_000, 60_000, 60_000], 1):
            clock.advance(pause_ms)
            await until(lambda number=number: _are(probes, number))
            await until(lambda: _is_waiting(hf))
        assert [at - began for at in probes] == [5_000, 15_000, 35_000, 75_000, 135_000, 195_000]
        assert not await is_up(hf)
        monkeypatch.setattr(reopening, "probe", probe)
        await reopened(hf, clock, 60_000)
        assert b"a" in payloads(await hf.queue("mail").claim(10))
    assert len(events(caplog, "store_reopening_failed")) == 1


async def _are(probes: list[int], number: int) -> bool:
    return len(probes) == number


async def _is_waiting(hf: AsyncHoldfast) -> bool:
    return not core_of(hf).store._reopening.is_trying


async def test_a_reopening_that_fails_again_is_tried_again(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, clock=clock) as hf:
        ids = await hf.queue("mail").enqueue([b"a"])
        await stop_by_sync(hf, disk)
        disk.fails_sync = OSError("no medium again")  # the sync that begins the new session
        clock.advance(REOPEN_MS)
        await until(lambda: _has_failed(disk))
        await until(lambda: _is_waiting(hf))
        with pytest.raises(StoreUnavailable, match="has stopped: no medium"):
            await hf.queue("mail").stats()
        await reopened(hf, clock, 2 * REOPEN_MS)
        assert ids[0] in [info.id for info in await hf.queue("mail").list()]
    verify_store(tmp_path / "store", "after two reopenings")


async def _has_failed(disk: Disk) -> bool:
    return disk.fails_sync is None


async def test_waiting_claims_schedules_leases_and_journal_readers_continue_after_a_reopening(
    tmp_path: Path, disk: Disk
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, clock=clock) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"expires")
        await queue.claim(1, lease="20s")
        await queue.enqueue(b"delayed", delay="30s")
        await hf.queue("ticks").schedule("often", every="10s", payload=b"tick")
        before = await hf.journal()
        waiting = begin(hf.queue("empty").claim(1, wait=None))
        await turns()
        await stop_by_sync(hf, disk)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(waiting, PATIENCE_S)
        await reopened(hf, clock)
        for message in await queue.claim(10):  # of unknown outcome
            await message.ack()
        await hf.queue("empty").enqueue(b"x")
        assert payloads(await hf.queue("empty").claim(1, wait=None)) == [b"x"]
        waits = begin(queue.claim(1, wait=None))
        ticks = begin(hf.queue("ticks").claim(1, wait=None))
        await turns()
        clock.advance(20_000)
        [expired] = await asyncio.wait_for(waits, PATIENCE_S)
        assert expired.payload == b"expires"
        await expired.ack()
        assert payloads(await asyncio.wait_for(ticks, PATIENCE_S)) == [b"tick"]
        waits = begin(queue.claim(1, wait=None))
        await turns()
        clock.advance(10_000)
        assert payloads(await asyncio.wait_for(waits, PATIENCE_S)) == [b"delayed"]
        after = await hf.journal()
        assert after[: len(before)] == before
        assert "expired" in [event.event for event in after[len(before) :]]


async def test_a_worker_continues_after_a_reopening(tmp_path: Path, disk: Disk) -> None:
    handled: list[bytes] = []
    async with open_async(str(tmp_path / "store"), reopen_after="50ms") as hf:
        worker = Worker(hf)

        @worker.handler("mail")
        async def handle(message: Any) -> None:
            handled.append(message.payload)

        serving = begin(worker.serve())
        await hf.queue("mail").enqueue(b"before")
        await until(lambda: _is_in(b"before", handled))
        await stop_by_sync(hf, disk)
        await until(lambda: is_up(hf))
        await hf.queue("mail").enqueue(b"after")
        await until(lambda: _is_in(b"after", handled))
        worker.stop()
        await asyncio.wait_for(serving, PATIENCE_S)
    assert handled.count(b"before") == 1


async def _is_in(payload: bytes, handled: list[bytes]) -> bool:
    return payload in handled


async def test_limits_set_by_a_call_of_unknown_outcome_agree_with_the_disk_after_a_reopening(
    tmp_path: Path, disk: Disk
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, disk, clock=clock) as hf:
        disk.fails_sync = OSError("no medium")
        with pytest.raises(StoreUnavailable):
            await hf.queue("mail").set_policy(max_claims=7)
        await reopened(hf, clock)
        policy = await hf.queue("mail").policy()
        await until(lambda: _limits_agree(hf, policy.max_claims))


async def _limits_agree(hf: AsyncHoldfast, max_claims: int | None) -> bool:
    limits = core_of(hf)._directory.queue_limits
    known = [policy.max_claims for ref, policy in limits.items() if ref.queue == "mail"]
    return known == ([] if max_claims is None else [max_claims])


@pytest.mark.spec("4.10")
async def test_a_store_whose_handle_does_not_close_says_to_restart_the_program(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    recovered = asyncio.Event()
    close = database._try_to_close
    kept: list[Any] = []
    monkeypatch.setattr(reopening, "CLOSING_S", 0.0)
    async with opened(tmp_path, disk, clock=clock) as hf:
        lost: list[str] = []
        core_of(hf).on_store_lost = lost.append
        await stop_by_sync(hf, disk)

        def hang(parts: list[Any], failures: list[Exception]) -> None:
            kept.append(parts)
            while not recovered.is_set():
                pass

        monkeypatch.setattr(database, "_try_to_close", hang)
        clock.advance(REOPEN_MS)
        await until(lambda: _are(lost, 1))
        with pytest.raises(StoreUnavailable, match="restart the program"):
            await hf.queue("mail").stats()
        recovered.set()
    assert len(events(caplog, "store_lost")) == 1
    close(kept[0], [])


async def test_a_store_can_be_closed_in_the_middle_of_its_reopening(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    begun, go_on = threading.Event(), threading.Event()
    probe = reopening.probe

    def held_probe(path: Path) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        probe(path)

    monkeypatch.setattr(reopening, "probe", held_probe)
    async with opened(tmp_path, disk, clock=clock) as hf:
        ids = await hf.queue("mail").enqueue([b"a"])
        await stop_by_sync(hf, disk)
        clock.advance(REOPEN_MS)
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        closing = begin(hf.close())
        await turns()
        assert not closing.done()
        go_on.set()
        await asyncio.wait_for(closing, PATIENCE_S)
    async with opened(tmp_path, disk) as hf:
        assert ids[0] in [info.id for info in await hf.queue("mail").list()]
    verify_store(tmp_path / "store", "after a closing in a reopening")


async def test_a_file_that_a_killed_probe_left_goes_with_the_next_opening(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, disk):
        pass
    left = tmp_path / "store" / "probe.tmp"
    left.write_bytes(b"\0")
    async with opened(tmp_path, disk):
        assert not left.exists()


def test_a_store_of_calling_threads_reopens_by_itself(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock, durability="fsync", shards=2) as hf:
        queue = hf.queue("mail")
        [id] = queue.enqueue([b"a"])
        disk.fails_sync = OSError("no medium")
        with pytest.raises(StoreUnavailable):
            queue.enqueue(b"unknown")
        with pytest.raises(StoreUnavailable):
            queue.claim(1, wait="1s")
        clock.advance(REOPEN_MS)
        message = _claim_soon(queue)
        assert message.id == id
        message.ack()


def _claim_soon(queue: Any) -> Any:
    ends_s = steady_s() + PATIENCE_S
    while steady_s() < ends_s:
        with suppress(StoreUnavailable):
            return queue.claim(1)[0]
    raise AssertionError("the store was not reopened")
