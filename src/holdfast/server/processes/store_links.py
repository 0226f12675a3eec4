"""The links in the store process: a framed door whose callers are the door processes of this server."""

import hmac
import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.doors.framed.call import FramedCall, Handler
from holdfast.doors.framed.connection import FramedConnection, RefusedFrame
from holdfast.doors.framed.door import FramedDoor
from holdfast.doors.framed.reading import NotMessagePack
from holdfast.doors.identity import Open
from holdfast.model.errors import Unavailable
from holdfast.model.names import QueueRef
from holdfast.server.doors.backend import Backend
from holdfast.server.processes.link_handlers import handler_of_link
from holdfast.server.processes.peers import DoorPeer
from holdfast.server.processes.reports import ServerReports
from holdfast.service.access import Caller
from holdfast.service.drain import Drain
from holdfast.service.session import Session
from holdfast.telemetry.trace import Tracing
from holdfast.wire.framed.calls import CallFrame
from holdfast.wire.framed.links import read_link_call, split_call

if TYPE_CHECKING:
    from holdfast.server.store_processes.division import Division

# Larger than any call of a door process, which has checked the size of each message.
_MAX_FRAME_BYTES = 1 << 30
_MAX_CALLERS = 10_000
# No limit here, because a link carries the waiting claims of many callers. The dispatcher limits their number.
_MAX_CALLS = 1 << 30

_caller = msgspec.msgpack.Decoder(Caller)


class StoreLinks(FramedDoor):
    """The door for all links of a store process."""

    def __init__(self, backend: Backend, reports: ServerReports, division: "Division | None" = None) -> None:
        """`division` is this process's part in a store that several processes share."""
        super().__init__(
            identity=Open(),
            open_session=backend.open_session,
            # Has no effect: the limits are replaced below.
            max_payload=0,
            observer=_Unmeasured(),
            tracing=Tracing(),
            # Never set, because the door processes end before the store process drains.
            drain=Drain(),
        )
        self.max_frame_bytes = _MAX_FRAME_BYTES
        self.max_bytes_in_hand = 2 * _MAX_FRAME_BYTES
        self.max_calls = _MAX_CALLS
        self.backend = backend
        self.reports = reports
        self._division = division
        self._open_session_of = backend.open_session
        self._peers: set[DoorPeer] = set()
        # By the encoded caller, because decoding it for each call would cost more than everything else here.
        self._callers: dict[bytes, Session] = {}

    async def listen(self, path: str) -> None:
        """Listen on a Unix socket that only this user can reach. Raise `Unavailable` if that is not possible."""
        try:
            self._servers.append(await self.loop.create_unix_server(self.connect, path))
        except OSError as error:  # for example, a path of more than about 100 bytes
            raise Unavailable(
                f"the socket {path} for the door processes cannot be made: {error}; set TMPDIR to another directory"
            ) from None
        os.chmod(path, 0o600)

    def connect(self) -> FramedConnection:
        return _LinkConnection(self)

    def admit(self, peer: DoorPeer) -> None:
        """Accept connections of this door process from now on."""
        self._peers.add(peer)

    async def dismiss(self, peer: DoorPeer) -> None:
        """End the streams of a door process that has ended. Its callers' leases stay."""
        self._peers.discard(peer)
        await peer.close()

    def peer_of_credential(self, credential: bytes | None) -> DoorPeer | None:
        """Return the door process whose secret was given as the token of a HELLO."""
        for peer in self._peers:
            if credential is not None and hmac.compare_digest(credential, b"Bearer " + peer.secret.encode()):
                return peer
        return None

    def require_division(self) -> "Division":
        """Return this process's part in a divided store."""
        assert self._division is not None  # no other process of this server asks for it
        return self._division

    def lost(self, peer: DoorPeer) -> None:
        """Learn that a connection of a peer is lost. Its supervisor says when the peer itself is gone."""

    def session_of_caller(self, caller: bytes) -> Session:
        """Return the session of an encoded caller."""
        session = self._callers.get(caller)
        if session is None:
            if len(self._callers) >= _MAX_CALLERS:
                self._callers.clear()
            session = self._callers[caller] = self._open_session_of(_caller.decode(caller))
        return session


class _Unmeasured:
    """An observer that counts nothing, because the door processes count the same calls."""

    def request(self, operation: str, queue: QueueRef | None, outcome: str, seconds: float) -> None:
        pass


class _LinkConnection(FramedConnection):
    door: StoreLinks

    def __init__(self, door: StoreLinks) -> None:
        super().__init__(door)
        self.peer: DoorPeer | None = None

    def greet(self, hello: bytes) -> None:
        super().greet(hello)
        self.peer = self.door.peer_of_credential(self.credential.key)
        if self.peer is None:
            raise RefusedFrame("this socket is only for the door processes of this server")

    def make_call(self, number: int, body: bytes) -> FramedCall:
        assert self.peer is not None  # no CALL is read before HELLO
        caller, call = split_call(body)
        return LinkCall(self, self.peer, number, len(body), caller, call)

    def read_call(self, call: FramedCall, body: bytes) -> tuple[CallFrame, Handler, bool]:
        assert isinstance(call, LinkCall)
        try:
            given = read_link_call(call.frame)
        except msgspec.DecodeError as error:
            raise NotMessagePack(str(error)) from None
        return given, *handler_of_link(given)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.peer is not None:
            self.door.lost(self.peer)

    def note_tenant(self, tenant: str) -> None:
        """Do nothing: tenants take turns in the door processes."""


class LinkCall(FramedCall):
    """A call that a door process makes for one of its callers."""

    __slots__ = ("door", "frame", "peer")

    def __init__(
        self, connection: _LinkConnection, peer: DoorPeer, number: int, size: int, caller: bytes, frame: bytes
    ) -> None:
        super().__init__(connection, number, size)
        self.peer = peer
        self.frame = frame
        self.door = connection.door
        self.session = connection.door.session_of_caller(caller)

    async def _identify(self) -> Session:
        return self.session
