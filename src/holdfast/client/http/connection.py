"""One HTTP/1.1 connection on an event loop, with one call at a time, whose response is read whole or in parts.

It is written over asyncio and httptools because it has to know whether a failed call was sent at all, which decides
whether the call may be repeated, and because it has to cancel a call without losing a response that crosses it.
"""

import asyncio
import select
from collections import deque
from typing import Protocol, TypeVar, cast

from holdfast.client.http.response import HttpReply, ResponseParser
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s

T = TypeVar("T")

# How many bytes of a stream may wait for a slow reader before the connection stops reading.
_MAX_UNREAD = 1 << 20
# Parts of a request up to this size are sent as one write.
JOINED_BYTES = 64 << 10


class AnyConnection(Protocol):
    """A connection, on an event loop or in a calling thread."""

    # The connection has carried a call before. The server may have been closing it when the next call was sent.
    is_reused: bool
    idle_since: float
    # When the last part that was read of a stream arrived, in steady seconds.
    part_at: float

    @property
    def is_free(self) -> bool:
        """True if another call can be sent."""

    @property
    def has_response_begun(self) -> bool:
        """True if the head of the response was received."""

    @property
    def is_over(self) -> bool:
        """True if the call has its response or was lost, so that `read_response` returns or raises at once."""

    def is_readable(self) -> bool:
        """Return whether an idle connection has unread bytes, which most likely means that it has ended."""

    async def call(self, request: list[bytes], timeout_s: float | None, *, is_stream: bool = False) -> HttpReply:
        """Return the whole response; for a stream that begins with success return its head, and `read` the rest."""

    def begin(self) -> None:
        """Begin a call without sending anything yet. Raise `Lost`."""

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        """Send more bytes of an upload, until there is room for the next ones or the call is over."""

    async def read_response(self, timeout_s: float | None) -> HttpReply:
        """Return the response to a call that was begun. Raise `Lost`."""

    async def read(self) -> bytes:
        """Return the next part of a streamed response; empty at its end. Raise `Lost`."""

    def unread(self) -> bytes:
        """Return the received bytes of a stream that were not read."""

    async def cancel(self, timeout_s: float) -> HttpReply | None:
        """Cancel the call, and return the response that the server had already sent; None if it had not.

        Only the sending half of the connection is closed. A response that the server had already sent is still read. A
        server that had not sent it sees the end of the request and undoes the call. TLS connections have no halves, so
        a response in transit is lost, and its messages return when their leases expire.
        """

    def close(self) -> None:
        """Close the connection. A waiting caller gets `Lost`."""

    def abandon(self) -> None:
        """Close the connection in the middle of a call, without waiting for its response."""


