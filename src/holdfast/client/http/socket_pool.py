"""Blocking connections that are kept open between calls, for all calling threads."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client.http.pool import CONNECT_S, IDLE_S, watch_peer
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address
from holdfast.clock import steady_s

# The sizes of the reads of one call to `map(sock.recv, …)`. The system maps a larger buffer again for each read, which
# costs more than the read.
ONE_READ = (64 << 10,)
# A connection that returned a response this recently is taken without asking the system whether it has ended since. A
# server that closes connections says so in their last responses.
_QUIET_S = 0.001


class Pooled(Protocol):
    """A connection that the calling threads use one after another."""

    is_reused: bool
    idle_since: float

    @property
    def is_free(self) -> bool:
        """True if another call can be sent."""

    def is_readable(self) -> bool:
        """Return whether an idle connection has unread bytes, which most likely means that it has ended."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class SocketPool(Generic[C]):
    """The connections of a client in threads. The interface is `AnyPool` in `calls.py`."""

    def __init__(
        self, make: Callable[[socket.socket, float], C], address: Address, tls: ssl.SSLContext | None, size: int
    ) -> None:
        """`make` makes a connection from a socket and the seconds that the network may take to accept data."""
        self._make = make
        self._address = address
        self._tls = tls
        self._size = size
        self._idle: list[C] = []
        # The open connections, idle or in use, which `close` closes. A detached connection is not among them.
        self._all: set[C] = set()
        # The number of short calls that have a connection or are making one.
        self._short = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        self._is_closed = False

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> C:
        with self._lock:
            if not is_long:
                while self._short >= self._size and not self._is_closed:
                    self._wait_for_room()
                self._short += 1
            if self._idle and not is_fresh and (connection := self._take_idle(steady_s())) is not None:
                return connection
        try:
            connection = self._connect(timeout_s)
        except BaseException:
            self._leave(None, is_long)
            raise
        with self._lock:
            self._all.add(connection)
            if self._is_closed:  # the client was closed while the connection was made
                connection.close()
        return connection

    def put_back(self, connection: C, *, is_long: bool) -> None:
        with self._lock:
            if not is_long:
                self._short -= 1
                if self._waiting:
                    self._room.notify()
            if connection.is_free and not self._is_closed and len(self._idle) < self._size:
                connection.is_reused = True
                connection.idle_since = steady_s()
                self._idle.append(connection)
                return
            self._all.discard(connection)
        connection.close()

    def detach(self, connection: C, *, is_long: bool) -> None:
        self._leave(connection, is_long)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = list(self._all)
            self._all.clear()
            self._idle.clear()
            self._room.notify_all()
        for connection in connections:
            connection.close()

    def _wait_for_room(self) -> None:
        self._waiting += 1
        try:
            self._room.wait()
        finally:
            self._waiting -= 1

    def _leave(self, connection: C | None, is_long: bool) -> None:
        with self._lock:
            if connection is not None:
                self._all.discard(connection)
            if not is_long:
                self._short -= 1
                if self._waiting:
                    self._room.notify()

    def _take_idle(self, now_s: float) -> C | None:
        """Return the idle connection that was used last. The caller holds the lock."""
        idle = self._idle
        # Under less load, the other connections age and are closed here.
        while idle and idle[0].idle_since < now_s - IDLE_S:
            self._drop(idle.pop(0))
        while idle:
            connection = idle.pop()
            if now_s - connection.idle_since < _QUIET_S or not connection.is_readable():
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: C) -> None:
        self._all.discard(connection)
        connection.close()

    def _connect(self, timeout_s: float) -> C:
        if self._is_closed:
            raise Lost("this client is closed", was_sent=False)
        address, limit_s = self._address, min(timeout_s, CONNECT_S)
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((address.host, address.port), limit_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch_peer(sock)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
            connection, sock = self._make(sock, timeout_s), None
            return connection
        except TimeoutError:
            raise Lost("the connection was not accepted in time", was_sent=False, is_timeout=True) from None
        except ssl.SSLCertVerificationError as error:
            raise Lost(f"its certificate is not trusted ({error.verify_message})", was_sent=False) from None
        except OSError as error:
            raise Lost(error.strerror or str(error), was_sent=False) from None
        finally:
            if sock is not None:
                sock.close()


def shut_down(sock: socket.socket, how: int) -> None:
    """Shut down a socket, or one half of it, to wake the thread that reads or sends."""
    with suppress(OSError):  # it is disconnected or closed
        # The method of a TLS socket would unwrap the connection while another thread reads it.
        socket.socket.shutdown(sock, how)


def pack_timeout(seconds: float) -> bytes:
    """Return seconds as the value of the socket options SO_RCVTIMEO and SO_SNDTIMEO; 0 for no timeout."""
    whole = int(seconds)
    # A positive timeout below 1 µs must not become 0, which means no timeout.
    micros = max(int((seconds - whole) * 1_000_000), 0 if whole or not seconds else 1)
    packed: Any = struct.pack("@ll", whole, micros)
    return bytes(packed)
