"""One connection in the calling thread: a blocking socket with one call at a time.

Its methods are coroutines that never suspend. They have the same interface as those on an event loop, so both share the
code above them. Another thread may cancel a call or close the connection while its caller waits.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from holdfast.client.framed.byte_sockets import byte_socket
from holdfast.client.framed.handshake import Handshake, HandshakeState, check_first, read_upgrade
from holdfast.client.framed.open_call import (
    ERROR,
    KEEPALIVE_S,
    LONGEST_FRAME,
    MAX_SILENT_INTERVALS,
    RESULT,
    ResponseFrame,
)
from holdfast.client.http.socket_pool import SocketPool
from holdfast.client.remote.lost import Lost, LostOnReuse
from holdfast.client.remote.settings import Address
from holdfast.clock import steady_s
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ServerHello, read_error, read_server_hello

_CLOSED: Final = "the connection was closed"
_LAST_NUMBER: Final = 0xFFFF_FFFF


class _Phase(Enum):
    """The progress of a call, as the server knows it."""

    IDLE = auto()
    # A part of the call's frame may have been sent, so nothing else can be sent.
    SENDING = auto()
    SENT = auto()


class FramedSocketConnection:
    """A connection in a calling thread, and its current call. The interface is `OpenCall` in `open_call.py`."""

    def __init__(self, sock: socket.socket, handshake: Handshake, timeout_s: float) -> None:
        """`timeout_s`: how long the network may take to accept data."""
        self._socket = byte_socket(sock, timeout_s)
        self._handshake = handshake
        self._handshake_state = HandshakeState()
        self._server_hello: ServerHello | None = None
        self._keepalive_s = KEEPALIVE_S
        self._reader = FrameReader(LONGEST_FRAME)
        self._number = 0
        self._phase = _Phase.IDLE
        # The bytes read since the call was opened, kept because an interruption may hit the parser.
        self._received: list[bytes] = []
        # Frames of the call that the caller has not received.
        self._frames: list[ResponseFrame] = []
        # Held while a thread calls. A thread that cancels the call waits for it.
        self._using = threading.Lock()
        # Another thread cancelled the call, so its caller must not get the response.
        self._is_cancelled = False
        self._is_going_away = False
        # Why the connection ended; None while it is open.
        self._end: Lost | None = None
        self.received_at = 0.0
        self.is_reused = False
        self.idle_since = 0.0

    def upgrade(self, limit_s: float) -> None:
        """Upgrade an HTTP connection to frames. Raise `Lost` or `OSError`."""
        until_s = steady_s() + limit_s
        self._socket.send(self._handshake.upgrade)
        head: list[bytes] = []
        while (rest := read_upgrade(b"".join(head))) is None:
            self._socket.receive(head, max(0.001, until_s - steady_s()))
            if not head[-1]:
                raise Lost(_CLOSED, was_sent=False)
        if rest:
            self._handle_frames(rest)

    @property
    def is_free(self) -> bool:
        return self._end is None and self._phase is _Phase.IDLE and not self._is_cancelled and not self._is_going_away

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.IDLE

    def is_readable(self) -> bool:
        return self._socket.is_readable()

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def request(self, body: bytes, limit_s: float | None) -> ResponseFrame:
        with self._using:
            self._open(body)
            return self._receive_frame(limit_s)

    async def open(self, body: bytes) -> None:
        with self._using:
            self._open(body)

    async def server_hello(self, limit_s: float) -> ServerHello:
        with self._using:
            if not self._handshake_state.is_greeted:
                self._send(self._handshake.due(self._handshake_state))
            while self._server_hello is None and self._end is None:
                self._receive(limit_s)
            if self._server_hello is None:
                assert self._end is not None
                raise Lost(self._end.reason, was_sent=not self.is_over, is_timeout=self._end.is_timeout)
            return self._server_hello

    async def send(self, kind: int, body: bytes) -> None:
        with self._using:
            if self._end is None:
                self._send(write_frame(kind, self._number, body))
            if self._end is not None and not self._frames:
                raise self._end

    async def receive(self, limit_s: float | None) -> ResponseFrame:
        with self._using:
            return self._receive_frame(limit_s)

    def _open(self, body: bytes) -> None:
        if self._end is not None:
            raise Lost(self._end.reason, was_sent=False)
        number = self._number = self._number + 1 if self._number < _LAST_NUMBER else 1
        if not self._reader.held:
            self._received.clear()
        state, handshake = self._handshake_state, self._handshake
        hello = b"" if state.is_greeted and not handshake.is_renewed else handshake.due(state)
        self._phase = _Phase.SENDING
        self._send(hello + write_frame(FrameKind.CALL, number, body))
        self._phase = _Phase.SENT

    def _receive_frame(self, limit_s: float | None) -> ResponseFrame:
        """Return the next frame of the call. The caller holds the lock."""
        frames = self._frames
        if not frames and self._end is None:
            self._receive(limit_s)
            if not frames and self._end is None:
                self._receive_more(limit_s)
        if self._is_cancelled:
            # The thread that cancelled the call waits for the lock and reads the frames.
            raise Lost("this client is closed", was_sent=True)
        if not frames:
            assert self._end is not None
            self._phase = _Phase.IDLE
            raise self._end
        response = frames[0]
        if response[0] in (RESULT, ERROR):
            self._phase = _Phase.IDLE
        else:
            # Frames of a stream are received once: a cancellation continues from here.
            self._received.clear()
        del frames[0]
        return response

    def _receive_more(self, limit_s: float | None) -> None:
        """Read until there is a frame of the call. Each read has a timeout of its own, and a frame may take several."""
        begun_s = steady_s()
        while not self._frames and self._end is None:
            left_s = None if limit_s is None else begun_s + limit_s - steady_s()
            if left_s is not None and left_s <= 0:
                self._time_out(limit_s)
                return
            self._receive(left_s)

    def _receive(self, limit_s: float | None) -> None:
        """Read the available bytes, waiting until there are some."""
        try:
            if limit_s is None or limit_s > self._keepalive_s:
                self._receive_pinging(limit_s, self._keepalive_s)
            else:
                self._socket.receive(self._received, limit_s)
        except TimeoutError:
            self._time_out(limit_s)
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        else:
            self._handle_received()

    def _receive_pinging(self, limit_s: float | None, keepalive_s: float) -> None:
        """Read, sending pings, while the server shows that it is alive. Raise `TimeoutError`."""
        left_s = limit_s
        silent_s = 0.0
        while True:
            wait_s = keepalive_s if left_s is None else min(left_s, keepalive_s)
            try:
                return self._socket.receive(self._received, wait_s)
            except TimeoutError:
                silent_s += wait_s
                if left_s is not None:
                    left_s -= wait_s
                    if left_s <= 0:
                        raise
                if silent_s >= keepalive_s * MAX_SILENT_INTERVALS:
                    raise
            self._socket.send(write_frame(FrameKind.PING, CONNECTION))

    def _handle_received(self) -> None:
        data = self._received[-1]
        if not data:
            self._lose(_CLOSED)
            return
        try:
            self._handle_frames(data)
        except Lost as lost:
            self._lose(lost.reason, was_sent=lost.was_sent)

    def _handle_frames(self, data: bytes) -> None:
        reader = self._reader
        if self._server_hello is None and not reader.held:
            check_first(data)
        for kind, number, body in reader.feed(data):
            if number == self._number and number != CONNECTION:
                self._frames.append((kind, body))
            elif number == CONNECTION:
                self._handle_own(kind, body)
        if reader.failure is not None:
            raise Lost(reader.failure, was_sent=True)
        self.received_at = steady_s()

    def _handle_own(self, kind: int, body: bytes) -> None:
        """Handle a frame of the connection itself. Unknown kinds, which later servers may send, are ignored."""
        match kind:
            case FrameKind.HELLO:
                try:
                    self._server_hello = read_server_hello(body)
                except ValueError as error:
                    raise Lost(f"the server sent a malformed hello: {error}", was_sent=False) from None
                self._keepalive_s = self._server_hello.keepalive_ms / 1_000
            case FrameKind.PING:
                self._send(write_frame(FrameKind.PONG, CONNECTION, body))
            case FrameKind.ERROR:
                raise Lost(read_error(body).message, was_sent=self._server_hello is not None)
            case FrameKind.GOING_AWAY:
                self._is_going_away = True

    # --- Sending ---------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except TimeoutError:
            self._time_out(None)
        except OSError as error:
            self._lose_sending(error)

    def _lose_sending(self, error: OSError) -> None:
        """Note that the connection broke while sending, after reading what the server sent before."""
        while self._end is None and self._socket.is_readable():
            try:
                self._socket.receive(self._received, 1.0)
            except OSError:
                break
            self._handle_received()
        self._lose(f"the connection broke: {error}")

    def _time_out(self, limit_s: float | None) -> None:
        reason = "the network accepted no data in time" if limit_s is None else f"no response within {limit_s:g} s"
        self._end = self._end or Lost(reason, was_sent=True, is_timeout=True)

    def _lose(self, reason: str, *, was_sent: bool = True) -> None:
        if self._end is None:
            kind = LostOnReuse if self.is_reused and not self._frames else Lost
            self._end = kind(reason, was_sent=was_sent)

    # --- Cancellation ------------------------------------------------------------------------------------------------

    def abandon(self, on_late: Callable[[ResponseFrame], None] | None) -> None:
        """Close the connection. The server gives back the messages that it has not sent yet."""
        self.close()

    async def cancel_and_drain(self, limit_s: float) -> list[ResponseFrame]:
        """Cancel the call as `OpenCall.cancel_and_drain` says, and close the connection."""
        self._is_cancelled = True
        until_s = steady_s() + limit_s
        if self._phase is _Phase.SENT:
            self._send(write_frame(FrameKind.CANCEL, self._number))
        else:
            self._socket.shut_down()
        # If the caller waits in a read, it wakes by the response to the cancellation.
        if not self._using.acquire(timeout=limit_s):
            self._socket.shut_down()
            self._using.acquire()
        try:
            if self._phase is not _Phase.SENT:
                return []
            self._read_late(until_s)
            self._phase = _Phase.IDLE
            frames, self._frames = self._frames, []
            return frames
        finally:
            self._socket.close()
            self._lose(_CLOSED)
            self._using.release()

    def _read_late(self, until_s: float) -> None:
        """Read up to the final response."""
        if self._received and not any(map(_is_final, self._frames)):
            # Parse again from the first byte, because an interruption may have hit the parser.
            received, self._reader, self._frames = b"".join(self._received), FrameReader(LONGEST_FRAME), []
            self._received = [received]
            self._handle_received()
        while not any(map(_is_final, self._frames)) and self._end is None and (left_s := until_s - steady_s()) > 0:
            self._receive(left_s)

    def close(self) -> None:
        self._lose(_CLOSED)
        if self._using.acquire(blocking=False):
            self._socket.close()
            self._using.release()
        else:
            # The caller waits in a read. It wakes, finds the connection closed, and closes the socket.
            self._socket.shut_down()


def _is_final(response: ResponseFrame) -> bool:
    return response[0] in (RESULT, ERROR)


def make_socket_pool(
    address: Address, tls: ssl.SSLContext | None, size: int, handshake: Handshake
) -> SocketPool[FramedSocketConnection]:
    """Return the connections of a client whose calls run in threads."""

    def make(sock: socket.socket, timeout_s: float) -> FramedSocketConnection:
        connection = FramedSocketConnection(sock, handshake, timeout_s)
        if handshake.upgrade:
            connection.upgrade(timeout_s)
        return connection

    return SocketPool(make, address, tls, size)
