"""CapnpDoor: every connection there is, and what they share."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from holdfast.doors.capnp.connection import CapnpConnection
from holdfast.doors.capnp.methods import Queues
from holdfast.doors.identity import Identity, Open, PeerCertificate
from holdfast.service.access import ANYONE, Caller
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.observer import CallObserver
from holdfast.telemetry.trace import Tracing
from holdfast.wire.capnp.schema import kj_loop
from holdfast.wire.capnp.stream import Stream

_MOST_SESSIONS = 10_000
_BACKLOG = 2_048


class CapnpDoor:
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
        self.connections: set[CapnpConnection] = set()
        # Of one message: room for the largest payload, or for a large batch of small ones.
        self.max_bytes = max(16 << 20, max_payload + (1 << 20))
        # A message that has begun must go on arriving.
        self.patience_s = 10.0
        self._identity = identity
        # Of a server that asks nobody who they are.
        self.anyone: Session | None = open_session(ANYONE) if isinstance(identity, Open) else None
        self._open_session = open_session
        self._sessions: dict[Caller, Session] = {}
        self._drain = drain
        self._stack = AsyncExitStack()
        self._servers: list[asyncio.Server] = []

    @property
    def is_draining(self) -> bool:
        return self._drain.is_draining

    async def session_of(self, headers: Mapping[bytes, bytes], peer: PeerCertificate | None) -> Session:
        """Asked for each call: a token runs out on a connection, too."""
        caller = await self._identity.caller_of(headers, peer)
        session = self._sessions.get(caller)
        if session is None:
            if len(self._sessions) >= _MOST_SESSIONS:
                self._sessions.clear()
            session = self._sessions[caller] = self._open_session(caller)
        return session

    # --- From its start to its end -----------------------------------------------------------------------------

    async def start(self, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Listen on sockets that are bound."""
        await self._stack.enter_async_context(kj_loop())
        loop = asyncio.get_running_loop()
        for each in sockets:
            self._servers.append(await loop.create_server(self._connect, sock=each, ssl=tls, backlog=_BACKLOG))

    def _connect(self) -> Stream:
        return CapnpConnection(self, Queues).stream

    def in_hand(self) -> "set[asyncio.Future[Any]]":
        """The calls that are not answered yet."""
        return {task for connection in self.connections for task in connection.in_hand()}

    def describe_calls(self) -> str:
        """Return an empty text: calls of this door have no names that could be shown."""
        return ""

    def begin_drain(self) -> None:
        """Do nothing: each new call is refused, and its caller learns of the drain by that."""

    def stop_listening(self) -> None:
        for server in self._servers:
            server.close()

    def cut_off(self) -> None:
        for connection in list(self.connections):
            connection.cut_off(None)

    async def close(self, timeout_s: float) -> int:
        """An end to every connection, once its answers have left. How many had to be cut: their callers do not read."""
        self.stop_listening()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for connection in list(self.connections):
            connection.close()
        while self.connections and loop.time() < deadline:  # noqa: ASYNC110  # they end one by one, and tell the set
            await asyncio.sleep(0.01)
        unread = len(self.connections)
        self.cut_off()
        await self._stack.aclose()
        return unread
