"""One connection: its stream, who is on it, and what of theirs is under way."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import capnp

from holdfast.doors.identity import PeerCertificate, peer_of
from holdfast.model.answers import Delivery
from holdfast.service.limits.request_turns import TurnTaken
from holdfast.service.uploads import PayloadStream
from holdfast.telemetry.log import printable
from holdfast.wire.capnp.frames import Frames, Malformed
from holdfast.wire.capnp.stream import Stream

if TYPE_CHECKING:
    from holdfast.doors.capnp.door import CapnpDoor

_log = logging.getLogger("holdfast")

# No message of ours is deeper, in the envelopes of the protocol.
_NESTING = 32
# Room to read the largest message twice; one whose pointers lead to the same bytes again and again is not read on.
_TRAVERSALS = 2
# Calls of one connection whose answers its caller has not let go of.
MAX_UNFINISHED = 4_096
# Bytes that one turn hands to the library while tenants take turns, and of a call with hardly anything in it.
_TURN_BYTES = 4_096
_SMALL_CALL_BYTES = 256


def first_line(error: BaseException) -> str:
    """Of an error of the library's, without the addresses that it writes behind it."""
    return str(error).partition("\n")[0][:200]


class CapnpConnection:
    """`bootstrap` makes the capability that its caller talks to."""

    def __init__(self, door: "CapnpDoor", bootstrap: Callable[["CapnpConnection"], Any]) -> None:
        self.door = door
        self.headers: Mapping[bytes, bytes] = {}
        self.peer: PeerCertificate | None = None
        # Claims that wait, by their tickets, and uploads that have not ended.
        self.tickets: dict[int, asyncio.Future[list[Delivery]]] = {}
        self.uploads: set[PayloadStream] = set()
        self._bootstrap = bootstrap
        self._calls: set[asyncio.Task[Any]] = set()
        self._rpc: Any = None
        self._is_closing = False
        frames = Frames(door.max_bytes, MAX_UNFINISHED)
        self.stream = Stream(frames, self._begin, self._end, patience_s=door.patience_s, hold_back=self._hold_back)
        self._turns = door.turns
        # Bytes that were read and wait for the connection's turn, and the name under which it waits.
        self._held = b""
        self._turns_as = door.turns.name_connection()

    def take_in_hand(self, task: "asyncio.Task[Any]") -> None:
        self._calls.add(task)

    def is_done_with(self, task: "asyncio.Task[Any]") -> None:
        self._calls.discard(task)

    def in_hand(self) -> "set[asyncio.Task[Any]]":
        return set(self._calls)

    def authenticate(self, token: str) -> None:
        self.headers = {b"authorization": b"Bearer " + token.encode("latin-1", "replace")} if token else {}

    def note_tenant(self, tenant: str) -> None:
        """Learn whose call is being carried out."""
        if tenant != self._turns.tenant:
            self._turns.note(tenant)
        self._turns_as = tenant

    def _hold_back(self, data: bytes) -> bool:
        """Keep what was read, unless it may go on at once."""
        if not self._held:
            if not self._turns.is_contended or (len(data) <= _TURN_BYTES and self._turns.may_go_on(self._turns_as)):
                return False
            self._turns.wait(self._turns_as, self)
        else:
            self.stream.hold_socket(is_held=True)  # one read ahead is enough: the rest waits in the socket
        self._held += data
        return True

    def take_turn(self) -> TurnTaken:
        """Hand some of the bytes that are held back to the library, which begins the calls that are whole by then."""
        held = self._held
        if not held:  # the connection was lost
            return TurnTaken(0, 0)
        self._held = held[_TURN_BYTES:]
        self.stream.take(held[:_TURN_BYTES])
        if self._held:
            self._turns.wait(self._turns_as, self)
        else:
            self.stream.hold_socket(is_held=False)
        # There is no telling how many calls are in it without reading it: they are counted as small ones.
        size = min(_TURN_BYTES, len(held))
        return TurnTaken(1 + size // _SMALL_CALL_BYTES, size)

    def cut_off(self, why: Exception | None) -> None:
        self.stream.cut_off(why)

    def close(self) -> None:
        self._is_closing = True
        self.stream.close()

    def _begin(self, stream: Stream) -> None:
        self.door.connections.add(self)
        self.peer = peer_of(stream.peer())
        self._rpc = capnp.TwoPartyServer(
            stream.io,
            bootstrap=self._bootstrap(self),
            traversal_limit_in_words=self.door.max_bytes * _TRAVERSALS // 8,
            nesting_limit=_NESTING,
        )
        gone = self._rpc.on_disconnect()
        gone.add_done_callback(self._disconnected)

    def _disconnected(self, gone: "asyncio.Future[None]") -> None:
        """The library is done with it: because it is gone, or because what came made no sense."""
        error = None if gone.cancelled() else gone.exception()
        self._rpc = None
        if not self.stream.is_over and not self._is_closing:
            self.stream.cut_off(Malformed("no message of Cap'n Proto RPC" if error is None else first_line(error)))

    def _end(self, why: Exception | None) -> None:
        self._held = b""
        self.door.connections.discard(self)
        for upload in self.uploads:
            upload.close()
        self.uploads.clear()
        if isinstance(why, Malformed):
            address = self.stream.peer().get_extra_info("peername")
            _log.warning(
                "a connection was closed: it sent what is not Cap'n Proto RPC, or too much of it",
                extra={"reason": printable(str(why)), "address": str(address)},
            )
