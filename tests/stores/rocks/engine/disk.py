"""A disk whose writes and syncs a test counts, holds and fails, and a store on that disk."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.server.embedded import open_on_loop
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.engine import Durability, Engine
from holdfast.stores.rocks.log.frames import LogPartKind
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS

PATIENCE_S = 60.0
CALLERS = 50


class Disk:
    """A count of the writes and syncs of every store, which a test can also hold or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = self.syncs = 0
        self.fails_write: OSError | None = None
        self.fails_sync: OSError | None = None
        self._is_holding = False
        self._begun = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        write, sync = Database.write, Database.sync

        def watched_write(database: Database, *kind: LogPartKind) -> None:
            self.writes += 1
            self._fail(self.fails_write)
            write(database, *kind)

        def watched_sync(database: Database, pending: Any) -> None:
            self.syncs += 1
            if self._is_holding:
                self._begun.release()
                assert self._go_on.acquire(timeout=PATIENCE_S), "a held sync was never released"
            self._fail(self.fails_sync)
            sync(database, pending)

        # A held sync must not block the loop, which has to release it.
        monkeypatch.setattr(Engine, "_may_sync_on_loop", lambda engine: False)
        monkeypatch.setattr(Database, "write", watched_write)
        monkeypatch.setattr(Database, "sync", watched_sync)

    def _fail(self, error: OSError | None) -> None:
        """Raise the error, if there is one. Later calls succeed."""
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


@asynccontextmanager
async def opened(
    path: Path,
    disk: Disk,
    durability: Durability = Durability.FSYNC,
    clock: ManualClock | None = None,
    **options: Any,
) -> AsyncIterator[AsyncHoldfast]:
    store = RocksStore(path / "store", SeededDice(0), durability=durability, journal_retention_ms=WEEK_MS, **options)
    async with open_on_loop("", {}, clock=clock or ManualClock(), store=store) as hf:
        await hf.queue("mail").set_policy(backoff_base_ms=0)
        try:
            yield hf
        finally:
            disk.let_all_go()


async def turns() -> None:
    """Let every task run until none can continue."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]
