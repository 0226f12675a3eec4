"""On a loop, a lone caller's sync runs on the loop itself while syncs are short; a crowd shares one on a thread."""

import asyncio
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
from holdfast.stores.rocks import RocksStore, engine
from holdfast.stores.rocks.database import Database
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, open_store, verify_store
from tests.stores.rocks_engine.disk import turns


class Syncs:
    """On which threads syncs have run, by name."""

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
        monkeypatch.setattr(engine, "_SHORT_LOOP_SYNC_S", 3_600.0)

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


async def test_a_disk_whose_last_sync_was_long_is_synced_on_another_thread_until_one_is_short(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as hf:
        await hf.queue("mail").enqueue(b"a")
        monkeypatch.setattr(engine, "_SHORT_LOOP_SYNC_S", 0.0)
        syncs.threads.clear()
        await hf.queue("mail").enqueue(b"b")
        monkeypatch.setattr(engine, "_SHORT_LOOP_SYNC_S", 3_600.0)
        await hf.queue("mail").enqueue(b"c")
        assert syncs.on_loop == [False, True]


async def test_a_failed_sync_on_the_loop_stops_the_store_and_is_told(tmp_path: Path, syncs: Syncs) -> None:
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
