from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer

# The laws are ordinary modules of the package: without this their assertions would fail without saying why.
pytest.register_assert_rewrite("holdfast.testing.laws", "holdfast.testing.machine")


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """One PostgreSQL server for each process of the tests."""
    from tests.postgres.server import PostgresServer

    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
