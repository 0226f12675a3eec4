"""One database: its connection pool, the meaning of its errors, and a pause after a failed connect."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions

from holdfast.clock import steady_s
from holdfast.model.errors import HoldfastError, StoreUnavailable

T = TypeVar("T")

_CONNECTIONS = 8
_CONNECT_S = 5.0
_COMMAND_S = 60.0
# After a failed connect no call connects for this long; it doubles up to the longest pause.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0
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


async def connect(url: str, settings: dict[str, str] | None = None) -> Any:
    """Open one connection. Raise `StoreUnavailable`."""
    try:
        return await asyncpg.connect(
            url, timeout=_CONNECT_S, command_timeout=_COMMAND_S, server_settings=_SETTINGS | (settings or {})
        )
    except (*LOST, exceptions.PostgresError, ValueError) as error:
        raise StoreUnavailable(f"cannot connect to {hide_password(url)}: {error_text(error)}") from error


class PostgresDatabase:
    """One database of the store, with a pool of connections. It runs on the driver's loop."""

    def __init__(self, url: str, settings: dict[str, str], connections: int = _CONNECTIONS) -> None:
        self.url = url
        self.number = 0
        self._settings = settings
        self._unopened = connections
        self._idle: list[Any] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until_s = 0.0
        self._failure = ""
        self._is_closed = False
        # Statements that reached the database, and failures of connections.
        self.statements = 0
        self.failures = 0
        # Messages claimed here since the last vacuum.
        self.claimed = 0

    @property
    def is_up(self) -> bool:
        """Return whether the last connect succeeded and the pool is open."""
        return not self._is_closed and not self._failure

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
        """Run `work` with a connection of the pool. It runs again after a deadlock or a serialization failure. Raise
        `StoreUnavailable` if the connection fails."""
        for tries_left in range(_TRIES, -1, -1):
            connection = await self._acquire()
            self.statements += 1
            try:
                return await work(connection)
            except _AGAIN:
                if not tries_left:
                    raise
            except HoldfastError:
                raise
            except LOST as error:
                self.failures += 1
                if not isinstance(error, exceptions.PostgresError) or connection.is_closed():
                    connection.terminate()
                raise StoreUnavailable(
                    f"{hide_password(self.url)} failed during a call: {error_text(error)}; the outcome is unknown"
                ) from error
            except BaseException:
                if connection.is_in_transaction():
                    connection.terminate()
                raise
            finally:
                self._return(connection)
        raise AssertionError("unreachable")

    def back_off(self, error: BaseException) -> None:
        """Refuse calls for a pause that doubles with each failed connect."""
        self._failure = error_text(error)
        self._paused_until_s = steady_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Close all connections, and refuse calls from now on."""
        self._is_closed = True
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._disconnect(connection)

    async def _connect(self) -> Any:
        """Open a connection for the pool."""
        return await connect(self.url, self._settings)

    async def _disconnect(self, connection: Any) -> None:
        """Close a connection of the pool."""
        try:
            await connection.close(timeout=1.0)
        except (*LOST, exceptions.PostgresError):
            connection.terminate()

    async def _acquire(self) -> Any:
        """Return a connection: an idle one, a new one, or the next that another call gives back."""
        while True:
            self._check()
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._unopened += 1
            if self._unopened:
                break
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._unopened -= 1
        try:
            connection = await self._connect()
        except StoreUnavailable as error:
            self._unopened += 1
            self.failures += 1
            self.back_off(error)
            self._wake_next()
            raise
        except BaseException:
            self._unopened += 1
            self._wake_next()
            raise
        self._failure, self._pause_s = "", _FIRST_PAUSE_S
        return connection

    def _check(self) -> None:
        """Raise `StoreUnavailable` if the pool is closed or pauses."""
        if self._is_closed:
            raise StoreUnavailable("this store was closed; open it again")
        if self._failure and steady_s() < self._paused_until_s:
            raise StoreUnavailable(self._failure)

    def _return(self, connection: Any) -> None:
        """Give a connection back to the pool."""
        if connection.is_closed() or self._is_closed:
            self._unopened += 1
            if not connection.is_closed():
                connection.terminate()
        else:
            self._idle.append(connection)
        self._wake_next()

    def _wake_next(self) -> None:
        """Let the first waiting call go on."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
