"""The PostgreSQL store beside the same statements sent by hand, and beside itself after a long run.

By hand are the three statements of a lifecycle, each its own transaction as it is for Holdfast, by the same driver with
the same settings, and with arguments of the same kinds and numbers. What Holdfast does beyond them is measured: making
messages of rows and answers of rows, its service and dispatcher, and the upkeep of its tables.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import holdfast
from bench.measure import Pair
from bench.report import Figure
from holdfast.model.ids import IdMaker
from holdfast.model.message import Draft
from holdfast.stores.postgres.cluster.database import connect
from holdfast.stores.postgres.schema.rows import encode_drafts
from holdfast.stores.postgres.schema.statements import SQL
from tests.postgres.server import PostgresServer

PAYLOAD = b"x" * 256
BATCH = 100

Round = Callable[[], Awaitable[None]]


async def _bare(url: str) -> tuple[Any, Round]:
    """The statements of a lifecycle on one connection, with no queue logic: arguments in, rows out."""
    connection = await connect(url)
    row = await connection.fetchrow("SELECT key, revision FROM queues WHERE queue = 'bench'")
    revision = await connection.fetchval("SELECT revision FROM tenants WHERE tenant = 'default'")
    key, ids, drafts = row["key"], IdMaker(1_000), [Draft(payload=PAYLOAD)] * BATCH

    async def lifecycle() -> None:
        now_ms = time.time_ns() // 1_000_000
        columns = encode_drafts(drafts, ids.take(BATCH, now_ms), None)
        await connection.fetch(SQL["enqueue"], key, None, row["revision"], revision, None, *columns)
        asks = [[1], [BATCH], [None], [None]]
        rows = await connection.fetch(SQL["claim"], key, None, BATCH, os.urandom(32), *asks, True)
        receipts = [[each[name] for each in rows] for name in ("id", "lease_token", "version")]
        await connection.fetch(SQL["ack"], key, None, *receipts)

    return connection, lifecycle


async def _measure_lifecycle(url: str, other_url: str, rounds: int, batches: int) -> Pair:
    """Measure both sides in turn, each on a separate database of one server."""
    for each in (url, other_url):
        async with holdfast.open_async(each) as hf:
            await hf.queue("bench").set_policy()
    connection, bare = await _bare(other_url)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    async with holdfast.open_async(url) as hf:
        queue = hf.queue("bench")
        payloads: list[Any] = [PAYLOAD] * BATCH

        async def ours() -> None:
            await queue.enqueue(payloads)
            await queue.ack(await queue.claim(limit=BATCH))

        sides: list[tuple[str, Round]] = [("ours", ours), ("bare", bare)]
        for number in range(rounds + 1):
            for name, lifecycle in sides if number % 2 else reversed(sides):
                started = time.perf_counter()
                for _ in range(batches):
                    await lifecycle()
                if number:
                    times[name].append((time.perf_counter() - started) * 1e6 / (batches * BATCH))
    await connection.close()
    return Pair(statistics.median(times["ours"]), statistics.median(times["bare"]))


async def _measure_decay(url: str, messages: int) -> tuple[float, float]:
    """Milliseconds of a claim of 100 at the beginning of a run and at its end."""
    async with holdfast.open_async(url) as hf:
        queue = hf.queue("long")
        payloads: list[Any] = [PAYLOAD] * BATCH
        claims: list[float] = []
        await queue.enqueue(payloads * 10)
        for _ in range(messages // BATCH):
            await queue.enqueue(payloads)
            started = time.perf_counter()
            taken = await queue.claim(limit=BATCH)
            claims.append((time.perf_counter() - started) * 1e3)
            await queue.ack(taken)
    part = max(20, len(claims) // 10)
    return statistics.median(claims[10 : 10 + part]), statistics.median(claims[-part:])


def measure(*, messages: int = 300_000) -> Iterator[Figure]:
    server = PostgresServer(fsync=True)
    try:
        server.start()
        [url], [other] = server.make_databases("bench"), server.make_databases("bare")
        pair = asyncio.run(_measure_lifecycle(url, other, rounds=9, batches=20))
        yield Figure(
            "PostgreSQL: lifecycle in batches of 100",
            f"{1e6 / pair.subject_us:,.0f} msg/s",
            "the same statements by hand",
            f"{1e6 / pair.baseline_us:,.0f} msg/s",
            pair.speed_ratio,
            goal=0.8,
        )
        first, last = asyncio.run(_measure_decay(url, messages))
        yield Figure(
            f"PostgreSQL: claim of 100 after {messages:,} messages",
            f"{last:.2f} ms",
            "at the beginning",
            f"{first:.2f} ms",
            last / first,
            goal=1.2,
            lower_is_better=True,
        )
    finally:
        server.close()
