"""One call on a connection that carries many, on an event loop."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from holdfast.client.framed.answer import ITEM, RESULT, Answer
from holdfast.client.remote.lost import Lost
from holdfast.wire.framed.frames import FrameKind, write_frame
from holdfast.wire.framed.greetings import ServerHello

if TYPE_CHECKING:
    from holdfast.client.framed.connection import FramedClientConnection


class LoopOpenCall:
    """`answer.OpenCall`, on a loop."""

    __slots__ = (
        "_connection",
        "_is_left",
        "_limit_s",
        "_lost",
        "_waiter",
        "deadline",
        "frames",
        "is_over",
        "late",
        "number",
        "sent_at",
    )

    def __init__(self, connection: "FramedClientConnection") -> None:
        self._connection = connection
        self.number = 0
        self.is_over = True
        # Frames that its caller has not heard.
        self.frames: list[Answer] = []
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Lost | None = None
        self._is_left = False
        self._limit_s = 0.0
        self.sent_at = 0.0
        # When its caller waits no longer; infinite while none waits.
        self.deadline = inf
        # Its caller has given up: it is given a result, or nothing is.
        self.late: Callable[[Answer], None] | None = None

    @property
    def heard_at(self) -> float:
        return self._connection.heard_at

    async def ask(self, body: bytes, limit_s: float | None) -> Answer:
        self._connection.open(self, body)
        return await self.hear(limit_s)

    async def open(self, body: bytes) -> None:
        self._connection.open(self, body)

    async def server(self, limit_s: float) -> ServerHello:
        return await self._connection.greeted(limit_s, was_sent=not self.is_over)

    async def send(self, kind: int, body: bytes) -> None:
        connection = self._connection
        if self._lost is not None:
            raise self._lost
        connection.write(write_frame(kind, self.number, body))
        await connection.drained()

    async def hear(self, limit_s: float | None) -> Answer:
        while not self.frames:
            if self._lost is not None:
                raise self._lost
            await self._wait(limit_s)
        return self.frames.pop(0)

    async def leave(self, limit_s: float) -> list[Answer]:
        connection, waiter = self._connection, self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(Lost("this client is closed", was_sent=True))
        self._is_left = True
        if not self.is_over:
            connection.write(write_frame(FrameKind.CANCEL, self.number))
        try:
            while not self.is_over:
                await self._wait(limit_s)
        except Lost:
            pass  # the server gives the rest back when the connection ends
        self._is_left = False
        frames, self.frames = self.frames, []
        return frames

    def cancel(self) -> None:
        """Ask the server to wait no longer. The final answer still comes."""
        if not self.is_over:
            self._connection.write(write_frame(FrameKind.CANCEL, self.number))

    def give_up(self, late: Callable[[Answer], None] | None) -> None:
        if not self.is_over and self.late is None and not self._is_left:
            self.frames.clear()
            self.late = late or _ignore
            self._connection.write(write_frame(FrameKind.CANCEL, self.number))

    async def _wait(self, limit_s: float | None) -> None:
        """Wait for a frame, or the end of the connection. Raise `Lost` when the time is over."""
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

    # --- Told by the connection ------------------------------------------------------------------------------------

    def arrived(self, kind: int, body: bytes) -> None:
        if self.late is not None:
            if kind in (RESULT, ITEM):
                self.late((kind, body))
            return
        self.frames.append((kind, body))
        self._wake()

    def lose(self, lost: Lost) -> None:
        self.is_over = True
        self._lost = lost
        self._wake()

    def time_out(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            reason = f"no answer within {self._limit_s:g} s"
            self._waiter.set_exception(Lost(reason, was_sent=True, is_timeout=True))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _ignore(answer: Answer) -> None:
    """Hear nothing of an answer that nobody waits for."""
