"""One database: how calls use its connections, and the meaning of its errors."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions

from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.connection_pool import ConnectionPool
from holdfast.stores.postgres.cluster.silence import SilenceWatch

T = TypeVar("T")

_CONNECT_S = 5.0
# How long a statement of a connection outside the pool may take.
_COMMAND_S = 60.0
# Number of retries after a deadlock or a serialization failure.
_TRIES = 8

# Every statement uses an index, even if the statistics still describe a table that was empty a moment ago, and is
# planned once per connection.
_SETTINGS = {
    "application_name": "holdfast",
    "search_path": "holdfast",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}

# Errors after which the connection is of no use: it or the server is gone or going, or the server takes no writes, as
# after a failover.
LOST: tuple[type[BaseException], ...] = (
    OSError,
    asyncio.TimeoutError,
    exceptions.PostgresConnectionError,
    exceptions.InterfaceError,
    exceptions.OperatorInterventionError,
    exceptions.InsufficientResourcesError,
    exceptions.ReadOnlySQLTransactionError,
    exceptions.InternalClientError,
    exceptions.IdleInTransactionSessionTimeoutError,
)
_AGAIN = (exceptions.DeadlockDetectedError, exceptions.SerializationError)


def hide_password(url: str) -> str:
    """Return the URL without its password, for messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


def error_text(error: BaseException) -> str:
    """Return the text of an error."""
    return str(error) or type(error).__name__


async def connect(url: str, settings: dict[str, str] | None = None, *, command_s: float = _COMMAND_S) -> Any:
    """Open one connection. Raise `StoreUnavailable`."""
    try:
        return await asyncpg.connect(
            url, timeout=_CONNECT_S, command_timeout=command_s, server_settings=_SETTINGS | (settings or {})
        )
    except (*LOST, exceptions.PostgresError, ValueError) as error:
        raise StoreUnavailable(f"cannot connect to {hide_password(url)}: {error_text(error)}") from error


class LockTimeout(StoreUnavailable):
    """Another transaction has held a lock for too long."""


class PostgresDatabase:
    """One database of the store, with a pool of connections. It runs on the driver's loop."""

    def __init__(self, url: str, settings: dict[str, str], bounds: ConnectionBounds | None = None) -> None:
        self.url = url
        self.name = hide_password(url)
        self.number = 0
        self.bounds = bounds or ConnectionBounds()
        self._settings = settings | self.bounds.session_settings()
        self.pool = ConnectionPool(
            self._connect,
            connections=self.bounds.connections,
            wait_s=self.bounds.statement_timeout_ms / 1000,
            name=self.name,
        )
        self._watch = SilenceWatch(self.probe, self.pool.cut, patience_s=self.patience_s)
        # Statements that reached the database, and failures of connections.
        self.statements = 0
        self.failures = 0
        # The number of calls that gave up waiting for a lock.
        self.lock_timeouts = 0
        # Messages claimed here since the last vacuum.
        self.claimed = 0

    @property
    def is_up(self) -> bool:
        """Return whether the last connect succeeded and the pool is open."""
        return self.pool.is_up

    @property
    def patience_s(self) -> float:
        """How long the database may be silent before it is asked for a sign of life, and how long it has for that."""
        return self.bounds.silence_ms / 1000

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        """Run one statement as one transaction, and return its rows."""

        async def once(connection: Any) -> list[Any]:
            rows: list[Any] = await connection.fetch(sql, *args)
            return rows

        return await self.use(once)

    async def step(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run `work` in one transaction. It runs again after a deadlock or a serialization failure."""

        async def once(connection: Any) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.use(once)

    async def use(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run `work` with a connection of the pool. It runs again after a deadlock or a serialization failure.

        Raise `LockTimeout` if another transaction holds a lock for too long, and `StoreUnavailable` if the connection
        fails.
        """
        for tries_left in range(_TRIES, -1, -1):
            connection = await self.pool.acquire()
            self.statements += 1
            self._watch.begin()
            try:
                return await work(connection)
            except _AGAIN:
                if not tries_left:
                    raise
            except exceptions.LockNotAvailableError as error:
                self.lock_timeouts += 1
                raise LockTimeout(
                    f"gave up after waiting {self.bounds.lock_timeout_ms} ms for a lock of another transaction on "
                    f"{self.name}; nothing was changed; try again. A transaction of a stopped server ends within "
                    f"{self.bounds.idle_transaction_ms} ms"
                ) from error
            except HoldfastError:
                raise
            except LOST as error:
                self.failures += 1
                if not isinstance(error, exceptions.PostgresError) or connection.is_closed():
                    connection.terminate()
                reason = self.pool.failure or error_text(error)
                raise StoreUnavailable(f"{self.name} failed during a call: {reason}; the outcome is unknown") from error
            except BaseException:
                if connection.is_in_transaction():
                    connection.terminate()
                raise
            finally:
                self._watch.end()
                self.pool.give_back(connection)
        raise AssertionError("unreachable")

    def problem(self) -> str | None:
        """Return why calls to this database fail at present, or None if none does."""
        return self.pool.failure or None

    async def close(self) -> None:
        """Close all connections, and refuse calls from now on."""
        await self._watch.close()
        await self.pool.close(self._disconnect)

    async def _connect(self) -> Any:
        """Open a connection for the pool."""
        return await connect(self.url, self._settings, command_s=self.bounds.command_s)

    async def _disconnect(self, connection: Any) -> None:
        """Close a connection of the pool."""
        try:
            await connection.close(timeout=1.0)
        except (*LOST, exceptions.PostgresError):
            connection.terminate()

    async def probe(self) -> None:
        """Ask the database for a sign of life. Raise `StoreUnavailable` if it gives none."""
        connection = None
        try:
            async with asyncio.timeout(self.patience_s):
                connection = await asyncpg.connect(self.url, server_settings={"application_name": "holdfast probe"})
                await connection.fetchval("SELECT 1")
        except exceptions.PostgresError:
            return  # it refuses the connection, so it answers
        except LOST as error:
            raise StoreUnavailable(
                f"{self.name} gives no sign of life ({error_text(error)}); calls are refused until it does"
            ) from error
        finally:
            if connection is not None:
                connection.terminate()