class HttpClientConnection(asyncio.Protocol):
    """A connection on an event loop. The interface is `AnyConnection`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        # The future of the current call, or of the last one.
        self._waiter: asyncio.Future[HttpReply] | None = None
        # When each unread part of a stream arrived, in steady seconds.
        self._came_at: deque[float] = deque()
        self.part_at = 0.0
        self._unread = 0
        self._more: asyncio.Future[None] | None = None
        # Set while the network has not accepted everything that was written.
        self._room: asyncio.Future[None] | None = None
        # Why the connection ended; None while it is open.
        self._end: str | None = None
        # asyncio has released the transport, which must not be used any more.
        self._is_lost = False
        self.is_reused = False
        self.idle_since = 0.0
        self._poll: select.poll | None = None

    @property
    def is_free(self) -> bool:
        return (
            self._end is None
            and (self._parser is None or self._parser.reply is not None)
            and not cast(asyncio.Transport, self._transport).is_closing()
        )

    @property
    def has_response_begun(self) -> bool:
        return self._parser is not None and self._parser.is_head_read

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
        return await self.read_response(timeout_s)

    def begin(self, *, is_stream: bool = False) -> None:
        if self._end is not None or cast(asyncio.Transport, self._transport).is_closing():
            raise Lost(self._end or "the connection is closed", was_sent=False)
        self._parser = ResponseParser(is_stream=is_stream)
        self._waiter = self._loop.create_future()

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        if self.is_readable():
            # Two passes of the loop let it read a refusal, before more is written to a server that has sent one and
            # stopped reading.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if self.is_over:
            return
        for part in parts:
            cast(asyncio.Transport, self._transport).write(part)
        if self._room is not None:
            await self._wait_for(self._room, timeout_s)

    async def read_response(self, timeout_s: float | None) -> HttpReply:
        return await self._wait_for(cast("asyncio.Future[HttpReply]", self._waiter), timeout_s)

    async def _wait_for(self, waiter: "asyncio.Future[T]", timeout_s: float | None) -> T:
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._time_out, timeout_s)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    async def read(self) -> bytes:
        parser = cast(ResponseParser, self._parser)
        while not parser.parts:
            if parser.reply is not None:
                return b""
            if self._end is not None:
                raise Lost(self._end, was_sent=True)
            self._more = self._loop.create_future()
            await self._more
        part, self.part_at = parser.parts.popleft(), self._came_at.popleft()
        if self._unread > _MAX_UNREAD >= self._unread - len(part) and self._end is None:
            cast(asyncio.Transport, self._transport).resume_reading()
        self._unread -= len(part)
        return part

    def unread(self) -> bytes:
        return b"" if self._parser is None else self._parser.unread()

    async def cancel(self, timeout_s: float) -> HttpReply | None:
        transport, parser = cast(asyncio.Transport, self._transport), self._parser
        if parser is not None and parser.reply is None and self._end is None and transport.can_write_eof():
            waiter, self._waiter = self._waiter, self._loop.create_future()
            if waiter is not None and not waiter.done():
                waiter.set_exception(Lost("the client was closed", was_sent=True))
            parser.is_streaming = False
            self._finish_reading()
            if self._unread > _MAX_UNREAD:
                transport.resume_reading()
            try:
                transport.write_eof()
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except (Lost, OSError):  # a TimeoutError is one
                pass  # there was no response in time, or the connection was reset and the loop has not noticed yet
        transport.abort()
        return None if parser is None else parser.reply

    def close(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def abandon(self) -> None:
        if self._waiter is not None and not self._waiter.cancel() and not self._waiter.cancelled():
            self._waiter.exception()  # retrieved, so that the loop does not log it
        self.close()

    def _time_out(self, timeout_s: float) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(f"no response within {timeout_s:g} s", was_sent=True, is_timeout=True))
        self.close()

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or parser.is_whole():  # bytes without a call
            cast(asyncio.Transport, self._transport).abort()
            return
        is_good = parser.feed(data)
        if parser.is_streaming and parser.is_head_read:
            self._note_parts(parser)
        if parser.is_whole():
            self._finish_call(parser)
        elif not is_good:
            self._finish("the server does not speak HTTP/1.1")
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
        if error is None and self._parser is not None and not self._parser.is_whole():
            self._parser.end()
            if self._parser.is_whole():
                self._finish_call(self._parser)
        self._finish("the connection was closed" if error is None else f"the connection broke: {error}")

    # --- Received bytes ----------------------------------------------------------------------------------------------

    def _note_parts(self, parser: ResponseParser) -> None:
        """Note the parts of a stream, or its head, and stop reading while the reader is too far behind."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(HttpReply(parser.status, parser.headers, b""))
        now_s, before = steady_s(), self._unread
        for at in range(len(self._came_at), len(parser.parts)):
            self._unread += len(parser.parts[at])
            self._came_at.append(now_s)
        if before <= _MAX_UNREAD < self._unread:
            cast(asyncio.Transport, self._transport).pause_reading()
        self._wake_reader()

    def _finish_call(self, parser: ResponseParser) -> None:
        if not parser.keeps_alive and self._end is None:
            self._end = "the server closed the connection after its response"
            cast(asyncio.Transport, self._transport).close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(cast(HttpReply, parser.reply))
        self.resume_writing()
        self._wake_reader()

    def _finish(self, reason: str) -> None:
        self._end = self._end or reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(self._end, was_sent=True))
        self.resume_writing()
        self._wake_reader()

    def _finish_reading(self) -> None:
        """Wake the reader of a stream with `Lost`."""
        if self._more is not None and not self._more.done():
            self._more.set_exception(Lost("the client was closed", was_sent=True))

    def _wake_reader(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
