"""A buffered store on a loop, and a separate process with one, to be killed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.clock import Clock, SystemClock
from holdfast.dice import SystemDice
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.contract import Store
from holdfast.stores.postgres import PostgresStore
from tests.postgres.bounds import PATIENT
from tests.postgres.landing_calls import Deaf

REF = QueueRef("acme", "mail")
WEEK_MS = 7 * 86_400_000
# Nothing lands by itself within a test.
NEVER_MS = 3_600_000


def now_ms() -> int:
    return SystemClock().now_ms()


@asynccontextmanager
async def opened(
    urls: list[str], redis_url: str, wal_dir: Path, *, clock: Clock | None = None, **terms: Any
) -> AsyncIterator[BufferedStore]:
    """Open a store whose background loops run on `clock`. Calls pass their own time."""
    runtime = LoopRuntime(clock or SystemClock())
    inner = PostgresStore(urls, SystemDice(), journal_retention_ms=WEEK_MS, bounds=PATIENT)
    terms = {"flush_interval_ms": NEVER_MS, "flush_batch": 1_000_000, "segment_bytes": 64 << 10, **terms}
    store = BufferedStore(inner, FastPathOptions(redis_url=redis_url, wal_dir=str(wal_dir), **terms))
    await store.open(Deaf(), runtime)
    try:
        yield store
    finally:
        await store.close()
        await runtime.aclose()


async def put(store: Store, *payloads: bytes, ref: QueueRef = REF, **options: Any) -> list[int]:
    drafts = [Draft(payload=payload, **options) for payload in payloads]
    enqueued = await store.enqueue(ref, drafts, now_ms(), auto_create=True)
    return [each.snowflake for each in enqueued]


async def accepts(store: Store, payload: bytes, ref: QueueRef = REF) -> bool:
    """Enqueue a message. Return False if the store is unavailable."""
    try:
        await put(store, payload, ref=ref)
    except StoreUnavailable:
        return False
    return True


async def take(store: Store, limit: int = 10_000, ref: QueueRef = REF) -> list[bytes]:
    """Claimed and acked."""
    claims = await store.claim(ref, [ClaimRequest(limit=limit)], now_ms())
    verdicts = [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in claims.per_ask[0]]
    results = await store.settle(ref, verdicts, now_ms())
    assert all(result.ok for result in results)
    return [each.payload for each in claims.per_ask[0]]


async def _produce(urls: list[str], redis_url: str, wal_dir: str, first: int, interval_ms: int) -> None:
    """Enqueues numbers, sixteen callers at a time, and prints each that was answered, until it is killed."""
    numbers = iter(range(first, 1 << 40))

    async def caller(store: BufferedStore) -> None:
        for number in numbers:
            await put(store, b"%d" % number)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    terms = {"flush_interval_ms": interval_ms, "flush_batch": 20}
    async with opened(urls, redis_url, Path(wal_dir), **terms) as store:
        await put(store, b"-1")
        sys.stdout.write("-1\n")
        await asyncio.gather(*(caller(store) for _ in range(16)))


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(_produce(given[0].split(","), given[1], given[2], int(given[3]), int(given[4])))
