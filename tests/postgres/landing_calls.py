"""A database with a queue or two, and calls to land in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from holdfast.clock import Clock, SystemClock
from holdfast.dice import SeededDice
from holdfast.model.ids import IdMaker
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.stores.formats.logged_enqueue import LoggedCall, log_call
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster.database import connect
from holdfast.stores.postgres.landing.land import LogShard
from holdfast.stores.values import JournalPage
from tests.postgres.bounds import PATIENT

REF = QueueRef("acme", "mail")
LOG_SHARD = LogShard(UUID(int=7), 11, 0)
WEEK_MS = 7 * 86_400_000


class Deaf:
    """A listener for tests that wait for nothing."""

    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None: ...
    def stopped(self) -> None: ...
    def reopened(self) -> None: ...
    def lost(self, why: str) -> None: ...
    def deadline(self, at_ms: int) -> None: ...
    def scheduled(self, at_ms: int) -> None: ...


@asynccontextmanager
async def opened(urls: list[str], *, clock: Clock | None = None) -> AsyncIterator[PostgresStore]:
    """Open a store whose background loops run on `clock`. Calls pass their own time."""
    runtime = LoopRuntime(clock or SystemClock())
    store = PostgresStore(urls, SeededDice(0), journal_retention_ms=WEEK_MS, bounds=PATIENT)
    await store.open(Deaf(), runtime)
    try:
        yield store
    finally:
        await store.close()
        await runtime.aclose()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


class Log:
    """Calls as a log would have them."""

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = SystemClock().now_ms() if now_ms is None else now_ms
        self._ids = IdMaker(900)

    def call(self, queue_id: int, *payloads: bytes, ref: QueueRef = REF, **options: Any) -> LoggedCall:
        drafts = [Draft(payload=payload, **options) for payload in payloads]
        return log_call(ref, queue_id, drafts, self._ids.take(len(drafts), self.now_ms), self.now_ms, None)

    def calls(self, queue_id: int, number: int, first: int = 0) -> list[tuple[int, LoggedCall]]:
        return [(place, self.call(queue_id, b"%d" % place)) for place in range(first, first + number)]


async def journal_of(store: PostgresStore) -> list[tuple[str, int]]:
    now_ms = SystemClock().now_ms()
    page: JournalPage = await store.journal(None, 10_000, None, now_ms)
    return [(event.event.value, event.snowflake) for event in page.events]
