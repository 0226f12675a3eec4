"""The connections of a client on an event loop: one, and more once it carries much."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.client.framed.call import LoopOpenCall
from holdfast.client.framed.connection import FramedClientConnection
from holdfast.client.framed.greeting import Greeting
from holdfast.client.http.pool import CONNECT_S, watch_peer
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address

# Over one connection both sides work in turns: what is answered together is asked for anew together. Over several the
# work of one side fills the pauses of the other; each costs both sides reads and writes of its own.
_MOST: Final = 4
# Calls under way on a connection before there is another.
_FEW: Final = 32


class FramedClientConnections:
    """`answer.Calling`, on a loop."""

    # Connections that are made before calls share them. One keeps the order of calls.
    most = _MOST

    def __init__(self, address: Address, tls: ssl.SSLContext | None, greeting: Greeting) -> None:
        self._address = address
        self._tls = tls
        self._greeting = greeting
        self._loop = asyncio.get_running_loop()
        # New calls go to these. Connections that the server is leaving have only their own calls.
        self._links: list[FramedClientConnection] = []
        self._open: set[FramedClientConnection] = set()
        self._connecting: asyncio.Task[FramedClientConnection] | None = None
        self._is_closed = False

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> LoopOpenCall:
        connection = self._choose()
        if connection is not None and connection.has_unread():
            # The loop hears of its end behind this task: nothing is to be sent into a connection that is gone.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            connection = self._choose()
        while connection is None:
            made = await self._another(timeout_s)
            # Chosen anew, because others waited for the same. One that ended at once says why.
            connection = self._choose() if made.is_usable else made
        return LoopOpenCall(connection)

    def put_back(self, call: LoopOpenCall, *, is_long: bool) -> None:
        call.give_up(None)

    def let_go(self, call: LoopOpenCall, *, is_long: bool) -> None:
        """Do nothing: calls are not counted here."""

    def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._open):
            connection.close()

    def _choose(self) -> FramedClientConnection | None:
        """Return the first connection that carries little, else the one that carries least; None to make another."""
        best: FramedClientConnection | None = None
        for connection in self._links:
            if connection.is_usable:
                if connection.under_way < _FEW or self.most == 1:
                    return connection
                if best is None or connection.under_way < best.under_way:
                    best = connection
        if best is None or len(self._links) < self.most:
            return None
        most = best.most_calls
        return best if most is None or best.under_way < most else None

    async def _another(self, timeout_s: float) -> FramedClientConnection:
        """Return another connection, made once for all who need one now."""
        if self._is_closed:
            raise Lost("this client is closed", was_sent=False)
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = self._loop.create_task(self._connect(timeout_s))
            connecting.add_done_callback(self._connected)
        try:
            return await asyncio.shield(connecting)
        except Lost as lost:
            # One of its own for each caller: a raised error collects tracebacks.
            raise Lost(lost.reason, was_sent=False, is_timeout=lost.is_timeout) from None
        except asyncio.CancelledError:
            if connecting.cancelled():  # by closing, and not the caller
                raise Lost("this client is closed", was_sent=False) from None
            raise

    def _connected(self, connecting: "asyncio.Task[FramedClientConnection]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # its callers raise it, if there are any left

    async def _connect(self, timeout_s: float) -> FramedClientConnection:
        connection = None
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S)):
                connection = await self.dial(lambda: FramedClientConnection(self._greeting, self._ended))
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
        self._links = [each for each in self._links if each.is_usable]
        self._links.append(connection)
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
