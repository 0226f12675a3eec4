"""The PostgreSQL store with the fast path before it keeps the laws."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dice import Dice
from holdfast.stores.buffered import BufferedStore, Terms
from holdfast.stores.postgres import PostgresStore
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module")
def one_database(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("buffered")


class TestBufferedStore(StoreLaws):
    @pytest.fixture
    def subject(
        self, postgres: PostgresServer, redis_server: RedisServer, one_database: list[str], tmp_path: Path
    ) -> Iterator[Subject]:
        def make_store(dice: Dice) -> BufferedStore:
            inner = PostgresStore(one_database, dice, journal_retention_ms=WEEK_MS, goes_by_caller=True)
            terms = Terms(redis_url=redis_server.url, wal_dir=str(tmp_path / "log"), segment_bytes=64 << 10)
            return BufferedStore(inner, terms)

        yield EmbeddedSubject(make_store)
        postgres.empty(one_database)
        redis_server.flush()
