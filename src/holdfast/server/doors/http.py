"""The HTTP server: its listening sockets, and the end of its connections."""

import asyncio
import socket
import ssl

from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.service.limits.request_turns import RequestTurns

_BACKLOG = 2_048
# A caller that is about to send its next request gets a response that the server is closing, instead of a closed
# connection.
_LINGER_S = 0.2


class HttpServer:
    """An HTTP server on bound sockets. It handles no signals."""

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
        """Listen on sockets that are already bound. Raise `OSError` if that fails."""
        loop = asyncio.get_running_loop()
        for each in sockets:
            server = await loop.create_server(self.connections.make, sock=each, ssl=self._tls, backlog=_BACKLOG)
            self._listening.append(server)

    async def close(self, deadline: float, *, at_least_s: float) -> int:
        """Stop listening, and close the connections. Return the number of aborted ones: their callers did not read."""
        loop = asyncio.get_running_loop()
        self.stop_listening()
        await self.connections.emptied(min(_LINGER_S, deadline - loop.time()))
        return await self.connections.close(max(deadline - loop.time(), at_least_s))

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for each in self._listening:
            each.close()
