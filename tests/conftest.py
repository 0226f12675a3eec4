import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.services import PROGRAMS

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer
    from tests.redis.server import RedisServer
    from tests.stores.objects.emulators import Emulator

# The laws are ordinary modules of the package: without this their assertions would fail without saying why.
pytest.register_assert_rewrite("holdfast.testing.laws", "holdfast.testing.machine")

# Last, so that a system's own programs are preferred. For the compiler of the disk shim, which is looked for by name.
os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), str(PROGRAMS)))


def pytest_configure() -> None:
    """Let the programs that tests start receive SIGINT, however the run itself was started.

    A shell starts a background job (`nohup make test &`) with SIGINT ignored, and ignoring a signal is inherited by
    every program started from there. A handler is not: the run goes on ignoring it, its children do not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)


# The fixtures that start a program which no dependency brings. A module that starts one itself says so by the mark.
_SERVICES = frozenset({"postgres", "redis_server", "azure"})


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a service, as a fixture or as a parameter that names one, and the laws with their lines
    of the specification."""
    from holdfast.testing.specification import ATTRIBUTE

    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if _SERVICES.intersection(_needs(item)):
            item.add_marker("services")
        if lines := getattr(item.function, ATTRIBUTE, ()):
            item.add_marker(pytest.mark.spec(*lines))


def _needs(item: pytest.Function) -> Iterator[str]:
    yield from item.fixturenames
    if hasattr(item, "callspec"):
        yield from (value for value in item.callspec.params.values() if isinstance(value, str))


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


@pytest.fixture(scope="session")
def redis_server() -> "Iterator[RedisServer]":
    """One Redis for each process of the tests; a test that kills it starts one of its own."""
    from tests.redis.server import RedisServer

    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def s3() -> "Iterator[Emulator]":
    """An emulated S3 for each process of the tests, and its variables in the environment."""
    from tests.stores.objects.emulators import S3Emulator, emulated

    with emulated(S3Emulator) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def azure() -> "Iterator[Emulator]":
    from tests.stores.objects.emulators import AzureEmulator, emulated

    with emulated(AzureEmulator) as emulator:
        yield emulator
