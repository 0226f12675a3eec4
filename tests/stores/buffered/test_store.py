"""The PostgreSQL store with the fast path before it keeps the laws, on one database and on two; on one of them with
everything that is to be claimed reserved before."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.dice import Dice
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.postgres import PostgresStore
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from tests.postgres.bounds import PATIENT
from tests.postgres.kept_connections import KeptConnections
from tests.postgres.server import PostgresServer
from tests.redis.reserving import ReservingStore
from tests.redis.server import RedisServer

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module")
def one_database(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("buffered")


@pytest.fixture(scope="module")
def two_databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("buffered_a", "buffered_b")


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def kept() -> AsyncIterator[KeptConnections]:
    kept = KeptConnections()
    yield kept
    await kept.close()


def _subject(
    server: PostgresServer,
    redis: RedisServer,
    urls: list[str],
    kept: KeptConnections,
    path: Path,
    kind: type[BufferedStore] = BufferedStore,
) -> Iterator[Subject]:
    def make_store(dice: Dice) -> BufferedStore:
        inner = kept.lend_to(
            PostgresStore(urls, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
        )
        terms = FastPathOptions(
            redis_url=redis.url, wal_dir=str(path / "log"), segment_bytes=64 << 10, prefetch_batch=50
        )
        return kind(inner, terms)

    yield EmbeddedSubject(make_store)
    server.empty(urls)
    redis.flush()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="class")
class TestBufferedStore(StoreLaws):
    @pytest.fixture
    def subject(
        self,
        postgres: PostgresServer,
        redis_server: RedisServer,
        one_database: list[str],
        kept: KeptConnections,
        tmp_path: Path,
    ) -> Iterator[Subject]:
        yield from _subject(postgres, redis_server, one_database, kept, tmp_path, ReservingStore)


@pytest.mark.proof
@pytest.mark.asyncio(loop_scope="class")
class TestBufferedStoreOnTwoDatabases(StoreLaws):
    @pytest.fixture
    def subject(
        self,
        postgres: PostgresServer,
        redis_server: RedisServer,
        two_databases: list[str],
        kept: KeptConnections,
        tmp_path: Path,
    ) -> Iterator[Subject]:
        yield from _subject(postgres, redis_server, two_databases, kept, tmp_path)
