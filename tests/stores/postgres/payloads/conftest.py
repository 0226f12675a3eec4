"""Two databases of one store, emptied after each test."""

from collections.abc import Iterator

import pytest

from tests.postgres.server import PostgresServer


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("pieces_a", "pieces_b")


@pytest.fixture
def urls(postgres: PostgresServer, databases: list[str]) -> Iterator[list[str]]:
    yield databases
    postgres.empty(databases)
