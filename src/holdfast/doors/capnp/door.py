"""The Cap'n Proto door: its listening sockets, its connections, and the state that they share."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from holdfast.doors.capnp.connection import CapnpConnection
from holdfast.doors.capnp.methods import Queues
from holdfast.doors.identity import CallerSessions, Identity
from holdfast.doors.sockets.open_connections import OpenConnections
from holdfast.service.access import Caller
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.observer import CallObserver
from holdfast.telemetry.trace import Tracing
from holdfast.wire.capnp.schema import kj_loop
from holdfast.wire.capnp.stream import Stream

_BACKLOG = 2_048


class CapnpDoor:
    """The server of Cap'n Proto RPC."""

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
        self.turns = turns or RequestTurns(lambda tenant: 1)
        self.observer = observer
        self.tracing = tracing
        self.names = QueueRefs()
        self.connections: OpenConnections[CapnpConnection] = OpenConnections()
        # The limit of one message. It allows the largest payload, and a large batch of small ones.
        self.max_bytes = max(16 << 20, max_payload + (1 << 20))
        # The limit of one answer. A page of messages with payloads as JSON is larger than the payloads.
        self.max_answer_bytes = 3 * self.max_bytes
        # The limit of all answers of a connection that its caller has not read; there may be one more.
        self.max_unread_bytes = 2 * self.max_bytes
        # The time over which the rate of an incomplete message is measured.
        self.patience_s = 10.0
        self.sessions = CallerSessions(identity, open_session)
        self._drain = drain
        self._stack = AsyncExitStack()
        self._servers: list[asyncio.Server] = []

    @property
    def is_draining(self) -> bool:
        """Return whether the server is shutting down."""
        return self._drain.is_draining

    # --- Start and shutdown ------------------------------------------------------------------------------------

    async def start(self, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Listen on sockets that are already bound."""
        await self._stack.enter_async_context(kj_loop())
        loop = asyncio.get_running_loop()
        for each in sockets:
            self._servers.append(await loop.create_server(self._connect, sock=each, ssl=tls, backlog=_BACKLOG))

    def _connect(self) -> Stream:
        return CapnpConnection(self, Queues).stream

    def in_hand(self) -> "set[asyncio.Future[Any]]":
        """Return the calls that have not ended."""
        return {task for connection in self.connections for task in connection.in_hand()}

    def describe_calls(self) -> str:
        """Return an empty text: calls of this door have no names that could be shown."""
        return ""

    def begin_drain(self) -> None:
        """Do nothing: each new call is refused, and its caller learns of the drain by that."""

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def cut_off(self) -> None:
        """Abort all connections."""
        for connection in list(self.connections):
            connection.cut_off(None)

    async def close(self, timeout_s: float) -> int:
        """Close every connection once its responses have been sent, and abort the remaining ones after `timeout_s`.

        Return the number of aborted connections: their callers did not read.
        """
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()
        await self.connections.wait_until_empty(timeout_s)
        unread = len(self.connections)
        self.cut_off()
        await self._stack.aclose()
        return unread
