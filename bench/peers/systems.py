"""The measured systems, one row each."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from bench.peers.adapters.beanstalkd import BeanstalkdServer
from bench.peers.adapters.holdfast_clients import HoldfastServer
from bench.peers.adapters.postgres import FunctionsServer, PostgresServer
from bench.peers.adapters.redis_streams import RedisServer
from bench.peers.contract import EmbeddedFiles, Server
from bench.peers.scenarios import SCENARIOS
from tests.services import look_for


class Side(Enum):
    PEER = "peer"
    # A peer in the program itself, without a server. It is beside goals of its own.
    LIBRARY = "library"
    EMBEDDED = "embedded"
    SERVED = "served"


@dataclass(frozen=True)
class System:
    """How a system is started and called, and what it takes part in."""

    name: str
    side: Side
    start: Callable[[Path], Server]
    client: str
    scenarios: frozenset[str]
    # The programs that it needs with the Debian package that has them, and its Python module with the distribution.
    programs: tuple[str, ...] = ()
    package: str = ""
    module: str = ""
    distribution: str = ""

    @property
    def shares_process(self) -> bool:
        return self.side in (Side.LIBRARY, Side.EMBEDDED)

    def missing(self) -> str | None:
        """Return the missing programs or module and how to get them, or None if all are there."""
        if any(look_for(program) is None for program in self.programs):
            return f"{self.name} (Debian package {self.package})"
        if self.module and importlib.util.find_spec(self.module) is None:
            return f"{self.name} (pip install {self.distribution})"
        return None


_ADAPTERS = "bench.peers.adapters"
_HOLDFAST = f"{_ADAPTERS}.holdfast_clients"
_ALL = frozenset(SCENARIOS)
_POSTGRES = ("postgres", "initdb")

SYSTEMS = [
    System(
        "beanstalkd",
        Side.PEER,
        BeanstalkdServer,
        f"{_ADAPTERS}.beanstalkd:BeanstalkdClient",
        # A sync for each message would make the backlog take minutes.
        _ALL - {"drain"},
        programs=("beanstalkd",),
        package="beanstalkd",
    ),
    System(
        "Redis streams",
        Side.PEER,
        RedisServer,
        f"{_ADAPTERS}.redis_streams:StreamsClient",
        _ALL,
        programs=("redis-server",),
        package="redis-server",
    ),
    System(
        "PostgreSQL SKIP LOCKED",
        Side.PEER,
        PostgresServer,
        f"{_ADAPTERS}.postgres:SkipLockedClient",
        _ALL,
        programs=_POSTGRES,
        package="postgresql",
    ),
    System(
        "pgmq-like functions",
        Side.PEER,
        FunctionsServer,
        f"{_ADAPTERS}.postgres:FunctionsClient",
        _ALL,
        programs=_POSTGRES,
        package="postgresql",
    ),
    System(
        "persist-queue",
        Side.LIBRARY,
        EmbeddedFiles,
        f"{_ADAPTERS}.sqlite:SqliteClient",
        frozenset({"enqueue-1", "lifecycle-1", "crowd", "delay"}),
        module="persistqueue",
        distribution="persist-queue",
    ),
    System("Holdfast embedded", Side.EMBEDDED, EmbeddedFiles, f"{_HOLDFAST}:HoldfastClient", _ALL),
    # Each further protocol of Holdfast is one more row: its scheme and the option of `holdfast serve` with its port.
    System(
        "Holdfast HTTP",
        Side.SERVED,
        partial(HoldfastServer, scheme="http", port_option="--port"),
        f"{_HOLDFAST}:HoldfastClient",
        _ALL,
    ),
    System(
        "Holdfast HTTP exchange",
        Side.SERVED,
        partial(HoldfastServer, scheme="http", port_option="--port"),
        f"{_HOLDFAST}:ExchangeClient",
        # Elsewhere it makes the same calls as the row above.
        _ALL - {"enqueue-1", "enqueue-100", "queues"},
    ),
    System(
        "Holdfast framed",
        Side.SERVED,
        partial(HoldfastServer, scheme="holdfast", port_option="--framed-port"),
        f"{_HOLDFAST}:HoldfastClient",
        _ALL,
    ),
    System(
        "Holdfast framed exchange",
        Side.SERVED,
        partial(HoldfastServer, scheme="holdfast", port_option="--framed-port"),
        f"{_HOLDFAST}:ExchangeClient",
        # Elsewhere it makes the same calls as the row above.
        _ALL - {"enqueue-1", "enqueue-100", "queues"},
    ),
    System(
        "Holdfast Cap'n Proto",
        Side.SERVED,
        partial(HoldfastServer, scheme="capnp", port_option="--capnp-port"),
        f"{_HOLDFAST}:HoldfastClient",
        _ALL,
    ),
]
