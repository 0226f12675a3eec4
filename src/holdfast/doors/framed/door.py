"""The framed door: its connections, and the state that they share."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version

from holdfast.doors.framed.connection import FramedConnection
from holdfast.doors.framed.patience import FRAME_PATIENCE_S, KEEPALIVE_S
from holdfast.doors.framed.uploads import WINDOW_BYTES
from holdfast.doors.identity import CallerSessions, Identity
from holdfast.doors.sockets.open_connections import OpenConnections
from holdfast.service.access import Caller
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.observer import CallObserver
from holdfast.telemetry.trace import Tracing
from holdfast.wire.framed.greetings import VERSION, ServerHello, write_hello

MAX_CALLS = 4_096
_BACKLOG = 2_048


class FramedDoor:
    """The framed protocol on bound sockets, and on connections that HTTP hands over by an upgrade."""

    def __init__(
        self,
        *,
        identity: Identity,
        open_session: Callable[[Caller], Session],
        max_payload: int,
        observer: CallObserver,
        tracing: Tracing,
        drain: Drain,
        turns: RequestTurns | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns = turns or RequestTurns(lambda tenant: 1)
        self.observer = observer
        self.tracing = tracing
        self.names = QueueRefs()
        self.connections: OpenConnections[FramedConnection] = OpenConnections()
        # A frame may have the largest payload, or a large batch of small ones. A connection may hold two such frames in
        # memory; above that it is not read until some calls have ended.
        self.max_frame_bytes = max(16 << 20, max_payload + (1 << 20))
        self.max_bytes_in_hand = 2 * self.max_frame_bytes
        # The maximum number of open calls on one connection.
        self.max_calls = MAX_CALLS
        self.keepalive_s = KEEPALIVE_S
        self.patience_s = FRAME_PATIENCE_S
        # The body of the server's HELLO frame.
        self.hello = write_hello(
            ServerHello(
                version=VERSION,
                server_version=version("holdfast"),
                max_frame_bytes=self.max_frame_bytes,
                max_calls=self.max_calls,
                keepalive_ms=int(self.keepalive_s * 1_000),
                window_bytes=WINDOW_BYTES,
            )
        )
        self.sessions = CallerSessions(identity, open_session)
        self._drain = drain
        self._servers: list[asyncio.Server] = []
        self.is_closed = False

    @property
    def is_draining(self) -> bool:
        """Return whether the server is shutting down."""
        return self._drain.is_draining

    # --- Connections -----------------------------------------------------------------------------------------------

    async def start(self, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Listen on sockets that are already bound. Raise `OSError` if that fails."""
        for each in sockets:
            server = await self.loop.create_server(self.connect, sock=each, ssl=tls, backlog=_BACKLOG)
            self._servers.append(server)

    def connect(self) -> FramedConnection:
        """Return the protocol of a new connection."""
        return FramedConnection(self)

    # --- The end ---------------------------------------------------------------------------------------------------

    def in_hand(self) -> "set[asyncio.Future[None]]":
        """Return a future for each call that has not ended."""
        return {future for connection in self.connections for future in connection.in_hand()}

    def describe_calls(self) -> str:
        """Return the most frequent of the current calls with their numbers, for the log."""
        calls = Counter(call for connection in self.connections for call in connection.describe_calls())
        return ", ".join(f"{count} {call}" for call, count in calls.most_common(10))

    def begin_drain(self) -> None:
        """Ask callers to begin no more calls on their connections."""
        for connection in self.connections:
            connection.go_away()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def cut_off(self) -> None:
        """Abort all connections."""
        for connection in [*self.connections]:
            connection.abort()

    async def close(self, timeout_s: float) -> int:
        """Close each connection once its calls have ended, and abort the remaining ones after `timeout_s`.

        Return the number of aborted connections: their callers did not read.
        """
        self.stop_listening()
        self.is_closed = True
        for connection in [*self.connections]:
            connection.shut_down()
        await self.connections.wait_until_empty(timeout_s)
        unread = len(self.connections)
        self.cut_off()
        return unread
