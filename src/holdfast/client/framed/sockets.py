"""One connection of the calling thread: a blocking socket, one call at a time.

Its calls are coroutines that never suspend: they have the shape of those on an event loop, and share all the code above
them. Another thread may leave or close a connection while its caller waits in it.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from holdfast.client.framed.answer import ERROR, KEEPALIVE_S, LONGEST_FRAME, RESULT, SILENCES, Answer
from holdfast.client.framed.byte_sockets import byte_socket
from holdfast.client.framed.greeting import Greeting, Known, check_first, read_upgrade
from holdfast.client.http.socket_pool import SocketPool
from holdfast.client.remote.lost import Lost, Reused
from holdfast.client.remote.settings import Address
from holdfast.clock import steady_s
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ServerHello, read_error, read_server_hello

_CLOSED: Final = "the connection was closed"
_LAST_NUMBER: Final = 0xFFFF_FFFF


class _Phase(Enum):
    """How far the call is, as the server knows it."""

    IDLE = auto()
    # A part of its frame may have been sent: nothing else can be.
    SENDING = auto()
    SENT = auto()


class FramedSocketConnection:
    """`answer.OpenCall`, again and again."""

    def __init__(self, sock: socket.socket, greeting: Greeting, timeout_s: float) -> None:
        """`timeout_s`: for the network to take what is sent."""
        self._socket = byte_socket(sock, timeout_s)
        self._greeting = greeting
        self._known = Known()
        self._said: ServerHello | None = None
        self._keepalive_s = KEEPALIVE_S
        self._reader = FrameReader(LONGEST_FRAME)
        self._number = 0
        self._phase = _Phase.IDLE
        # The bytes read since the call was opened, kept because an interruption may hit the parser.
        self._received: list[bytes] = []
        # Frames of the call that its caller has not heard.
        self._frames: list[Answer] = []
        # Held while a thread calls. Whoever leaves a call for its caller waits for it.
        self._using = threading.Lock()
        # Another thread ended the call: its caller is not to have the answer.
        self._is_left = False
        self._is_going_away = False
        # None while it is open.
        self._end: Lost | None = None
        self.heard_at = 0.0
        self.is_reused = False
        self.idle_since = 0.0

    def upgrade(self, limit_s: float) -> None:
        """Make an HTTP connection one of frames. Raise `Lost`, or `OSError`."""
        until_s = steady_s() + limit_s
        self._socket.send(self._greeting.upgrade)
        head: list[bytes] = []
        while (rest := read_upgrade(b"".join(head))) is None:
            self._socket.receive(head, max(0.001, until_s - steady_s()))
            if not head[-1]:
                raise Lost(_CLOSED, was_sent=False)
        if rest:
            self._take(rest)

    @property
    def is_free(self) -> bool:
        return self._end is None and self._phase is _Phase.IDLE and not self._is_left and not self._is_going_away

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.IDLE

    def is_readable(self) -> bool:
        return self._socket.is_readable()

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def ask(self, body: bytes, limit_s: float | None) -> Answer:
        with self._using:
            self._open(body)
            return self._hear(limit_s)

    async def open(self, body: bytes) -> None:
        with self._using:
            self._open(body)

    async def server(self, limit_s: float) -> ServerHello:
        with self._using:
            if not self._known.is_greeted:
                self._send(self._greeting.due(self._known))
            while self._said is None and self._end is None:
                self._receive(limit_s)
            if self._said is None:
                assert self._end is not None
                raise Lost(self._end.reason, was_sent=not self.is_over, is_timeout=self._end.is_timeout)
            return self._said

    async def send(self, kind: int, body: bytes) -> None:
        with self._using:
            if self._end is None:
                self._send(write_frame(kind, self._number, body))
            if self._end is not None and not self._frames:
                raise self._end

    async def hear(self, limit_s: float | None) -> Answer:
        with self._using:
            return self._hear(limit_s)

    def _open(self, body: bytes) -> None:
        if self._end is not None:
            raise Lost(self._end.reason, was_sent=False)
        number = self._number = self._number + 1 if self._number < _LAST_NUMBER else 1
        if not self._reader.held:
            self._received.clear()
        known, greeting = self._known, self._greeting
        hello = b"" if known.is_greeted and not greeting.is_renewed else greeting.due(known)
        self._phase = _Phase.SENDING
        self._send(hello + write_frame(FrameKind.CALL, number, body))
        self._phase = _Phase.SENT

    def _hear(self, limit_s: float | None) -> Answer:
        """Return the next frame of the call. Its caller holds the lock."""
        frames = self._frames
        if not frames and self._end is None:
            self._receive(limit_s)
            if not frames and self._end is None:
                self._receive_more(limit_s)
        if self._is_left:
            # Whoever left for this caller waits for the lock, and looks at the frames.
            raise Lost("this client is closed", was_sent=True)
        if not frames:
            assert self._end is not None
            self._phase = _Phase.IDLE
            raise self._end
        answer = frames[0]
        if answer[0] in (RESULT, ERROR):
            self._phase = _Phase.IDLE
        else:
            # Frames of a stream are heard once: what is left of it is read on from here.
            self._received.clear()
        del frames[0]
        return answer

    def _receive_more(self, limit_s: float | None) -> None:
        """Read on until there is a frame of the call: a limit holds for one read, and this one comes in several."""
        begun_s = steady_s()
        while not self._frames and self._end is None:
            left_s = None if limit_s is None else begun_s + limit_s - steady_s()
            if left_s is not None and left_s <= 0:
                self._time_out(limit_s)
                return
            self._receive(left_s)

    def _receive(self, limit_s: float | None) -> None:
        """Take what the connection has, waiting until it has some."""
        try:
            if limit_s is None or limit_s > self._keepalive_s:
                self._receive_alive(limit_s, self._keepalive_s)
            else:
                self._socket.receive(self._received, limit_s)
        except TimeoutError:
            self._time_out(limit_s)
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        else:
            self._take_received()

    def _receive_alive(self, limit_s: float | None, keepalive_s: float) -> None:
        """Read as long as the server shows that it is there. Raise `TimeoutError`."""
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
                if silent_s >= keepalive_s * SILENCES:
                    raise
            self._socket.send(write_frame(FrameKind.PING, CONNECTION))

    def _take_received(self) -> None:
        data = self._received[-1]
        if not data:
            self._lose(_CLOSED)
            return
        try:
            self._take(data)
        except Lost as lost:
            self._lose(lost.reason, was_sent=lost.was_sent)

    def _take(self, data: bytes) -> None:
        reader = self._reader
        if self._said is None and not reader.held:
            check_first(data)
        for kind, number, body in reader.feed(data):
            if number == self._number and number != CONNECTION:
                self._frames.append((kind, body))
            elif number == CONNECTION:
                self._take_own(kind, body)
        if reader.failure is not None:
            raise Lost(reader.failure, was_sent=True)
        self.heard_at = steady_s()

    def _take_own(self, kind: int, body: bytes) -> None:
        """Take a frame of the connection itself. Kinds that later servers send are ignored."""
        match kind:
            case FrameKind.HELLO:
                try:
                    self._said = read_server_hello(body)
                except ValueError as error:
                    raise Lost(f"its hello is not understood: {error}", was_sent=False) from None
                self._keepalive_s = self._said.keepalive_ms / 1_000
            case FrameKind.PING:
                self._send(write_frame(FrameKind.PONG, CONNECTION, body))
            case FrameKind.ERROR:
                raise Lost(read_error(body).message, was_sent=self._said is not None)
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
        """Note that the other side is gone; what it said before is heard first."""
        while self._end is None and self._socket.is_readable():
            try:
                self._socket.receive(self._received, 1.0)
            except OSError:
                break
            self._take_received()
        self._lose(f"the connection broke: {error}")

    def _time_out(self, limit_s: float | None) -> None:
        reason = "the server took nothing in time" if limit_s is None else f"no answer within {limit_s:g} s"
        self._end = self._end or Lost(reason, was_sent=True, is_timeout=True)

    def _lose(self, reason: str, *, was_sent: bool = True) -> None:
        if self._end is None:
            kind = Reused if self.is_reused and not self._frames else Lost
            self._end = kind(reason, was_sent=was_sent)

    # --- Leaving ---------------------------------------------------------------------------------------------------

    def give_up(self, late: Callable[[Answer], None] | None) -> None:
        """Close it: what the server has not sent yet goes back there."""
        self.close()

    async def leave(self, limit_s: float) -> list[Answer]:
        """`answer.OpenCall.leave`. The connection is closed."""
        self._is_left = True
        until_s = steady_s() + limit_s
        if self._phase is _Phase.SENT:
            self._send(write_frame(FrameKind.CANCEL, self._number))
        else:
            self._socket.shut_down()
        # The caller's thread, if it waits in a read, wakes by the answer to the cancel.
        if not self._using.acquire(timeout=limit_s):
            self._socket.shut_down()
            self._using.acquire()
        try:
            if self._phase is not _Phase.SENT:
                return []
            self._hear_out(until_s)
            self._phase = _Phase.IDLE
            frames, self._frames = self._frames, []
            return frames
        finally:
            self._socket.close()
            self._lose(_CLOSED)
            self._using.release()

    def _hear_out(self, until_s: float) -> None:
        """Read up to the final answer."""
        if self._received and not any(map(_is_final, self._frames)):
            # From its first byte: the caller may have been interrupted in the middle of the parser.
            received, self._reader, self._frames = b"".join(self._received), FrameReader(LONGEST_FRAME), []
            self._received = [received]
            self._take_received()
        while not any(map(_is_final, self._frames)) and self._end is None and (left_s := until_s - steady_s()) > 0:
            self._receive(left_s)

    def close(self) -> None:
        self._lose(_CLOSED)
        if self._using.acquire(blocking=False):
            self._socket.close()
            self._using.release()
        else:
            # Its caller waits in it: it wakes, finds it closed, and closes it.
            self._socket.shut_down()


def _is_final(answer: Answer) -> bool:
    return answer[0] in (RESULT, ERROR)


def make_socket_pool(
    address: Address, tls: ssl.SSLContext | None, size: int, greeting: Greeting
) -> SocketPool[FramedSocketConnection]:
    """Return the connections of a client whose calls are made by threads."""

    def make(sock: socket.socket, timeout_s: float) -> FramedSocketConnection:
        connection = FramedSocketConnection(sock, greeting, timeout_s)
        if greeting.upgrade:
            connection.upgrade(timeout_s)
        return connection

    return SocketPool(make, address, tls, size)
