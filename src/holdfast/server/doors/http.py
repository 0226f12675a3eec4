"""The HTTP server: sockets that listen, and the end of their connections."""

import asyncio
import socket
import ssl

from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.service.limits.request_turns import RequestTurns

_BACKLOG = 2_048
# Callers in the middle of asking again hear that the server is closing, instead of finding the connection closed.
_LINGER_S = 0.2


class HttpServer:
    """Leaves signals alone: whoever runs it begins its end."""

    def __init__(
        self,
        door: HttpDoor,
        tls: ssl.SSLContext | None,
        turns: RequestTurns | None = None,
        upgrade: Upgrade | None = None,
    ) -> None:
        self.connections = HttpConnections(door, door.hot_calls, turns=turns, upgrade=upgrade)
        self._tls = tls
        self._listening: list[asyncio.Server] = []

    async def start(self, sockets: list[socket.socket]) -> None:
        """Listen on sockets that are bound. Raise `OSError` if one cannot."""
        loop = asyncio.get_running_loop()
        for each in sockets:
            server = await loop.create_server(self.connections.make, sock=each, ssl=self._tls, backlog=_BACKLOG)
            self._listening.append(server)

    async def close(self, deadline: float, *, at_least_s: float) -> int:
        """Take no more connections, and end those there are.

        Return how many had to be cut: their callers do not read.
        """
        loop = asyncio.get_running_loop()
        self.stop_listening()
        await self.connections.emptied(min(_LINGER_S, deadline - loop.time()))
        return await self.connections.close(max(deadline - loop.time(), at_least_s))

    def stop_listening(self) -> None:
        for each in self._listening:
            each.close()
