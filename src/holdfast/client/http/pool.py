"""Connections on an event loop that are kept open between calls."""

import asyncio
import contextlib
import socket
import ssl

from holdfast.client.http.connection import HttpClientConnection
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address

# A server closes a connection that was idle for 75 s, and common proxies after 60 s. The client closes it earlier, so
# that a call is rarely sent on a connection that is being closed.
IDLE_S = 30.0
CONNECT_S = 10.0

# With these settings, a peer that disappeared is noticed after about a minute.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class HttpPool:
    """The connections of a client on an event loop. The interface is `AnyPool` in `calls.py`."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, size: int) -> None:
        self._address = address
        self._tls = tls
        self._size = size
        self._idle: list[HttpClientConnection] = []
        self._busy: set[HttpClientConnection] = set()
        self._room = asyncio.Semaphore(size)
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    async def take(self, *, is_long: bool, timeout_s: float | None, is_fresh: bool = False) -> HttpClientConnection:
        if not is_long:
            await self._room.acquire()
        try:
            connection = (None if is_fresh else self._take_idle()) or await self._connect(timeout_s)
        except BaseException:
            if not is_long:
                self._room.release()
            raise
        self._busy.add(connection)
        if self._is_closed:  # the client was closed while the connection was made
            connection.close()
        return connection

    def put_back(self, connection: HttpClientConnection, *, is_long: bool) -> None:
        self._busy.discard(connection)
        if not is_long:
            self._room.release()
        if connection.is_free and not self._is_closed and len(self._idle) < self._size:
            connection.is_reused = True
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.close()

    def detach(self, connection: HttpClientConnection, *, is_long: bool) -> None:
        self._busy.discard(connection)
        if not is_long:
            self._room.release()

    def close(self) -> None:
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    def _take_idle(self) -> HttpClientConnection | None:
        oldest = self._loop.time() - IDLE_S
        # The connection used last is taken first. Under less load, the others age and are closed here.
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).close()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free and not connection.is_readable():
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float | None) -> HttpClientConnection:
        if self._is_closed:
            raise Lost("this client is closed", was_sent=False)
        address = self._address
        try:
            async with asyncio.timeout(min(timeout_s or CONNECT_S, CONNECT_S)):
                transport, connection = await self._loop.create_connection(
                    HttpClientConnection,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except TimeoutError:
            raise Lost("the connection was not accepted in time", was_sent=False, is_timeout=True) from None
        except ssl.SSLCertVerificationError as error:
            raise Lost(f"its certificate is not trusted ({error.verify_message})", was_sent=False) from None
        except OSError as error:
            raise Lost(error.strerror or str(error), was_sent=False) from None
        watch_peer(transport.get_extra_info("socket"))
        return connection


def watch_peer(sock: socket.socket | None) -> None:
    """Let the system notice that the peer of a socket has disappeared."""
    with contextlib.suppress(OSError, AttributeError):
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
