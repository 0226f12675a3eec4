"""Connections kept open between calls."""

import asyncio
import contextlib
import socket
import ssl

from holdfast.client.http.connection import HttpClientConnection
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address

# A server keeps an idle connection for 75 s, the usual proxies for 60: ours is closed before they close theirs, so that
# a call is hardly ever sent into a connection that is just being closed.
IDLE_S = 30.0
CONNECT_S = 10.0

# A peer that is gone without a word is noticed after about a minute.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class HttpPool:
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
        """A connection for one call, an idle one where there is one (and it need not be a fresh one). Calls that wait
        long do not count: however many of them there are, a verdict still finds its way."""
        if not is_long:
            await self._room.acquire()
        try:
            connection = (None if is_fresh else self._take_idle()) or await self._connect(timeout_s)
        except BaseException:
            if not is_long:
                self._room.release()
            raise
        self._busy.add(connection)
        if self._is_closed:  # while it was made
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

    def let_go(self, connection: HttpClientConnection, *, is_long: bool) -> None:
        """Its caller left: whoever hears out its answer closes it."""
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
        # The one used last comes first: under less load the others grow old and are closed here.
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
    with contextlib.suppress(OSError, AttributeError):
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
