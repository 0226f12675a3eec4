"""On a loop, a lone caller's sync runs on the loop itself while syncs are short; several callers share one on a
thread."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.errors import StoreUnavailable
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine import sync_pacing
from holdfast.stores.rocks.engine.database import Database
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, open_store, verify_store
from tests.stores.rocks.engine.disk import turns


class Syncs:
    """The names of the threads that synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.error: BaseException | None = None
        sync = Database.sync

        def watched(database: Database, pending: Any) -> None:
            self.threads.append(threading.current_thread().name)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            sync(database, pending)

        monkeypatch.setattr(Database, "sync", watched)
        # However slow the disk of this machine is.
        monkeypatch.setattr(sync_pacing, "_SHORT_SYNC_S", math.inf)

    @property
    def on_loop(self) -> list[bool]:
        return [name == threading.current_thread().name for name in self.threads]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[AsyncHoldfast]:
    store = RocksStore(path / "store", SeededDice(0), journal_retention_ms=WEEK_MS, reopen_after_ms=1 << 40)
    async with open_on_loop("", {}, clock=ManualClock(), store=store) as hf:
        # The sweep that follows an opening would share a caller's commit.
        cast(Embedded, hf._transport).core.sweeper.close()
        await turns()
        yield hf


async def test_a_lone_caller_syncs_on_the_loop(tmp_path: Path, syncs: Syncs) -> None:
    async with opened(tmp_path) as hf:
        await hf.queue("mail").enqueue(b"a")
        syncs.threads.clear()
        for _ in range(5):
            await hf.queue("mail").enqueue(b"b")
        [message] = await hf.queue("mail").claim()
        await message.ack()
        assert syncs.on_loop == [True] * 6


async def test_callers_of_one_turn_share_a_sync_on_another_thread(tmp_path: Path, syncs: Syncs) -> None:
    async with opened(tmp_path) as hf:
        await hf.queue("mail").enqueue(b"a")
        syncs.threads.clear()
        await asyncio.gather(*(hf.queue("mail").enqueue(b"b") for _ in range(20)))
        assert syncs.on_loop == [False]


async def test_after_a_sync_on_the_loop_that_took_long_another_thread_syncs_for_pauses_that_double(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(sync_pacing, "steady_s", lambda: now_s)
    async with opened(tmp_path) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        # However short it is, it counts as long.
        monkeypatch.setattr(sync_pacing, "_SHORT_SYNC_S", -1.0)
        syncs.threads.clear()
        for pause_s in (0.1, 0.2, 0.4):
            await queue.enqueue(b"on the loop")
            now_s += 0.9 * pause_s
            await queue.enqueue(b"on a thread")
            now_s += 0.2 * pause_s
        assert syncs.on_loop == [True, False] * 3
        monkeypatch.setattr(sync_pacing, "_SHORT_SYNC_S", math.inf)
        for _ in range(4):
            await queue.enqueue(b"on the loop")
        assert syncs.on_loop[-4:] == [True] * 4


async def test_a_failed_sync_on_the_loop_stops_the_store_and_is_raised(tmp_path: Path, syncs: Syncs) -> None:
    async with opened(tmp_path) as hf:
        await hf.queue("mail").enqueue(b"answered")
        syncs.error = OSError(5, "the disk failed")
        with pytest.raises(StoreUnavailable, match="the disk failed"):
            await hf.queue("mail").enqueue(b"failed")
        with pytest.raises(StoreUnavailable, match="the disk failed"):
            await hf.queue("mail").claim()
    verify_store(tmp_path / "store", "after the failure")
    with open_store(tmp_path / "store") as again:
        assert [message.payload for message in again.queue("mail").claim(1)] == [b"answered"]


async def test_a_caller_that_leaves_before_the_turn_ends_has_enqueued_all_the_same(
    tmp_path: Path, syncs: Syncs
) -> None:
    async with opened(tmp_path) as hf:
        await hf.queue("mail").enqueue(b"a")
        leaving = asyncio.create_task(hf.queue("mail").enqueue(b"left"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert (await hf.queue("mail").stats()).ready == 2
    verify_store(tmp_path / "store", "after a caller left")
