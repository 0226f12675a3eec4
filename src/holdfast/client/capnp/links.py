"""The connections to a server: one, and more once that has much to carry.

Over one connection both sides work in turns: what is answered together is asked for anew together, and the server waits
meanwhile. Over several one side's work fills the other's pauses.
"""

from holdfast.client.capnp.link import CapnpClientConnection
from holdfast.client.remote.settings import RemoteSettings

MOST = 4
# Calls under way on each connection before there is another.
FEW = 16


class CapnpClientConnections:
    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._url = url
        self._settings = settings
        self._links = [CapnpClientConnection(url, settings)]

    def choose(self) -> CapnpClientConnection:
        """The first that carries little, else the one that carries least."""
        for link in self._links:
            if link.under_way < FEW:
                return link
        if len(self._links) < MOST:
            self._links.append(CapnpClientConnection(self._url, self._settings))
            return self._links[-1]
        return min(self._links, key=lambda link: link.under_way)

    async def close(self) -> None:
        for link in self._links:
            await link.close()
