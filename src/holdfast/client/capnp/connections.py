"""The connections of a client: at first one, and more under load.

Over one connection both sides work in turns, because calls that return together are followed by calls that are sent
together. With several connections, the work of one side fills the pauses of the other.
"""

from holdfast.client.capnp.connection import CapnpClientConnection
from holdfast.client.remote.settings import RemoteSettings

MAX_CONNECTIONS = 4
# Open calls on each connection before another connection is made.
CALLS_PER_CONNECTION = 16


class CapnpClientConnections:
    """The connections of a client on an event loop."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._url = url
        self._settings = settings
        self._connections = [CapnpClientConnection(url, settings)]

    def choose(self) -> CapnpClientConnection:
        """Return the first connection with few calls, else a new one, else the one with the fewest calls."""
        for connection in self._connections:
            if connection.open_calls < CALLS_PER_CONNECTION:
                return connection
        if len(self._connections) < MAX_CONNECTIONS:
            self._connections.append(CapnpClientConnection(self._url, self._settings))
            return self._connections[-1]
        return min(self._connections, key=lambda connection: connection.open_calls)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
