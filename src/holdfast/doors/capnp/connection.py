"""One connection: its stream, its caller's credential, and its calls, waiting claims and uploads."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import capnp

from holdfast.doors.capnp.answer_room import AnswerRoom
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

# No valid message is nested deeper, including the protocol's envelopes.
_NESTING = 32
# Allows the largest message to be read twice. The limit stops messages whose pointers refer to the same bytes again and
# again.
_TRAVERSALS = 2
# The maximum number of calls of one connection whose responses its caller has not released.
MAX_UNFINISHED = 4_096
# The bytes that one turn passes to pycapnp while tenants take turns, and the bytes of a small call.
_TURN_BYTES = 4_096
_SMALL_CALL_BYTES = 256


def first_line(error: BaseException) -> str:
    """Return the first line of a pycapnp error. The lines after it hold memory addresses."""
    return str(error).partition("\n")[0][:200]


class CapnpConnection:
    """One connection. `bootstrap` makes the capability that its caller gets first."""

    def __init__(self, door: "CapnpDoor", bootstrap: Callable[["CapnpConnection"], Any]) -> None:
        self.door = door
        self.headers: Mapping[bytes, bytes] = {}
        self.peer: PeerCertificate | None = None
        # The waiting claims by their tickets, and the open uploads.
        self.tickets: dict[int, asyncio.Future[list[Delivery]]] = {}
        self.uploads: set[PayloadStream] = set()
        self._bootstrap = bootstrap
        self._calls: set[asyncio.Task[Any]] = set()
        self._rpc: Any = None
        self._is_closing = False
        frames = Frames(door.max_bytes, MAX_UNFINISHED)
        self.stream = Stream(frames, self._begin, self._end, patience_s=door.patience_s, hold_back=self._hold_back)
        self.room = AnswerRoom(door.max_unread_bytes, lambda: self.stream.unsent_bytes)
        self.stream.on_drained = self.room.wake
        self._turns = door.turns
        # Bytes that were read and wait for the connection's turn, and the name under which it waits.
        self._held = b""
        self._turns_as = door.turns.name_connection()

    def add_call(self, task: "asyncio.Task[Any]") -> None:
        """Note a call that has begun."""
        self._calls.add(task)

    def discard_call(self, task: "asyncio.Task[Any]") -> None:
        """Note that a call has ended."""
        self._calls.discard(task)

    def in_hand(self) -> "set[asyncio.Task[Any]]":
        """Return the calls that have not ended."""
        return set(self._calls)

    def authenticate(self, token: str) -> None:
        """Set the token of the calls from now on; empty for none."""
        self.headers = {b"authorization": b"Bearer " + token.encode("latin-1", "replace")} if token else {}

    def note_tenant(self, tenant: str) -> None:
        """Note the tenant of the current call, under which this connection waits for its next turn."""
        if tenant != self._turns.tenant:
            self._turns.note(tenant)
        self._turns_as = tenant

    def _hold_back(self, data: bytes) -> bool:
        """Keep received bytes for a turn and return True, unless they may be processed at once."""
        if not self._held:
            if not self._turns.is_contended or (len(data) <= _TURN_BYTES and self._turns.may_go_on(self._turns_as)):
                return False
            self._turns.wait(self._turns_as, self)
        else:
            self.stream.hold_socket(is_held=True)  # one read is enough to hold; the rest waits in the socket
        self._held += data
        return True

    def take_turn(self) -> TurnTaken:
        """Pass some of the held bytes to pycapnp, which begins the calls that are then complete."""
        held = self._held
        if not held:  # the connection was lost
            return TurnTaken(0, 0)
        self._held = held[_TURN_BYTES:]
        self.stream.take(held[:_TURN_BYTES])
        if self._held:
            self._turns.wait(self._turns_as, self)
        else:
            self.stream.hold_socket(is_held=False)
        # The number of calls in the bytes is unknown without parsing them, so it is estimated from small calls.
        size = min(_TURN_BYTES, len(held))
        return TurnTaken(1 + size // _SMALL_CALL_BYTES, size)

    def cut_off(self, why: Exception | None) -> None:
        """Abort the connection."""
        self.stream.cut_off(why)

    def close(self) -> None:
        """Close the connection once all written bytes have been sent."""
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
        """Abort the connection if pycapnp has ended it, which it does when it receives an invalid message."""
        error = None if gone.cancelled() else gone.exception()
        self._rpc = None
        if not self.stream.is_over and not self._is_closing:
            self.stream.cut_off(Malformed("not a Cap'n Proto RPC message" if error is None else first_line(error)))

    def _end(self, why: Exception | None) -> None:
        self._held = b""
        self.door.connections.discard(self)
        for upload in self.uploads:
            upload.close()
        self.uploads.clear()
        if isinstance(why, Malformed):
            address = self.stream.peer().get_extra_info("peername")
            _log.warning(
                "connection_refused",
                extra={"reason": printable(str(why)), "address": str(address)},
            )
