"""The PostgreSQL store keeps the laws, on one database and on two."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from holdfast.dice import Dice
from holdfast.stores.postgres import PostgresStore
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from tests.postgres.bounds import PATIENT
from tests.postgres.kept_connections import KeptConnections
from tests.postgres.server import PostgresServer

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module")
def one_database(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("laws")


@pytest.fixture(scope="module")
def two_databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("laws_a", "laws_b")


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def kept() -> AsyncIterator[KeptConnections]:
    kept = KeptConnections()
    yield kept
    await kept.close()


def _subject(server: PostgresServer, urls: list[str], kept: KeptConnections) -> Iterator[Subject]:
    def make_store(dice: Dice) -> PostgresStore:
        return kept.lend_to(
            PostgresStore(urls, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
        )

    yield EmbeddedSubject(make_store)
    server.empty(urls)


@pytest.mark.proof
@pytest.mark.asyncio(loop_scope="class")
class TestPostgresStore(StoreLaws):
    @pytest.fixture
    def subject(self, postgres: PostgresServer, one_database: list[str], kept: KeptConnections) -> Iterator[Subject]:
        yield from _subject(postgres, one_database, kept)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="class")
class TestPostgresStoreOnTwoDatabases(StoreLaws):
    @pytest.fixture
    def subject(self, postgres: PostgresServer, two_databases: list[str], kept: KeptConnections) -> Iterator[Subject]:
        yield from _subject(postgres, two_databases, kept)
