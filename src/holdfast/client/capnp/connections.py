"""The connections of a client: at first one, more under load, and one again afterwards.

Over one connection both sides work in turns, because calls that return together are followed by calls that are sent
together. With several connections, the work of one side fills the pauses of the other.
"""

import asyncio

from holdfast.client.capnp.connection import CapnpClientConnection
from holdfast.client.remote.settings import RemoteSettings

MAX_CONNECTIONS = 4
# Open calls on each connection before another connection is made.
CALLS_PER_CONNECTION = 16
# A connection beside the first is closed once it has carried no call for this long.
IDLE_S = 30.0


class CapnpClientConnections:
    """The connections of a client on an event loop."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._url = url
        self._settings = settings
        self.idle_s = IDLE_S
        self._connections = [CapnpClientConnection(url, settings)]
        # The timers of idle connections, and the tasks that close connections.
        self._idle: dict[CapnpClientConnection, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def take(self) -> CapnpClientConnection:
        """Return a connection for one more call or upload, which `give_back` ends.

        Take the first connection with few calls, else a new one, else the one with the fewest calls.
        """
        connection = self._choose()
        connection.open_calls += 1
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()
        return connection

    def _choose(self) -> CapnpClientConnection:
        for connection in self._connections:
            if connection.open_calls < CALLS_PER_CONNECTION:
                return connection
        if len(self._connections) < MAX_CONNECTIONS:
            self._connections.append(CapnpClientConnection(self._url, self._settings))
            return self._connections[-1]
        return min(self._connections, key=lambda connection: connection.open_calls)

    def give_back(self, connection: CapnpClientConnection) -> None:
        """Note that a call or an upload on this connection has ended. Close the connection if it is not used again."""
        connection.open_calls -= 1
        if not connection.open_calls and connection in self._connections[1:]:
            loop = asyncio.get_running_loop()
            self._idle[connection] = loop.call_later(self.idle_s, self._close_idle, connection)

    def _close_idle(self, connection: CapnpClientConnection) -> None:
        del self._idle[connection]
        self._connections.remove(connection)
        closing = asyncio.ensure_future(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        for connection in self._connections:
            await connection.close()
        if self._closing:
            await asyncio.wait(set(self._closing))
