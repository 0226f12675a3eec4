"""One HTTP/1.1 connection on an event loop: one call at a time, its answer taken whole or as it comes.

Our own, over asyncio and httptools: it knows whether a failed call was sent at all, which decides whether it may be
repeated, and it can leave a call half-way without losing what the server may have answered meanwhile.
"""

import asyncio
import select
from collections import deque
from typing import Protocol, TypeVar, cast

from holdfast.client.http.response import HttpReply, Response
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s

T = TypeVar("T")

# Of a stream that its reader does not keep up with.
_MAX_UNREAD = 1 << 20
# Parts of a request up to this size are sent as one write.
JOINED_BYTES = 64 << 10


class AnyConnection(Protocol):
    """A connection on an event loop, or of the calling threads."""

    # It has carried a call before this one: the server may have been closing it as the call was sent.
    is_reused: bool
    idle_since: float
    # When the last part of a stream that was read had come.
    part_at: float

    @property
    def is_free(self) -> bool:
        """Whether another call can be sent."""

    @property
    def has_answer_begun(self) -> bool: ...

    @property
    def is_over(self) -> bool:
        """Whether the call is answered, or lost: then `answer` returns or raises at once."""

    def is_readable(self) -> bool:
        """Whether an idle connection has something to say that nobody has heard yet: its end, most likely."""

    async def call(self, request: list[bytes], timeout_s: float | None, *, is_stream: bool = False) -> HttpReply:
        """Return the whole answer; for a stream that begins well its head, and the rest is for `read`."""

    def begin(self) -> None:
        """Begin a call of which nothing is sent yet. `Lost`."""

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        """Send more of a request that goes out bit by bit, until there is room for what follows or the call is over."""

    async def answer(self, timeout_s: float | None) -> HttpReply:
        """Return the answer to a call that was begun. `Lost`."""

    async def read(self) -> bytes:
        """Return the next part of a streamed answer, empty at its end. `Lost`."""

    def unread(self) -> bytes:
        """Return what of a stream has come and was not read."""

    async def leave(self, timeout_s: float) -> HttpReply | None:
        """Tell the server that the caller left, and return what it had answered by then; None if it had not.

        Only the sending half is closed: a server that had answered already has its answer read, one that had not
        finds the caller gone and undoes what it did. TLS cannot close by halves: there an answer under way is lost,
        and what it delivered comes back after its lease.
        """

    def close(self) -> None:
        """Close it, whatever is under way. A caller that waits is told that the call is lost."""

    def abandon(self) -> None:
        """Close it in the middle of a call whose answer nobody waits for."""


class HttpClientConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        # Of the call that is under way, or was the last.
        self._waiter: asyncio.Future[HttpReply] | None = None
        # When each part of a stream came.
        self._came_at: deque[float] = deque()
        self.part_at = 0.0
        self._unread = 0
        self._more: asyncio.Future[None] | None = None
        # While more is written than the network has taken.
        self._room: asyncio.Future[None] | None = None
        # None while it is open.
        self._end: str | None = None
        # asyncio has let go of its transport, which then must not be touched.
        self._is_lost = False
        self.is_reused = False
        self.idle_since = 0.0
        self._poll: select.poll | None = None

    @property
    def is_free(self) -> bool:
        return (
            self._end is None
            and (self._response is None or self._response.answer is not None)
            and not cast(asyncio.Transport, self._transport).is_closing()
        )

    @property
    def has_answer_begun(self) -> bool:
        return self._response is not None and self._response.is_head_read

    @property
    def is_over(self) -> bool:
        return self._waiter is None or self._waiter.done()

    def is_readable(self) -> bool:
        return self._poll is not None and bool(self._poll.poll(0))

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def call(self, request: list[bytes], timeout_s: float | None, *, is_stream: bool = False) -> HttpReply:
        self.begin(is_stream=is_stream)
        transport = cast(asyncio.Transport, self._transport)
        if len(request) == 1:
            transport.write(request[0])
        elif sum(map(len, request)) <= JOINED_BYTES:
            transport.write(b"".join(request))
        else:
            for part in request:
                transport.write(part)
        return await self.answer(timeout_s)

    def begin(self, *, is_stream: bool = False) -> None:
        if self._end is not None or cast(asyncio.Transport, self._transport).is_closing():
            raise Lost(self._end or "the connection is closed", was_sent=False)
        self._response = Response(is_stream=is_stream)
        self._waiter = self._loop.create_future()

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        if self.is_readable():
            # A refusal is heard before anything is written to a server that has left with it: the loop gets to it in
            # its next turn, behind this task.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if self.is_over:
            return
        for part in parts:
            cast(asyncio.Transport, self._transport).write(part)
        if self._room is not None:
            await self._wait_for(self._room, timeout_s)

    async def answer(self, timeout_s: float | None) -> HttpReply:
        return await self._wait_for(cast("asyncio.Future[HttpReply]", self._waiter), timeout_s)

    async def _wait_for(self, waiter: "asyncio.Future[T]", timeout_s: float | None) -> T:
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._time_out, timeout_s)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    async def read(self) -> bytes:
        response = cast(Response, self._response)
        while not response.parts:
            if response.answer is not None:
                return b""
            if self._end is not None:
                raise Lost(self._end, was_sent=True)
            self._more = self._loop.create_future()
            await self._more
        part, self.part_at = response.parts.popleft(), self._came_at.popleft()
        if self._unread > _MAX_UNREAD >= self._unread - len(part) and self._end is None:
            cast(asyncio.Transport, self._transport).resume_reading()
        self._unread -= len(part)
        return part

    def unread(self) -> bytes:
        return b"" if self._response is None else self._response.unread()

    async def leave(self, timeout_s: float) -> HttpReply | None:
        transport, response = cast(asyncio.Transport, self._transport), self._response
        if response is not None and response.answer is None and self._end is None and transport.can_write_eof():
            waiter, self._waiter = self._waiter, self._loop.create_future()
            if waiter is not None and not waiter.done():
                waiter.set_exception(Lost("the client was closed", was_sent=True))
            response.is_streaming = False
            self._finish_reading()
            if self._unread > _MAX_UNREAD:
                transport.resume_reading()
            try:
                transport.write_eof()
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except (Lost, OSError):  # a TimeoutError is one
                pass  # it had not answered, or will not; or the connection was reset, and the loop has not heard yet
        transport.abort()
        return None if response is None else response.answer

    def close(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def abandon(self) -> None:
        if self._waiter is not None and not self._waiter.cancel() and not self._waiter.cancelled():
            self._waiter.exception()  # heard, so that the loop does not complain of it
        self.close()

    def _time_out(self, timeout_s: float) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(f"no answer within {timeout_s:g} s", was_sent=True, is_timeout=True))
        self.close()

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None or response.is_whole():  # an answer to nothing
            cast(asyncio.Transport, self._transport).abort()
            return
        is_good = response.feed(data)
        if response.is_streaming and response.is_head_read:
            self._note_parts(response)
        if response.is_whole():
            self._finish_call(response)
        elif not is_good:
            self._finish("what answers there does not speak HTTP/1.1")
        if not is_good:
            cast(asyncio.Transport, self._transport).abort()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if error is None and self._response is not None and not self._response.is_whole():
            self._response.end()
            if self._response.is_whole():
                self._finish_call(self._response)
        self._finish("the connection was closed" if error is None else f"the connection broke: {error}")

    # --- What came -------------------------------------------------------------------------------------------------

    def _note_parts(self, response: Response) -> None:
        """Parts of a stream came, or its head: they are for `read`, and not more of them than it keeps up with."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(HttpReply(response.status, response.headers, b""))
        now_s, before = steady_s(), self._unread
        for at in range(len(self._came_at), len(response.parts)):
            self._unread += len(response.parts[at])
            self._came_at.append(now_s)
        if before <= _MAX_UNREAD < self._unread:
            cast(asyncio.Transport, self._transport).pause_reading()
        self._tell_more()

    def _finish_call(self, response: Response) -> None:
        if not response.keeps_alive and self._end is None:
            self._end = "the server closed the connection after its answer"
            cast(asyncio.Transport, self._transport).close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(cast(HttpReply, response.answer))
        self.resume_writing()
        self._tell_more()

    def _finish(self, reason: str) -> None:
        self._end = self._end or reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(self._end, was_sent=True))
        self.resume_writing()
        self._tell_more()

    def _finish_reading(self) -> None:
        """Whoever reads a stream hears no more of it."""
        if self._more is not None and not self._more.done():
            self._more.set_exception(Lost("the client was closed", was_sent=True))

    def _tell_more(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
