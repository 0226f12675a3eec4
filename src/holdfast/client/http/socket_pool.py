"""Blocking connections kept open between calls, for whichever thread calls next."""

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.client.http.pool import CONNECT_S, IDLE_S, watch_peer
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address
from holdfast.clock import steady_s


class Pooled(Protocol):
    """A connection that calling threads take in turns."""

    is_reused: bool
    idle_since: float

    @property
    def is_free(self) -> bool:
        """Whether another call can be sent."""

    def is_readable(self) -> bool:
        """Whether an idle connection has something to say that nobody has heard yet: its end, most likely."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class SocketPool(Generic[C]):
    """The same as `Pool`, for threads."""

    def __init__(
        self, make: Callable[[socket.socket, float], C], address: Address, tls: ssl.SSLContext | None, size: int
    ) -> None:
        """`make` makes a connection of a socket, given the seconds that the network has to take what is sent."""
        self._make = make
        self._address = address
        self._tls = tls
        self._size = size
        self._idle: list[C] = []
        # The open connections, idle or in use, for `close`. A connection whose caller left is not among them.
        self._all: set[C] = set()
        # Calls that are answered at once and have a connection, or are making one.
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
            if self._idle and not is_fresh and (connection := self._take_idle()) is not None:
                return connection
        try:
            connection = self._connect(timeout_s)
        except BaseException:
            self._leave(None, is_long)
            raise
        with self._lock:
            self._all.add(connection)
            if self._is_closed:  # while it was made
                connection.close()
        return connection

    def put_back(self, connection: C, *, is_long: bool) -> None:
        with self._lock:
            if not is_long:
                self._make_room()
            if connection.is_free and not self._is_closed and len(self._idle) < self._size:
                connection.is_reused = True
                connection.idle_since = steady_s()
                self._idle.append(connection)
                return
            self._all.discard(connection)
        connection.close()

    def let_go(self, connection: C, *, is_long: bool) -> None:
        """Its caller left: whoever hears out its answer closes it."""
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
                self._make_room()

    def _make_room(self) -> None:
        self._short -= 1
        if self._waiting:
            self._room.notify()

    def _take_idle(self) -> C | None:
        """Return the idle connection that was used last. Its caller holds the lock."""
        idle, oldest = self._idle, steady_s() - IDLE_S
        # Under less load the others grow old and are closed here.
        while idle and idle[0].idle_since < oldest:
            self._drop(idle.pop(0))
        while idle:
            connection = idle.pop()
            if connection.is_free and not connection.is_readable():
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
