"""One HTTP/1.1 connection in the calling thread: a blocking socket with one call at a time.

Its methods are coroutines that never suspend. They have the same interface as those of a connection on an event loop,
so both share the code above them. Another thread may cancel a call or close the connection while its caller waits.
"""

import contextlib
import select
import socket
import ssl
import threading

from holdfast.client.http.connection import JOINED_BYTES
from holdfast.client.http.response import HttpReply, ResponseParser
from holdfast.client.http.socket_pool import ONE_READ, pack_timeout, shut_down
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s

_CLOSED = "the connection was closed"


class HttpSocketConnection:
    """A connection in a calling thread. The interface is `AnyConnection` in `connection.py`."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        """`timeout_s`: how long the network may take to accept data."""
        self._socket = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        # The timeout of a read that is set on the socket, in seconds; 0 for none.
        self._limit_s = 0.0
        if not self._is_tls:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack_timeout(timeout_s))
        self._parser = ResponseParser(is_stream=False)
        # The bytes of the response so far, kept until it is complete because an interruption may hit the parser.
        self._received: list[bytes] = []
        # Held while a thread sends or reads. A thread that cancels the call waits for it.
        self._using = threading.Lock()
        # A call is open whose caller does not have its response yet.
        self._is_calling = False
        # Another thread cancelled the call, so its caller must not get the response.
        self._is_cancelled = False
        # Why the connection ended; None while it is open.
        self._end: str | None = None
        self._error: Lost | None = None
        self.part_at = 0.0
        self.is_reused = False
        self.idle_since = 0.0

    @property
    def is_free(self) -> bool:
        return self._end is None and not self._is_calling and not self._is_cancelled

    @property
    def has_response_begun(self) -> bool:
        return self._parser.is_head_read

    @property
    def is_over(self) -> bool:
        return self._error is not None or self._parser.reply is not None

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
            return self._read_response(timeout_s)

    def begin(self, *, is_stream: bool = False) -> None:
        if self._end is not None:
            raise Lost(self._end, was_sent=False)
        self._parser = ResponseParser(is_stream=is_stream)
        self._received.clear()
        self._error = None
        self._is_calling = True

    async def send(self, parts: list[bytes], timeout_s: float) -> None:
        with self._using:
            if not self.is_over:
                self._send_and_listen(parts, timeout_s)

    async def read_response(self, timeout_s: float | None) -> HttpReply:
        with self._using:
            return self._read_response(timeout_s)

    async def read(self) -> bytes:
        parser = self._parser
        with self._using:
            self._set_limit(None)
            while not parser.parts:
                if self._is_cancelled:
                    raise Lost("the client was closed", was_sent=True)
                if self._error is not None:
                    raise self._error
                if parser.reply is not None:
                    return b""
                self._receive()
                self._received.clear()
            self.part_at = steady_s()
            return parser.parts.popleft()

    def unread(self) -> bytes:
        return self._parser.unread()

    def _read_response(self, timeout_s: float | None) -> HttpReply:
        """Return the response, or the head of a stream. The caller holds the lock."""
        parser = self._parser
        if self._error is None and parser.reply is None:
            if timeout_s != self._limit_s:
                self._set_limit(timeout_s)
            begun_s = steady_s()
            self._receive()
            # Most responses arrive in a single read.
            if not self.is_over:
                self._receive_rest(timeout_s, begun_s)
        if self._is_cancelled:
            # The thread that cancelled the call waits for the lock and reads the response.
            raise Lost("the client was closed", was_sent=True)
        if self._error is not None:
            self._is_calling = False
            raise self._error
        if parser.reply is None:
            return HttpReply(parser.status, parser.headers, b"")
        self._is_calling = False
        return parser.reply

    def _receive_rest(self, timeout_s: float | None, begun_s: float) -> None:
        parser = self._parser
        while not (parser.is_streaming and parser.is_head_read):
            if timeout_s is not None:
                # The timeout of the socket applies to one read, and this response arrives in several.
                left_s = begun_s + timeout_s - steady_s()
                if left_s <= 0:
                    self._time_out(timeout_s)
                    return
                self._set_limit(left_s)
            self._receive()
            if parser.reply is not None or self._error is not None:
                return
        self._received.clear()

    def _receive(self) -> None:
        """Read the available bytes, waiting until there are some. Sets `is_over` at the end of the response."""
        try:
            # Both happen within one call into C, so an interruption comes before or after them and loses no bytes.
            self._received.extend(map(self._socket.recv, ONE_READ))
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._time_out(self._limit_s)
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        else:
            self._take(self._received[-1])

    def _take(self, data: bytes) -> None:
        parser = self._parser
        if not data:
            parser.end()
            if parser.reply is None:
                self._lose(_CLOSED)
            self._end = self._end or _CLOSED
            return
        is_good = parser.feed(data)
        if parser.reply is not None:
            if not parser.keeps_alive:
                self._end = self._end or "the server closed the connection after its response"
        elif not is_good:
            self._lose("the server does not speak HTTP/1.1")
        if not is_good:
            self._end = self._end or "the server does not speak HTTP/1.1"

    def _time_out(self, timeout_s: float) -> None:
        if not self.is_over:
            self._end = self._end or "the server did not respond in time"
            self._error = Lost(f"no response within {timeout_s:g} s", was_sent=True, is_timeout=True)

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
        """Send a large request, and stop once there is a response: a server may refuse it early and read no further."""
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
                        self._read_available()
                    if events & select.POLLOUT and not self.is_over:
                        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                            view = view[sock.send(view) :]
        except OSError as error:
            self._lose_sending(error)
        finally:
            with contextlib.suppress(OSError):  # it was closed in the meantime
                sock.setblocking(True)
            self._limit_s = -1.0 if self._is_tls else self._limit_s

    def _read_available(self) -> None:
        """Read the available bytes without waiting."""
        try:
            self._received.extend(map(self._socket.recv, ONE_READ))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        self._take(self._received[-1])

    def _lose_sending(self, error: OSError) -> None:
        """Note that the connection broke while sending, after reading a refusal that the server may have sent."""
        with contextlib.suppress(OSError):
            self._socket.setblocking(False)
            while not self.is_over:
                self._received.extend(map(self._socket.recv, ONE_READ))
                self._take(self._received[-1])
        if self._parser.reply is None:
            self._end = self._error = None
            self._lose(f"the connection broke: {error}")
        self._end = self._end or _CLOSED

    # --- Cancellation ------------------------------------------------------------------------------------------------

    async def cancel(self, timeout_s: float) -> HttpReply | None:
        self._is_cancelled = True
        until_s = steady_s() + timeout_s
        shut_down(self._socket, socket.SHUT_RDWR if self._is_tls else socket.SHUT_WR)
        # If the caller waits in a read, it wakes when the server closes its side.
        if not self._using.acquire(timeout=timeout_s):
            shut_down(self._socket, socket.SHUT_RDWR)
            self._using.acquire()
        try:
            if not self._is_calling:
                return None  # the caller has the response
            response = None if self._is_tls else self._read_late(until_s)
            self._is_calling = False
            return response
        finally:
            self._socket.close()
            self._end = self._end or _CLOSED
            self._using.release()

    def _read_late(self, until_s: float) -> HttpReply | None:
        """Return the response that the server had sent before it saw the cancellation."""
        if not self._parser.is_streaming:
            # Parse again from the first byte, because an interruption may have hit the parser.
            received, self._parser = b"".join(self._received), ResponseParser(is_stream=False)
            if received:
                self._take(received)
        else:
            self._parser.is_streaming = False
        self._error = None
        while not self.is_over and (left_s := until_s - steady_s()) > 0:
            self._set_limit(left_s)
            self._receive()
        return self._parser.reply

    def close(self) -> None:
        self._end = self._end or _CLOSED
        if self._using.acquire(blocking=False):
            self._socket.close()
            self._using.release()
        else:
            # The caller waits in a read. It wakes, finds the connection closed, and closes the socket.
            shut_down(self._socket, socket.SHUT_RDWR)

    def abandon(self) -> None:
        self._is_calling = False
        self.close()

    # --- Limits ----------------------------------------------------------------------------------------------------

    def _set_limit(self, seconds: float | None) -> None:
        """Set the timeout of reads, by an option of the socket because Python's timeout costs a call for each read."""
        limit_s = seconds or 0.0
        if limit_s == self._limit_s or self._end is not None:
            return
        if self._is_tls:
            self._socket.settimeout(seconds)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack_timeout(limit_s))
        self._limit_s = limit_s
