"""The open calls of a connection on an event loop, and their time limits."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from holdfast.client.framed.open_call import ITEM, RESULT, ResponseFrame
from holdfast.client.remote.lost import Lost
from holdfast.wire.framed.frames import FrameKind, write_frame
from holdfast.wire.framed.greetings import ServerHello

if TYPE_CHECKING:
    from holdfast.client.framed.connection import FramedClientConnection


# An event loop may run a timer this much too early.
_EARLY_S: Final = 0.001


class LoopOpenCall:
    """An open call on an event loop. The interface is `OpenCall` in `open_call.py`."""

    __slots__ = (
        "_connection",
        "_is_cancelled",
        "_limit_s",
        "_lost",
        "_waiter",
        "deadline",
        "frames",
        "is_over",
        "number",
        "on_late",
        "sent_at",
    )

    def __init__(self, connection: "FramedClientConnection") -> None:
        self._connection = connection
        self.number = 0
        self.is_over = True
        # Frames that the caller has not received.
        self.frames: list[ResponseFrame] = []
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Lost | None = None
        self._is_cancelled = False
        self._limit_s = 0.0
        self.sent_at = 0.0
        # The loop time at which the caller stops waiting; infinite while it does not wait.
        self.deadline = inf
        # Set once the call is abandoned: the function that gets late results.
        self.on_late: Callable[[ResponseFrame], None] | None = None

    @property
    def received_at(self) -> float:
        return self._connection.received_at

    async def request(self, body: bytes, limit_s: float | None) -> ResponseFrame:
        self._connection.open(self, body)
        return await self.receive(limit_s)

    async def open(self, body: bytes) -> None:
        self._connection.open(self, body)

    async def server_hello(self, limit_s: float) -> ServerHello:
        return await self._connection.server_hello(limit_s, was_sent=not self.is_over)

    async def send(self, kind: int, body: bytes) -> None:
        connection = self._connection
        if self._lost is not None:
            raise self._lost
        connection.write(write_frame(kind, self.number, body))
        await connection.drained()

    async def receive(self, limit_s: float | None) -> ResponseFrame:
        while not self.frames:
            if self._lost is not None:
                raise self._lost
            await self._wait(limit_s)
        return self.frames.pop(0)

    async def cancel_and_drain(self, limit_s: float) -> list[ResponseFrame]:
        connection, waiter = self._connection, self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(Lost("this client is closed", was_sent=True))
        self._is_cancelled = True
        if not self.is_over:
            connection.write(write_frame(FrameKind.CANCEL, self.number))
        try:
            while not self.is_over:
                await self._wait(limit_s)
        except Lost:
            pass  # the server gives the remaining messages back when the connection ends
        self._is_cancelled = False
        frames, self.frames = self.frames, []
        return frames

    def cancel(self) -> None:
        """Ask the server to stop waiting. The final response still arrives."""
        if not self.is_over:
            self._connection.write(write_frame(FrameKind.CANCEL, self.number))

    def abandon(self, on_late: Callable[[ResponseFrame], None] | None) -> None:
        if not self.is_over and self.on_late is None and not self._is_cancelled:
            self.frames.clear()
            self.on_late = on_late or _ignore
            self._connection.write(write_frame(FrameKind.CANCEL, self.number))

    async def _wait(self, limit_s: float | None) -> None:
        """Wait for a frame or the end of the connection. Raise `Lost` after the time limit."""
        waiter = self._waiter = self._connection.loop.create_future()
        if limit_s is not None:
            self._limit_s = limit_s
            self._connection.limits.watch(self, limit_s)
        try:
            await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None
                self.deadline = inf

    # --- Called by the connection ------------------------------------------------------------------------------------

    def add_frame(self, kind: int, body: bytes) -> None:
        """Add a response frame and wake the caller."""
        if self.on_late is not None:
            if kind in (RESULT, ITEM):
                self.on_late((kind, body))
            return
        self.frames.append((kind, body))
        self._wake()

    def lose(self, lost: Lost) -> None:
        """End the call, because the connection ended."""
        self.is_over = True
        self._lost = lost
        self._wake()

    def time_out(self) -> None:
        """Raise `Lost` in the caller, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            reason = f"no response within {self._limit_s:g} s"
            self._waiter.set_exception(Lost(reason, was_sent=True, is_timeout=True))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _ignore(frame: ResponseFrame) -> None:
    """Discard a late response of an abandoned call."""


class TimeLimits:
    """The times at which the callers of a connection stop waiting for a response.

    There is one timer for all calls, set to the first limit. Most calls have the same limit, so it is rarely set again.
    """

    def __init__(self, connection: "FramedClientConnection") -> None:
        self._connection = connection
        self._loop = connection.loop
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: LoopOpenCall, limit_s: float) -> None:
        """Limit the wait of a caller that begins to wait now."""
        now = call.sent_at = self._loop.time()
        call.deadline = now + limit_s
        if call.deadline < self._at:
            self._set(call.deadline)

    def end(self) -> None:
        self._set(inf)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = None if at == inf else self._loop.call_at(at, self._check)

    def _check(self) -> None:
        connection, now = self._connection, self._loop.time() + _EARLY_S
        due = [call for call in connection.calls if call.deadline <= now]
        for call in due:
            call.deadline = inf
            call.time_out()
        if due and all(connection.received_at < call.sent_at for call in due):
            # No byte has arrived since the calls were sent. A fresh connection may reach another server.
            connection.close("the server does not answer")
        else:
            self._set(min((call.deadline for call in connection.calls), default=inf))
