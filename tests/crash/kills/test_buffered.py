"""Servers with the fast path are killed under load, with what they stand on: nothing is lost or comes back."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.model.events import Event
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.buffered.store import BufferedStore
from tests.postgres.server import PostgresServer
from tests.redis.buffered import REF, now_ms, opened, put, take
from tests.redis.server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.services

_ROOT = Path(__file__).parents[3]
# After the last fault everything is there within this time, or it is lost.
_PATIENCE_S = 60.0


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, RedisServer]]:
    """Yield servers for this test only, because it kills them."""
    postgres, redis = PostgresServer(), RedisServer()
    try:
        postgres.start()
        redis.start()
        yield postgres, redis
    finally:
        redis.close()
        postgres.close()


class Producer:
    """A server in a separate process, which enqueues numbers until it is killed, and says which were answered."""

    def __init__(self, urls: list[str], redis_url: str, wal_dir: Path) -> None:
        self._given = [",".join(urls), redis_url, str(wal_dir)]
        self.answered: set[int] = set()
        self._next = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, interval_ms: int) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.redis.buffered", *self._given, str(self._next), str(interval_ms)),
            cwd=_ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def run(self, seconds: float) -> None:
        """For so long after its first answer; then it is killed."""
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout
        ends: asyncio.TimerHandle | None = None
        while line := await out.readline():
            if line.endswith(b"\n"):
                number = int(line)
                self._next = max(self._next, number + 1)
                if number >= 0:
                    self.answered.add(number)
            if ends is None:
                ends = asyncio.get_running_loop().call_later(seconds, self._kill)
        if ends is not None:
            ends.cancel()
        await self._process.wait()
        # Sixteen callers at most had not been answered.
        self._next += 16

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)


class Consumer:
    """Claims and acks, and notes what came back after its ack was answered."""

    def __init__(self, store: BufferedStore) -> None:
        self._store = store
        self.delivered: set[int] = set()
        self.acked: set[int] = set()
        self.resurrected: set[int] = set()
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            try:
                if await self._take():
                    continue
            except HoldfastError:
                pass  # the outcome is unknown: what was not acked comes again
            await asyncio.sleep(0.02)

    async def _take(self) -> int:
        acked = set(self.acked)
        claims = await self._store.claim(REF, [ClaimRequest(limit=50)], now_ms())
        numbers = [int(each.payload) for each in claims.per_ask[0]]
        self.delivered.update(numbers)
        self.resurrected.update(number for number in numbers if number in acked and number >= 0)
        verdicts = [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in claims.per_ask[0]]
        results = await self._store.settle(REF, verdicts, now_ms())
        self.acked.update(number for number, result in zip(numbers, results, strict=True) if result.ok)
        return len(numbers)


async def _survives(servers: tuple[PostgresServer, RedisServer], path: Path, kills: int, *, all_fall: bool) -> None:
    postgres, redis = servers
    urls = await asyncio.to_thread(postgres.make_databases, "crash_a", "crash_b")
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(1 << 32))
    dice = random.Random(seed)
    producer = Producer(urls, redis.url, path / "producer")
    async with opened(urls, redis.url, path / "consumer", on_redis_down="direct") as store:
        consumer = Consumer(store)
        consuming = asyncio.create_task(consumer.run())
        for _ in range(kills):
            await producer.start(dice.choice([5, 50, 3_600_000]))
            running = asyncio.create_task(producer.run(dice.uniform(0.05, 0.8)))
            while not running.done():
                await asyncio.wait([running], timeout=dice.uniform(0.05, 0.3))
                if all_fall:
                    await asyncio.to_thread(_fell_one, postgres, redis, dice)
        # What is left lies in the producer's log alone.
        async with opened(urls, redis.url, path / "producer", on_redis_down="direct"):
            with contextlib.suppress(TimeoutError):
                await until(lambda: not (producer.answered - consumer.delivered))
        await asyncio.sleep(0.2)
        consumer.is_over = True
        await consuming
    lost = producer.answered - consumer.delivered
    said = f"seed {seed}: answered {len(producer.answered)} lost {len(lost)} resurrected {len(consumer.resurrected)}"
    sys.stdout.write(f"{said}\n")
    assert producer.answered, said
    assert not lost, said
    assert not consumer.resurrected, said


def _fell_one(postgres: PostgresServer, redis: RedisServer, dice: random.Random) -> None:
    match dice.randrange(6):
        case 0 | 1:
            redis.flush()
        case 2:
            redis.kill()
            time.sleep(dice.uniform(0, 0.2))
            redis.start()
        case 3:
            postgres.stop(signal.SIGQUIT)
            postgres.start()


def _kills() -> int:
    return max(1, int(100 * float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))))


@pytest.mark.spec("2.10", "5.5")
async def test_a_restart_replays_only_what_was_not_stored_and_nothing_acked_comes_back(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = await asyncio.to_thread(postgres.make_databases, "replayed_a", "replayed_b")
    async with opened(urls, redis_server.url, tmp_path / "log") as store:
        await put(store, b"first")
        for number in range(5):
            await put(store, b"acked %d" % number)
        assert len(await take(store)) == 6
        for number in range(5):
            await put(store, b"left %d" % number)
        # As a kill would leave it: what was answered for is on disk, landed or not.
        shutil.copytree(tmp_path / "log", tmp_path / "image")
        await asyncio.to_thread(redis_server.flush)
        with caplog.at_level("INFO", logger="holdfast"):
            async with opened(urls, redis_server.url, tmp_path / "image") as restarted:
                assert await take(restarted) == [b"left %d" % number for number in range(5)]
                told = await restarted.journal(None, 1_000, None, now_ms())
                assert await take(restarted) == []
        assert "log_replayed calls=10: the calls of an earlier run are landed first" in caplog.messages
    # The first one landed the same when it was closed: stored once nevertheless.
    async with opened(urls, redis_server.url, tmp_path / "log") as store:
        assert await take(store) == []
        assert (await store.journal(None, 1_000, None, now_ms())).events == told.events
    counted = Counter(event.event for event in told.events)
    assert (counted[Event.ENQUEUED], counted[Event.SUCCEEDED]) == (11, 11)


@pytest.mark.slow
async def test_with_its_database_and_redis_killed_too_nothing_is_lost(
    servers: tuple[PostgresServer, RedisServer], tmp_path: Path
) -> None:
    await _survives(servers, tmp_path, 5, all_fall=True)


@pytest.mark.proof
async def test_killed_often_it_loses_nothing_and_brings_nothing_back(
    servers: tuple[PostgresServer, RedisServer], tmp_path: Path
) -> None:
    await _survives(servers, tmp_path, _kills(), all_fall=False)


@pytest.mark.proof
async def test_killed_often_with_everything_it_stands_on_it_loses_nothing(
    servers: tuple[PostgresServer, RedisServer], tmp_path: Path
) -> None:
    await _survives(servers, tmp_path, _kills(), all_fall=True)
