"""Steady load on a PostgreSQL cluster for a long time: claims take no longer at its end, and the tables are no larger.

Producers keep a rate far below what the cluster can do, and consumers keep up with it: rows come and go, the tables
hold few at any time, and a claim stands in no line. What is judged is how long it takes, by medians of many claims.
Beside each stands a statement that touches no table, to tell a store that became slower from a machine that did.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import asyncpg

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import steady_s
from holdfast.model.message import NewMessage
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer

# In 30 minutes, over two million. One caller does several times as many in `bench/postgres.py`.
RATE_PER_S = 1_200
MOST = 5_000_000
QUEUES = 8
BATCH = 100
PAYLOAD = 256
# A consumer leaves this much in its queue, so that every claim is given a whole batch; a producer leaves its batch out
# while more than the other lies there.
STANDING = 1_000
BACKLOG = 3_000
WITHIN = 1.2
# The beginning is after this: connections are made, plans too, and the tables have come to the size that they need.
WARM_UP_S = 60.0
# Of what is left of the run then: its beginning and its end.
BEGINNING = (0.0, 0.2)
END = (0.8, 1.0)
# Of the messages: refused once, delayed, with a key. Keys are kept for a while, and so is the journal.
NACKED, DELAYED, KEYED = 0.02, 0.05, 0.05
KEPT = "30s"

_PROBE = "SELECT count(*) FROM generate_series(1, 3000)"
_SIZE = "SELECT pg_total_relation_size('holdfast.items') + pg_total_relation_size('holdfast.count_lines')"


class Timed(NamedTuple):
    at: float  # of the run after its warm-up, from 0 to 1; less than 0: before
    claim_ms: float
    probe_ms: float


class Sized(NamedTuple):
    at: float
    bytes: int


@dataclass
class Measured:
    claims: list[Timed] = field(default_factory=list)
    sizes: list[Sized] = field(default_factory=list)
    enqueued: int = 0
    acked: int = 0


class Ratios(NamedTuple):
    """The end by the beginning."""

    claim: float
    # Of the statement without a table: what the machine did meanwhile.
    probe: float
    size: float


def ratios_of(claims: Sequence[Timed], sizes: Sequence[Sized]) -> Ratios:
    def claim(window: tuple[float, float]) -> float:
        return median(each.claim_ms for each in claims if window[0] <= each.at <= window[1])

    def probe(window: tuple[float, float]) -> float:
        return median(each.probe_ms for each in claims if window[0] <= each.at <= window[1])

    def size(window: tuple[float, float]) -> int:
        return max(each.bytes for each in sizes if window[0] <= each.at <= window[1])

    return Ratios(claim(END) / claim(BEGINNING), probe(END) / probe(BEGINNING), size(END) / size(BEGINNING))


def judge(ratios: Ratios, outcome: PartOutcome, again: str) -> None:
    if ratios.claim > WITHIN:
        outcome.violate(
            f"{again}: a claim takes {ratios.claim:.2f} times as long at the end, a statement without a table "
            f"{ratios.probe:.2f} times"
        )
    if ratios.size > WITHIN:
        outcome.violate(f"{again}: the tables are {ratios.size:.2f} times as large at the end")


def run_soak(
    total: int,
    *,
    seed: int,
    progress: Progress = say_nothing,
    is_buffered: bool = False,
    rate_per_s: int = RATE_PER_S,
    standing: int = STANDING,
    judges: bool = True,
) -> PartOutcome:
    """Run for this number of seconds, or until this number of messages was acked."""
    outcome = PartOutcome(name="soak", unit="seconds", counts={}, violations=[])
    began = steady_s()
    measured = asyncio.run(_run(total, seed, progress, is_buffered, rate_per_s, standing))
    outcome.done = total
    outcome.seconds = steady_s() - began
    outcome.add_counts({"enqueued": measured.enqueued, "acked": measured.acked})
    again = f"run_soak({total}, seed={seed}, is_buffered={is_buffered})"
    if measured.acked != measured.enqueued:
        outcome.violate(f"{again}: {measured.enqueued} messages were enqueued and {measured.acked} acked")
    if judges:
        ratios = ratios_of(measured.claims, measured.sizes)
        judge(ratios, outcome, again)
        outcome.add_counts(
            {
                "claim, end by beginning, percent": round(100 * ratios.claim),
                "a statement without a table, end by beginning, percent": round(100 * ratios.probe),
                "tables, end by beginning, percent": round(100 * ratios.size),
            }
        )
    return outcome


run_buffered_soak = partial(run_soak, is_buffered=True)


async def _run(
    total: int, seed: int, progress: Progress, is_buffered: bool, rate_per_s: int, standing: int
) -> Measured:
    async with _cluster(total, is_buffered) as (urls, servers):
        soak = _Soak(urls, servers, total, seed, rate_per_s, standing)
        await soak.run(progress)
        return soak.measured


@asynccontextmanager
async def _cluster(total: int, is_buffered: bool) -> AsyncIterator[tuple[list[str], list[AsyncHoldfast]]]:
    """Two servers, two databases. In a run of minutes nobody vacuums if it is asked about once a minute."""
    settings = {"autovacuum_naptime": "60s" if total >= 600 else "1s"}
    async with AsyncExitStack() as stack:
        postgres = PostgresServer(settings=settings)
        stack.callback(postgres.close)
        await asyncio.to_thread(postgres.start)
        urls = await asyncio.to_thread(postgres.make_databases, "soak_a", "soak_b")
        given: list[dict[str, Any]] = [{"journal_retention": KEPT} for _ in range(2)]
        if is_buffered:
            redis = RedisServer()
            stack.callback(redis.close)
            await asyncio.to_thread(redis.start)
            for each in given:
                wal_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-soak-"))
                each.update(redis_url=redis.url, wal_dir=str(Path(wal_dir) / "log"))
        yield urls, [await stack.enter_async_context(holdfast.open_async(",".join(urls), **each)) for each in given]


class _Soak:
    def __init__(
        self,
        urls: list[str],
        servers: list[AsyncHoldfast],
        seconds: int,
        seed: int,
        rate_per_s: int,
        standing: int,
    ) -> None:
        self.measured = Measured()
        self._urls = urls
        self._servers = servers
        self._seconds = seconds
        self._dice = random.Random(seed)
        self._standing = standing
        self._every_s = QUEUES * BATCH / rate_per_s
        self._warm_up_s = min(WARM_UP_S, seconds / 10)
        self._backlog = [0] * QUEUES
        self._has_all = [False] * QUEUES
        self._is_over = False

    def _at(self) -> float:
        passed_s = steady_s() - self._began
        return min(1.0, (passed_s - self._warm_up_s) / (self._seconds - self._warm_up_s))

    async def run(self, progress: Progress) -> None:
        for number in range(QUEUES):
            queue = self._queue(number)
            await queue.set_policy(dedup_window_ms=30_000, backoff_base_ms=10, backoff_cap_ms=100)
        self._began = steady_s()
        async with asyncio.TaskGroup() as tasks:
            producing = [tasks.create_task(self._produce(number)) for number in range(QUEUES)]
            consuming = [tasks.create_task(self._consume(number)) for number in range(QUEUES)]
            tasks.create_task(self._measure(progress))
            await asyncio.wait(producing)
            # Everything that was enqueued comes through, or the consumers never end.
            async with asyncio.timeout(120):
                await asyncio.wait(consuming)
            self._is_over = True

    def _queue(self, number: int, server: int = 0) -> Any:
        return self._servers[(number + server) % len(self._servers)].queue(f"q{number}", tenant=f"t{number}")

    async def _produce(self, number: int) -> None:
        queue, dice = self._queue(number), random.Random(self._dice.random())
        for _ in range(self._standing // BATCH):
            await self._enqueue(queue, number, dice)
        # One after the other, from the first batch on; what a slow moment kept one from is not made up for in a burst.
        next_s = steady_s() + self._every_s * number / QUEUES
        while self._at() < 1.0 and self.measured.enqueued < MOST:
            await asyncio.sleep(max(0.0, next_s - steady_s()))
            next_s = max(next_s + self._every_s, steady_s())
            if self._backlog[number] <= BACKLOG:
                await self._enqueue(queue, number, dice)
        self._has_all[number] = True

    async def _enqueue(self, queue: Any, number: int, dice: random.Random) -> None:
        messages = [self._message(dice) for _ in range(BATCH)]
        self._backlog[number] += BATCH
        # Apart: a call with a key in it goes by the fast path in no case.
        for has_key in (False, True):
            if given := [each for each in messages if ("key" in each.options) is has_key]:
                await queue.enqueue(given)
        self.measured.enqueued += BATCH

    def _message(self, dice: random.Random) -> NewMessage:
        roll = dice.random()
        options: dict[str, Any] = {}
        if roll < DELAYED:
            options["delay"] = f"{dice.randrange(1, 500)}ms"
        elif roll < DELAYED + KEYED:
            options["key"] = dice.randbytes(8).hex()
        return NewMessage(bytes(PAYLOAD), **options)

    async def _consume(self, number: int) -> None:
        """Half of the queues are consumed at the server that they are produced at, half at the other."""
        queue, dice = self._queue(number, number // 2), random.Random(self._dice.random())
        connection = await asyncpg.connect(self._urls[0])
        try:
            while not self._has_all[number] or self._backlog[number]:
                if self._backlog[number] < self._standing and not self._has_all[number]:
                    await asyncio.sleep(0.01)
                    continue
                probed = steady_s()
                await connection.fetchval(_PROBE)
                began = steady_s()
                messages = await queue.claim(limit=BATCH, lease=30)
                if not messages:
                    await asyncio.sleep(0.02)
                    continue
                if len(messages) == BATCH:
                    timed = Timed(self._at(), (steady_s() - began) * 1_000, (began - probed) * 1_000)
                    self.measured.claims.append(timed)
                nacked = [each for each in messages if each.attempt == 1 and dice.random() < NACKED]
                if nacked:
                    await queue.nack(nacked, "once more")
                results = await queue.ack([each for each in messages if each not in nacked])
                acked = sum(result.ok for result in results)
                self.measured.acked += acked
                self._backlog[number] -= acked
        finally:
            await connection.close()

    async def _measure(self, progress: Progress) -> None:
        connections = [await asyncpg.connect(url) for url in self._urls]
        try:
            while not self._is_over:
                sizes = [await connection.fetchval(_SIZE) for connection in connections]
                self.measured.sizes.append(Sized(self._at(), sum(sizes)))
                done = min(self._seconds, round(steady_s() - self._began))
                progress(done, self._seconds, f"{self.measured.acked:,} acked, tables {sum(sizes) >> 20} MiB")
                await asyncio.sleep(1.0 if self._seconds > 60 else 0.1)
        finally:
            for connection in connections:
                await connection.close()
