"""Single enqueues by 64 callers at once: through the fast path, beside straight to PostgreSQL.

Both with what they promise: the log and PostgreSQL sync to disk before the answer. The fast path's rounds end when all
that was answered is stored, so the work that it puts off is paid for within them.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.report import HEAD, Figure
from holdfast.clock import SystemClock
from holdfast.dice import SystemDice
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.stores.buffered import BufferedStore, Terms
from holdfast.stores.contract import Store
from holdfast.stores.postgres import PostgresStore
from tests.postgres.landing import Deaf
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
        await store.counts(REF, clock.now_ms())
    return messages / answered, messages / (time.perf_counter() - began)


async def _measure(urls: list[str], redis_url: str, wal_dir: Path, messages: int) -> list[tuple[float, float, float]]:
    runtime = LoopRuntime(SystemClock())
    direct = PostgresStore(urls[:1], SystemDice(), journal_retention_ms=WEEK_MS)
    inner = PostgresStore(urls[1:], SystemDice(), journal_retention_ms=WEEK_MS)
    buffered = BufferedStore(inner, Terms(redis_url=redis_url, wal_dir=str(wal_dir)))
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
    finally:
        redis.close()
        postgres.close()
    slow, fast, landed = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(each[1] / each[0] for each in rounds)
    ratio_landed = statistics.median(each[2] / each[0] for each in rounds)
    what = f"enqueue by {CALLERS} callers of single messages, fast path"
    beside = "straight to PostgreSQL"
    return [
        Figure(f"{what}, answered", f"{fast:.0f}/s", beside, f"{slow:.0f}/s", ratio, goal=3),
        Figure(f"{what}, answered and stored", f"{landed:.0f}/s", beside, f"{slow:.0f}/s", ratio_landed, goal=3),
    ]


if __name__ == "__main__":
    print(HEAD)
    for figure in measure(1_000 if "--quick" in sys.argv else 4_000):
        print(figure.row())
