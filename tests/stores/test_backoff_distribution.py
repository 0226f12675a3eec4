"""The delays of 100,000 retries are uniform, on every store (specification 2.8)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.dice import Dice
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.memory import MemoryStore
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws.lifecycle.backoff import RETRIES, check_uniform_backoff
from tests.postgres.bounds import PATIENT
from tests.postgres.kept_connections import KeptConnections
from tests.postgres.server import PostgresServer
from tests.redis.reserving import ReservingStore
from tests.redis.server import RedisServer

WEEK_MS = 7 * 86_400_000

# The least number of messages with 100,000 retries in all.
ALL = -(-100_000 // RETRIES)


async def check(subject: Subject, messages: int) -> None:
    async with subject.open() as hf:
        await check_uniform_backoff(hf.queue("q"), subject.clock, messages)


# --- In this process -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("2.8")
async def test_a_hundred_thousand_delays_are_uniform_in_the_memory_store() -> None:
    await check(EmbeddedSubject(lambda dice: MemoryStore(dice, WEEK_MS), seed=28), ALL)


@pytest.mark.slow
@pytest.mark.spec("2.8")
async def test_a_hundred_thousand_delays_are_uniform_in_the_embedded_store(tmp_path: Path) -> None:
    def make_store(dice: Dice) -> RocksStore:
        return RocksStore(tmp_path / "store", dice, durability=Durability.OS, journal_retention_ms=WEEK_MS)

    await check(EmbeddedSubject(make_store, seed=28), ALL)


def on_a_bucket() -> Subject:
    return EmbeddedSubject(lambda dice: ObjectStore(MemoryBucket(), dice, journal_retention_ms=WEEK_MS), seed=28)


@pytest.mark.slow
@pytest.mark.spec("2.8")
async def test_ten_thousand_delays_are_uniform_in_the_object_store() -> None:
    await check(on_a_bucket(), ALL // 10)


@pytest.mark.proof
@pytest.mark.spec("2.8")
async def test_a_hundred_thousand_delays_are_uniform_in_the_object_store() -> None:
    await check(on_a_bucket(), ALL)


# --- PostgreSQL, alone and behind the fast path --------------------------------------------------------------------


@pytest_asyncio.fixture
async def kept() -> AsyncIterator[KeptConnections]:
    kept = KeptConnections()
    yield kept
    await kept.close()


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("backoff_a", "backoff_b")


@pytest.fixture
def databases(postgres: PostgresServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)


@pytest.fixture
def on_postgres(databases: list[str], kept: KeptConnections) -> Subject:
    def make_store(dice: Dice) -> PostgresStore:
        return kept.lend_to(
            PostgresStore(databases, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
        )

    return EmbeddedSubject(make_store, seed=28)


@pytest.fixture
def on_the_fast_path(
    databases: list[str], kept: KeptConnections, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Subject]:
    def make_store(dice: Dice) -> ReservingStore:
        inner = kept.lend_to(
            PostgresStore(databases, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
        )
        path = FastPathOptions(redis_url=redis_server.url, wal_dir=str(tmp_path / "log"), prefetch_batch=50)
        return ReservingStore(inner, path)

    yield EmbeddedSubject(make_store, seed=28)
    redis_server.flush()


@pytest.mark.slow
@pytest.mark.spec("2.8")
async def test_ten_thousand_delays_are_uniform_on_postgresql(on_postgres: Subject) -> None:
    await check(on_postgres, ALL // 10)


@pytest.mark.slow
@pytest.mark.spec("2.8")
async def test_ten_thousand_delays_are_uniform_on_the_fast_path(on_the_fast_path: Subject) -> None:
    await check(on_the_fast_path, ALL // 10)


@pytest.mark.proof
@pytest.mark.spec("2.8")
async def test_a_hundred_thousand_delays_are_uniform_on_postgresql(on_postgres: Subject) -> None:
    await check(on_postgres, ALL)


@pytest.mark.proof
@pytest.mark.spec("2.8")
async def test_a_hundred_thousand_delays_are_uniform_on_the_fast_path(on_the_fast_path: Subject) -> None:
    await check(on_the_fast_path, ALL)
