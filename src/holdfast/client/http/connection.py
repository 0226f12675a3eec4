"""One HTTP/1.1 connection: one call at a time, its answer taken whole or as it comes.

Our own, over asyncio and httptools: it knows whether a failed call was sent at all, which decides whether it may be
repeated, and it can leave a call half-way without losing what the server may have answered meanwhile.
"""

import asyncio
import select
from collections import deque
from typing import NamedTuple, TypeVar, cast

import httptools

from holdfast.clock import steady_s

T = TypeVar("T")

# Of a stream that its reader does not keep up with.
_MAX_UNREAD = 1 << 20
# Parts of a request up to this size are sent as one write.
_JOINED_BYTES = 64 << 10


class Answer(NamedTuple):
    status: int
    # Names in lower case.
    headers: dict[bytes, bytes]
    body: bytes


class Lost(Exception):
    """A call that got no answer. `was_sent`: the server may have carried it out."""

    def __init__(self, reason: str, *, was_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        self.is_timeout = is_timeout


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._headers: dict[bytes, bytes] = {}
        self._parts: deque[bytes] = deque()
        # When each part of a stream came.
        self._came_at: deque[float] = deque()
        self.part_at = 0.0
        self._is_streaming = False
        self._is_head_read = False
        self._unread = 0
        self._more: asyncio.Future[None] | None = None
        # While more is written than the network has taken.
        self._room: asyncio.Future[None] | None = None
        # None while it is open.
        self._end: str | None = None
        # asyncio has let go of its transport, which then must not be touched.
        self._is_lost = False
        # It has carried a call before this one: the server may have been closing it as the call was sent.
        self.is_reused = False
        self.idle_since = 0.0
        self._poll: select.poll | None = None

    @property
    def is_free(self) -> bool:
        """Whether another call can be sent."""
        return self._end is None and self._waiter is None and not cast(asyncio.Transport, self._transport).is_closing()

    @property
    def has_answer_begun(self) -> bool:
        return self._is_head_read

    def is_readable(self) -> bool:
        """Whether an idle connection has something to say that the loop has not heard yet: its end, most likely."""
        if self._poll is None:
            return False
        return bool(self._poll.poll(0))

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def call(self, request: list[bytes], timeout_s: float | None, *, is_stream: bool = False) -> Answer:
        """The whole answer. Of a stream that begins well, its head: the rest is for `read`."""
        waiter = self.begin(is_stream=is_stream)
        transport = cast(asyncio.Transport, self._transport)
        if sum(map(len, request)) <= _JOINED_BYTES:
            transport.write(b"".join(request))
        else:
            for part in request:
                transport.write(part)
        return await self.wait_for(waiter, timeout_s)

    def begin(self, *, is_stream: bool = False) -> "asyncio.Future[Answer]":
        """A call of which nothing is sent yet; what will be its answer."""
        if self._end is not None or cast(asyncio.Transport, self._transport).is_closing():
            raise Lost(self._end or "the connection is closed", was_sent=False)
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._answer, self._is_head_read, self._is_streaming = {}, None, False, is_stream
        self._waiter = waiter = self._loop.create_future()
        return waiter

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        """More of a request that goes out bit by bit. Returns once there is room for what follows, or once the call is
        answered: whoever sends looks at what `begin` gave it."""
        if self.is_readable():
            # A refusal is heard before anything is written to a server that has left with it: the loop gets to it in
            # its next turn, behind this task.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if self._waiter is None or self._waiter.done():
            return
        for part in parts:
            cast(asyncio.Transport, self._transport).write(part)
        if self._room is not None:
            await self.wait_for(self._room, timeout_s)

    async def wait_for(self, waiter: "asyncio.Future[T]", timeout_s: float | None) -> T:
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self.time_out, timeout_s)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    async def read(self) -> bytes:
        """The next part of a streamed answer, empty at its end."""
        while not self._parts:
            if self._answer is not None:
                return b""
            if self._end is not None:
                raise Lost(self._end, was_sent=True)
            self._more = self._loop.create_future()
            await self._more
        part, self.part_at = self._parts.popleft(), self._came_at.popleft()
        if self._unread > _MAX_UNREAD >= self._unread - len(part) and self._end is None:
            cast(asyncio.Transport, self._transport).resume_reading()
        self._unread -= len(part)
        return part

    def unread(self) -> bytes:
        """What of a stream has come and was not read."""
        parts = b"".join(self._parts)
        self._parts.clear()
        return parts

    async def leave(self, timeout_s: float) -> Answer | None:
        """Tell the server that the caller left, and hear what it had answered by then; None if it had not.

        Only the sending half is closed: a server that had answered already has its answer read, one that had not
        finds the caller gone and undoes what it did. TLS cannot close by halves: there an answer under way is lost,
        and what it delivered comes back after its lease.
        """
        transport = cast(asyncio.Transport, self._transport)
        if self._answer is None and self._end is None and transport.can_write_eof():
            waiter, self._waiter = self._waiter, self._loop.create_future()
            if waiter is not None and not waiter.done():
                waiter.set_exception(Lost("the client was closed", was_sent=True))
            self._is_streaming = False
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
        return self._answer

    def close(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def time_out(self, timeout_s: float) -> None:
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
        if self._parser is None:  # an answer to nothing
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._finish("what answers there does not speak HTTP/1.1")
            self.close()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if (
            error is None
            and self._is_head_read
            and self._answer is None
            and b"content-length" not in self._headers
            and b"transfer-encoding" not in self._headers
        ):
            self.on_message_complete()  # such an answer ends with its connection
        self._finish("the connection was closed" if error is None else f"the connection broke: {error}")

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

    # --- The parser's callbacks ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        parser = cast(httptools.HttpResponseParser, self._parser)
        if parser.get_status_code() < 200:  # only news of an answer to come
            self._headers = {}
            return
        self._is_head_read = True
        self._is_streaming = self._is_streaming and parser.get_status_code() == 200
        if self._is_streaming and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Answer(200, self._headers, b""))

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        if self._is_streaming:
            if self._unread <= _MAX_UNREAD < self._unread + len(body):
                cast(asyncio.Transport, self._transport).pause_reading()
            self._unread += len(body)
            self._came_at.append(steady_s())
            self._tell_more()

    def on_message_complete(self) -> None:
        parser = cast(httptools.HttpResponseParser, self._parser)
        if not self._is_head_read:
            return
        body = b"" if self._is_streaming else self.unread()
        answer = self._answer = Answer(parser.get_status_code(), self._headers, body)
        waiter, self._waiter, self._parser = self._waiter, None, None
        if not parser.should_keep_alive() and self._end is None:
            self._end = "the server closed the connection after its answer"
            cast(asyncio.Transport, self._transport).close()
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)
        self.resume_writing()
        self._tell_more()
