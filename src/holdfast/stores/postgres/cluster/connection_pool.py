"""The connections of one server to one database: who has one, who waits for one, and when a new one is opened."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable

# After a failed connect no call connects for this long; it doubles up to the longest pause.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0


class ConnectionPool:
    """A bounded number of connections. It runs on the driver's loop."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, connections: int, wait_s: float, name: str) -> None:
        """`connect` opens a connection or raises `StoreUnavailable`. A caller waits up to `wait_s` for one. `name` is
        the database in messages."""
        self._connect = connect
        self._connections = connections
        self._wait_s = wait_s
        self._name = name
        self._unopened = connections
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until_s = 0.0
        self._is_connecting = False
        self._is_closed = False
        # Why the last connect failed; empty if it succeeded.
        self.failure = ""
        # The numbers of failed connects, and of calls that waited for a connection in vain.
        self.failures = 0
        self.timeouts = 0

    @property
    def is_up(self) -> bool:
        """Return whether the last connect succeeded and the pool is open."""
        return not self._is_closed and not self.failure

    @property
    def busy(self) -> int:
        """Return the number of connections that calls use."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """Return the number of calls that wait for a connection."""
        return sum(not turn.done() for turn in self._waiting)

    async def acquire(self) -> Any:
        """Return a connection: an idle one, a new one, or the next that another call gives back.

        Raise `StoreUnavailable` if none can be opened, if none is given back in time, or if the pool is closed.
        """
        while True:
            self._check()
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    self._busy.add(connection)
                    return connection
                self._unopened += 1
            if self._unopened:
                return await self._open()
            await self._wait_turn()

    def give_back(self, connection: Any) -> None:
        """Take a connection back."""
        self._busy.discard(connection)
        if connection.is_closed() or self._is_closed:
            self._unopened += 1
            if not connection.is_closed():
                connection.terminate()
        else:
            self._idle.append(connection)
        self._wake_next()

    def cut(self, error: StoreUnavailable) -> None:
        """End the calls in progress, because the database does not answer, and refuse calls for a pause."""
        self.back_off(error)
        idle, self._idle = self._idle, []
        self._unopened += len(idle)
        for connection in (*idle, *self._busy):
            connection.terminate()
        self._wake_all()

    def back_off(self, error: StoreUnavailable) -> None:
        """Refuse calls for a pause that doubles with each failed connect."""
        self.failure = error.message
        self.failures += 1
        self._paused_until_s = steady_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    async def close(self, disconnect: Callable[[Any], Awaitable[None]]) -> None:
        """Close all idle connections by `disconnect`, and refuse calls from now on."""
        self._is_closed = True
        self._wake_all()
        idle, self._idle = self._idle, []
        for connection in idle:
            await disconnect(connection)

    async def _open(self) -> Any:
        """Open a connection. While the database fails, one call at a time tries it; the others are refused at once."""
        if self.failure and self._is_connecting:
            raise StoreUnavailable(self.failure)
        self._unopened -= 1
        self._is_connecting = True
        try:
            connection = await self._connect()
        except StoreUnavailable as error:
            self._unopened += 1
            self.back_off(error)
            self._wake_next()
            raise
        except BaseException:
            self._unopened += 1
            self._wake_next()
            raise
        finally:
            self._is_connecting = False
        self.failure, self._pause_s = "", _FIRST_PAUSE_S
        self._busy.add(connection)
        return connection

    async def _wait_turn(self) -> None:
        """Wait until another call gives a connection back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._wake_next()  # this call was woken while it gave up
            if not isinstance(error, TimeoutError):
                raise
            self.timeouts += 1
            raise StoreUnavailable(
                f"all {self._connections} connections to {self._name} were in use for {self._wait_s:g} s; try again, "
                "or raise `pg_pool`"
            ) from error

    def _check(self) -> None:
        """Raise `StoreUnavailable` if the pool is closed or pauses."""
        if self._is_closed:
            raise StoreUnavailable("this store was closed; open it again")
        if self.failure and steady_s() < self._paused_until_s:
            raise StoreUnavailable(self.failure)

    def _wake_next(self) -> None:
        """Let the first waiting call go on."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def _wake_all(self) -> None:
        """Let all waiting calls go on."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
