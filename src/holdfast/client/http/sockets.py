"""One HTTP/1.1 connection of the calling thread: a blocking socket, one call at a time.

Its calls are coroutines that never suspend: they have the shape of those on an event loop, and share all the code above
them. Another thread may leave or close a connection while its caller waits in it.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
from typing import Any

from holdfast.client.http.connection import JOINED_BYTES
from holdfast.client.http.response import HttpReply, Response
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s

# Larger buffers are mapped anew by the system for each read, which costs more than the read.
_READ_BYTES = 64 << 10
_ONE_READ = (_READ_BYTES,)
_CLOSED = "the connection was closed"


class HttpSocketConnection:
    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        """`timeout_s`: for the network to take what is sent."""
        self._socket = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        # How long a read waits now, as the system knows; 0: for ever.
        self._limit_s = 0.0
        if not self._is_tls:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
        self._response = Response(is_stream=False)
        # What came of the answer so far. Kept until it is whole: an interruption may hit the parser at its work.
        self._received: list[bytes] = []
        # Held while a thread sends or reads. Whoever leaves a call for its caller waits for it.
        self._using = threading.Lock()
        # A call is under way whose answer its caller does not have yet.
        self._is_calling = False
        # Another thread ended the call: its caller is not to have the answer.
        self._is_left = False
        # None while it is open.
        self._end: str | None = None
        self._error: Lost | None = None
        self.part_at = 0.0
        self.is_reused = False
        self.idle_since = 0.0

    @property
    def is_free(self) -> bool:
        return self._end is None and not self._is_calling and not self._is_left

    @property
    def has_answer_begun(self) -> bool:
        return self._response.is_head_read

    @property
    def is_over(self) -> bool:
        return self._error is not None or self._response.answer is not None

    def is_readable(self) -> bool:
        return bool(self._poll.poll(0))

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def call(self, request: list[bytes], timeout_s: float | None, *, is_stream: bool = False) -> HttpReply:
        self.begin(is_stream=is_stream)
        with self._using:
            if len(request) == 1 and len(request[0]) <= JOINED_BYTES:
                self._send_at_once(request[0], timeout_s)
            elif sum(map(len, request)) <= JOINED_BYTES:
                self._send_at_once(b"".join(request), timeout_s)
            else:
                self._send_and_listen(request, timeout_s)
            return self._hear(timeout_s)

    def begin(self, *, is_stream: bool = False) -> None:
        if self._end is not None:
            raise Lost(self._end, was_sent=False)
        self._response = Response(is_stream=is_stream)
        self._received.clear()
        self._error = None
        self._is_calling = True

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        with self._using:
            if not self.is_over:
                self._send_and_listen(parts, timeout_s)

    async def answer(self, timeout_s: float | None) -> HttpReply:
        with self._using:
            return self._hear(timeout_s)

    async def read(self) -> bytes:
        response = self._response
        with self._using:
            self._set_limit(None)
            while not response.parts:
                if self._is_left:
                    raise Lost("the client was closed", was_sent=True)
                if self._error is not None:
                    raise self._error
                if response.answer is not None:
                    return b""
                self._receive()
                self._received.clear()
            self.part_at = steady_s()
            return response.parts.popleft()

    def unread(self) -> bytes:
        return self._response.unread()

    def _hear(self, timeout_s: float | None) -> HttpReply:
        """Return the answer, or the head of a stream. Its caller holds the lock."""
        response = self._response
        if not self.is_over:
            if timeout_s != self._limit_s:
                self._set_limit(timeout_s)
            begun_s = steady_s()
            self._receive()
            # Most answers come whole in one read.
            if not self.is_over:
                self._receive_rest(timeout_s, begun_s)
        if self._is_left:
            # Whoever left for this caller waits for the lock, and looks at the answer.
            raise Lost("the client was closed", was_sent=True)
        if self._error is not None:
            self._is_calling = False
            raise self._error
        if response.answer is None:
            return HttpReply(response.status, response.headers, b"")
        self._is_calling = False
        return response.answer

    def _receive_rest(self, timeout_s: float | None, begun_s: float) -> None:
        response = self._response
        while not (response.is_streaming and response.is_head_read):
            if timeout_s is not None:
                # A limit holds for one read, and this answer comes in several.
                left_s = begun_s + timeout_s - steady_s()
                if left_s <= 0:
                    self._time_out(timeout_s)
                    return
                self._set_limit(left_s)
            self._receive()
            if response.answer is not None or self._error is not None:
                return
        self._received.clear()

    def _receive(self) -> None:
        """Take what the connection has, waiting until it has some. `is_over` if that was its last word."""
        try:
            # Within one call into C: an interruption comes before it or after it, but loses nothing.
            self._received.extend(map(self._socket.recv, _ONE_READ))
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._time_out(self._limit_s)
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        else:
            self._take(self._received[-1])

    def _take(self, data: bytes) -> None:
        response = self._response
        if not data:
            response.end()
            if response.answer is None:
                self._lose(_CLOSED)
            self._end = self._end or _CLOSED
            return
        is_good = response.feed(data)
        if response.answer is not None:
            if not response.keeps_alive:
                self._end = self._end or "the server closed the connection after its answer"
        elif not is_good:
            self._lose("what answers there does not speak HTTP/1.1")
        if not is_good:
            self._end = self._end or "what answers there does not speak HTTP/1.1"

    def _time_out(self, timeout_s: float) -> None:
        if not self.is_over:
            self._end = self._end or "the server did not answer in time"
            self._error = Lost(f"no answer within {timeout_s:g} s", was_sent=True, is_timeout=True)

    def _lose(self, reason: str) -> None:
        self._end = self._end or reason
        self._error = self._error or Lost(self._end, was_sent=True)

    # --- Sending ---------------------------------------------------------------------------------------------------

    def _send_at_once(self, data: bytes, timeout_s: float | None) -> None:
        if self._is_tls:
            self._set_limit(timeout_s)
        try:
            self._socket.sendall(data)
        except (BlockingIOError, TimeoutError):
            self._time_out(timeout_s or self._limit_s)
        except OSError as error:
            self._lose_sending(error)

    def _send_and_listen(self, parts: list[bytes], timeout_s: float | None) -> None:
        """Send much, and stop once it is answered: a server may refuse it at its beginning, and read no further."""
        sock = self._socket
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN | select.POLLOUT)
        sock.setblocking(False)
        try:
            for part in parts:
                view = memoryview(part)
                while view and not self.is_over:
                    ready = poll.poll(None if timeout_s is None else timeout_s * 1_000)
                    if not ready:
                        self._time_out(timeout_s or 0)
                        return
                    [(_, events)] = ready
                    if events & ~select.POLLOUT:
                        self._hear_some()
                    if events & select.POLLOUT and not self.is_over:
                        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                            view = view[sock.send(view) :]
        except OSError as error:
            self._lose_sending(error)
        finally:
            with contextlib.suppress(OSError):  # closed meanwhile
                sock.setblocking(True)
            self._limit_s = -1.0 if self._is_tls else self._limit_s

    def _hear_some(self) -> None:
        """Take what there is, without waiting."""
        try:
            self._received.extend(map(self._socket.recv, _ONE_READ))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        self._take(self._received[-1])

    def _lose_sending(self, error: OSError) -> None:
        """The other side is gone; a refusal that it left behind is heard first."""
        with contextlib.suppress(OSError):
            self._socket.setblocking(False)
            while not self.is_over:
                self._received.extend(map(self._socket.recv, _ONE_READ))
                self._take(self._received[-1])
        if self._response.answer is None:
            self._end = self._error = None
            self._lose(f"the connection broke: {error}")
        self._end = self._end or _CLOSED

    # --- Leaving ---------------------------------------------------------------------------------------------------

    async def leave(self, timeout_s: float) -> HttpReply | None:
        self._is_left = True
        until_s = steady_s() + timeout_s
        self._shut_down(socket.SHUT_RDWR if self._is_tls else socket.SHUT_WR)
        # The caller's thread, if it waits in a read, wakes as the server closes its side.
        if not self._using.acquire(timeout=timeout_s):
            self._shut_down(socket.SHUT_RDWR)
            self._using.acquire()
        try:
            if not self._is_calling:
                return None  # the caller has the answer
            answer = None if self._is_tls else self._hear_out(until_s)
            self._is_calling = False
            return answer
        finally:
            self._socket.close()
            self._end = self._end or _CLOSED
            self._using.release()

    def _hear_out(self, until_s: float) -> HttpReply | None:
        """Read what the server had answered before it saw its caller leave."""
        if not self._response.is_streaming:
            # From its first byte: the caller may have been interrupted in the middle of the parser.
            received, self._response = b"".join(self._received), Response(is_stream=False)
            if received:
                self._take(received)
        else:
            self._response.is_streaming = False
        self._error = None
        while not self.is_over and (left_s := until_s - steady_s()) > 0:
            self._set_limit(left_s)
            self._receive()
        return self._response.answer

    def close(self) -> None:
        self._end = self._end or _CLOSED
        if self._using.acquire(blocking=False):
            self._socket.close()
            self._using.release()
        else:
            # Its caller waits in it: it wakes, finds it closed, and closes it.
            self._shut_down(socket.SHUT_RDWR)

    def abandon(self) -> None:
        self._is_calling = False
        self.close()

    def _shut_down(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it is no longer connected, or closed
            # Not the method of a TLS socket, which would take the connection from under the thread that reads it.
            socket.socket.shutdown(self._socket, how)

    # --- Limits ----------------------------------------------------------------------------------------------------

    def _set_limit(self, seconds: float | None) -> None:
        """Let a read wait so long. By an option of the socket: Python's own timeout costs a call more for each read."""
        limit_s = seconds or 0.0
        if limit_s == self._limit_s or self._end is not None:
            return
        if self._is_tls:
            self._socket.settimeout(seconds)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit_s))
        self._limit_s = limit_s


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    # Zero would mean for ever.
    micros = max(int((seconds - whole) * 1_000_000), 0 if whole or not seconds else 1)
    packed: Any = struct.pack("@ll", whole, micros)
    return bytes(packed)
