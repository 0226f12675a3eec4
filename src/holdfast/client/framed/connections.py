"""The connections of a client on an event loop: at first one, and more under load."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.client.framed.connection import FramedClientConnection
from holdfast.client.framed.handshake import Handshake
from holdfast.client.framed.loop_call import LoopOpenCall
from holdfast.client.http.pool import CONNECT_S, watch_peer
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address

# Over one connection both sides work in turns, because calls that return together are followed by calls that are sent
# together. With several connections, the work of one side fills the pauses of the other. Each connection costs both
# sides their own reads and writes.
_MAX_CONNECTIONS: Final = 4
# Open calls on each connection before another connection is made.
_CALLS_PER_CONNECTION: Final = 32


class FramedClientConnections:
    """The connections of a client on an event loop. The interface is `CallPool` in `open_call.py`."""

    # The most connections. A single one keeps the order of calls.
    max_connections = _MAX_CONNECTIONS

    def __init__(self, address: Address, tls: ssl.SSLContext | None, handshake: Handshake) -> None:
        self._address = address
        self._tls = tls
        self._handshake = handshake
        self._loop = asyncio.get_running_loop()
        # The connections for new calls. A connection that the server is closing keeps only its own calls.
        self._connections: list[FramedClientConnection] = []
        self._open: set[FramedClientConnection] = set()
        self._connecting: asyncio.Task[FramedClientConnection] | None = None
        self._is_closed = False

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> LoopOpenCall:
        connection = self._choose()
        if connection is not None and connection.has_unread():
            # Two passes of the loop let it notice the end of the connection, on which nothing must be sent then.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            connection = self._choose()
        while connection is None:
            made = await self._another(timeout_s)
            # Choose again, because other callers waited for the same connection. One that ended at once raises why.
            connection = self._choose() if made.is_usable else made
        return LoopOpenCall(connection)

    def put_back(self, call: LoopOpenCall, *, is_long: bool) -> None:
        call.abandon(None)

    def detach(self, call: LoopOpenCall, *, is_long: bool) -> None:
        """Do nothing, because calls are not counted here."""

    def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._open):
            connection.close()

    def _choose(self) -> FramedClientConnection | None:
        """Return the first connection with few calls, else the one with the fewest; None if another must be made."""
        best: FramedClientConnection | None = None
        for connection in self._connections:
            if connection.is_usable:
                if connection.open_calls < _CALLS_PER_CONNECTION or self.max_connections == 1:
                    return connection
                if best is None or connection.open_calls < best.open_calls:
                    best = connection
        if best is None or len(self._connections) < self.max_connections:
            return None
        most = best.max_calls
        return best if most is None or best.open_calls < most else None

    async def _another(self, timeout_s: float) -> FramedClientConnection:
        """Return a new connection, which is made once for all callers that need one now."""
        if self._is_closed:
            raise Lost("this client is closed", was_sent=False)
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = self._loop.create_task(self._connect(timeout_s))
            connecting.add_done_callback(self._connected)
        try:
            return await asyncio.shield(connecting)
        except Lost as lost:
            # Each caller gets its own error, because a raised error collects tracebacks.
            raise Lost(lost.reason, was_sent=False, is_timeout=lost.is_timeout) from None
        except asyncio.CancelledError:
            if connecting.cancelled():  # by `close`, and not by the caller
                raise Lost("this client is closed", was_sent=False) from None
            raise

    def _connected(self, connecting: "asyncio.Task[FramedClientConnection]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # retrieved, because perhaps no caller waits for it

    async def _connect(self, timeout_s: float) -> FramedClientConnection:
        connection = None
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S)):
                connection = await self.dial(lambda: FramedClientConnection(self._handshake, self._ended))
                self._open.add(connection)
                await connection.ready()
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise Lost("the connection was not accepted in time", was_sent=False, is_timeout=True) from None
        except ssl.SSLCertVerificationError as error:
            raise Lost(f"its certificate is not trusted ({error.verify_message})", was_sent=False) from None
        except OSError as error:
            raise Lost(error.strerror or str(error), was_sent=False) from None
        self._connections = [each for each in self._connections if each.is_usable]
        self._connections.append(connection)
        return connection

    async def dial(self, make: Callable[[], FramedClientConnection]) -> FramedClientConnection:
        """Connect to the server, and return the connection that `make` makes. Raise `OSError` if that fails."""
        address = self._address
        transport, connection = await self._loop.create_connection(
            make,
            address.host,
            address.port,
            ssl=self._tls,
            server_hostname=address.host if self._tls else None,
        )
        watch_peer(transport.get_extra_info("socket"))
        return connection

    def _ended(self, connection: FramedClientConnection) -> None:
        self._open.discard(connection)
