"""The PostgreSQL store keeps the laws, on one database and on two."""

from collections.abc import Iterator

import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from tests.postgres.server import PostgresServer

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module")
def one_database(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("laws")


@pytest.fixture(scope="module")
def two_databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("laws_a", "laws_b")


def _subject(server: PostgresServer, urls: list[str]) -> Iterator[Subject]:
    yield EmbeddedSubject(lambda dice: PostgresStore(urls, dice, journal_retention_ms=WEEK_MS, goes_by_caller=True))
    server.empty(urls)


@pytest.mark.proof
class TestPostgresStore(StoreLaws):
    @pytest.fixture
    def subject(self, postgres: PostgresServer, one_database: list[str]) -> Iterator[Subject]:
        yield from _subject(postgres, one_database)


@pytest.mark.slow
class TestPostgresStoreOnTwoDatabases(StoreLaws):
    @pytest.fixture
    def subject(self, postgres: PostgresServer, two_databases: list[str]) -> Iterator[Subject]:
        yield from _subject(postgres, two_databases)
