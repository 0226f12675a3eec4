"""Single enqueues by 64 callers at once: through the fast path, beside straight to PostgreSQL. And single claims by as
many, from what the prefetcher reserved, beside by the index; asked of the store, for a server serves waiting claims
together.

Both with what they promise: the log and PostgreSQL sync to disk before the answer. The fast path's rounds end when all
that was answered is stored, so the work that it puts off is paid for within them.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench.report import Figure
from holdfast.clock import SystemClock
from holdfast.dice import SystemDice
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.contract import Store
from holdfast.stores.postgres import PostgresStore
from tests.postgres.landing_calls import Deaf
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer

CALLERS = 64
ROUNDS = 9
WEEK_MS = 7 * 86_400_000
REF = QueueRef("bench", "fastpath")
DRAFT = Draft(payload=b"x" * 256)


async def _round(store: Store, messages: int) -> tuple[float, float]:
    """Messages a second: answered, and answered and stored."""
    clock = SystemClock()
    left = iter(range(messages))

    async def caller() -> None:
        for _ in left:
            await store.enqueue(REF, [DRAFT], clock.now_ms(), auto_create=True)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    answered = time.perf_counter() - began
    if isinstance(store, BufferedStore):
        await store.counts(*REF, clock.now_ms())
    return messages / answered, messages / (time.perf_counter() - began)


async def _claim_round(store: Store, messages: int) -> float:
    """Return the messages claimed a second, each by a separate call."""
    clock = SystemClock()
    for _ in range(messages // 100):
        await store.enqueue(REF, [DRAFT] * 100, clock.now_ms(), auto_create=True)
    await store.counts(*REF, clock.now_ms())
    receipts: list[Receipt] = []

    async def caller() -> None:
        while given := (await store.claim(REF, [ClaimRequest(lease_ms=600_000)], clock.now_ms())).per_ask[0]:
            receipts.append(given[0].receipt)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    took = time.perf_counter() - began
    for at in range(0, len(receipts), 1_000):
        verdicts = [Verdict(settle=Settle.ACK, receipt=receipt) for receipt in receipts[at : at + 1_000]]
        await store.settle(REF, verdicts, clock.now_ms())
    return len(receipts) / took


async def _measure_claims(urls: list[str], redis_url: str, wal_dir: Path, messages: int) -> list[tuple[float, float]]:
    runtime = LoopRuntime(SystemClock())
    stores = []
    for url, name, batch in ((urls[0], "index", 0), (urls[1], "reserved", 50)):
        inner = PostgresStore([url], SystemDice(), journal_retention_ms=WEEK_MS)
        terms = FastPathOptions(redis_url=redis_url, wal_dir=str(wal_dir / name), prefetch_batch=batch)
        stores.append(BufferedStore(inner, terms))
    for store in stores:
        await store.open(Deaf(), runtime)
    try:
        rounds = [(await _claim_round(stores[0], messages), await _claim_round(stores[1], messages)) for _ in range(6)]
        return rounds[1:]  # the first warms up
    finally:
        for store in stores:
            await store.close()
        await runtime.aclose()


async def _measure(urls: list[str], redis_url: str, wal_dir: Path, messages: int) -> list[tuple[float, float, float]]:
    runtime = LoopRuntime(SystemClock())
    direct = PostgresStore(urls[:1], SystemDice(), journal_retention_ms=WEEK_MS)
    inner = PostgresStore(urls[1:], SystemDice(), journal_retention_ms=WEEK_MS)
    buffered = BufferedStore(inner, FastPathOptions(redis_url=redis_url, wal_dir=str(wal_dir)))
    stores: tuple[Store, Store] = (direct, buffered)
    for store in stores:
        await store.open(Deaf(), runtime)
    try:
        rounds = []
        for number in range(ROUNDS + 1):
            slow, _ = await _round(direct, messages // 4)
            fast, landed = await _round(buffered, messages)
            if number:  # the first warms up
                rounds.append((slow, fast, landed))
        return rounds
    finally:
        for store in stores:
            await store.close()
        await runtime.aclose()


def measure(messages: int = 4_000) -> list[Figure]:
    postgres, redis = PostgresServer(fsync=True), RedisServer()
    try:
        postgres.start()
        redis.start()
        urls = [*postgres.make_databases("direct"), *postgres.make_databases("buffered")]
        with tempfile.TemporaryDirectory(prefix="holdfast-log-") as wal_dir:
            rounds = asyncio.run(_measure(urls, redis.url, Path(wal_dir), messages))
            urls = [*postgres.make_databases("index"), *postgres.make_databases("reserved")]
            claims = asyncio.run(_measure_claims(urls, redis.url, Path(wal_dir), messages // 2))
    finally:
        redis.close()
        postgres.close()
    slow, fast, landed = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(each[1] / each[0] for each in rounds)
    ratio_landed = statistics.median(each[2] / each[0] for each in rounds)
    by_index, reserved = (statistics.median(column) for column in zip(*claims, strict=True))
    claims_ratio = statistics.median(each[1] / each[0] for each in claims)
    what = f"enqueue by {CALLERS} callers of single messages, fast path"
    beside = "straight to PostgreSQL"
    return [
        Figure(f"{what}, answered", f"{fast:.0f}/s", beside, f"{slow:.0f}/s", ratio, goal=3),
        Figure(f"{what}, answered and stored", f"{landed:.0f}/s", beside, f"{slow:.0f}/s", ratio_landed, goal=3),
        Figure(
            f"claim by {CALLERS} callers of single messages, reserved ahead",
            f"{reserved:.0f}/s",
            "by the index",
            f"{by_index:.0f}/s",
            claims_ratio,
            goal=1,
        ),
    ]
