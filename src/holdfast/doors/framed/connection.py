"""One connection of the framed protocol.

All frames of one read are parsed in a loop, and each CALL is begun at once. Responses that are ready by the end of the
read, or in the same round of the event loop, are sent by one write.

While several tenants call at once, the bytes of a read are held back until it is the connection's turn (`HeldFrames`).
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.doors.framed.call import FramedCall, GiveBack, Handler
from holdfast.doors.framed.credential import Credential
from holdfast.doors.framed.handlers import handler_of
from holdfast.doors.framed.held_frames import HeldFrames
from holdfast.doors.framed.patience import Patience
from holdfast.doors.framed.reading import NotMessagePack, parse_call
from holdfast.doors.framed.unsent import UnsentDeliveries
from holdfast.doors.framed.uploads import Incoming
from holdfast.doors.identity import peer_of
from holdfast.doors.sockets.response_writer import ResponseWriter
from holdfast.doors.sockets.socket_reading import SocketReading
from holdfast.model.errors import HoldfastError, InvalidArgument, RateLimited
from holdfast.telemetry.log import printable
from holdfast.wire.framed.calls import CallFrame, UploadCall
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import VERSION, read_client_hello, write_error

if TYPE_CHECKING:
    from holdfast.doors.framed.door import FramedDoor

_log = logging.getLogger("holdfast")

MAX_PING_BYTES = 64
# A caller that is refused while it sends would lose the answer to a reset: what it still sends is read and dropped.
LINGER_S = 1.0
# The part of a frame that is kept in memory for a caller whose credential was not checked yet.
MAX_UNKNOWN_BYTES = 64 * 1_024


class RefusedFrame(Exception):
    """A frame that is not part of the protocol. The connection ends."""

    def __init__(self, why: str, **facts: object) -> None:
        super().__init__(why)
        self.facts = facts


class FramedConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, door: "FramedDoor") -> None:
        self.door = door
        self.loop = door.loop
        self.reader = FrameReader(door.max_frame_bytes)
        self.responses = ResponseWriter(door.loop)
        self.reading = SocketReading(door.loop, self._has_waiting_call)
        self.credential = Credential(self)
        # Its HELLO has come.
        self.is_greeted = False
        # Everything that comes from now on is dropped.
        self.is_refused = False
        self.is_lost = False
        # By number: the calls that are not answered. Besides them there are calls that are, and have not ended.
        self._open: dict[int, FramedCall] = {}
        self._calls: set[FramedCall] = set()
        self._bytes_in_hand = 0
        self._written_bytes = 0
        self._unsent = UnsentDeliveries(door.loop, self._sent_bytes)
        self._turns = door.turns
        self._held = HeldFrames(self, door.turns)
        self._patience = Patience(self, door.loop)
        self._is_closing = False
        # The last answers are sent, and what the caller still sends is read and dropped.
        self._is_lingering = False
        self._has_aborted = False
        # What turns and the limits of stalled callers go by.
        self.calls_begun = 0
        self.frames_read = 0

    # --- Called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.responses.connect(self.transport)
        self.reading.connect(self.transport)
        self.credential.peer = peer_of(transport)
        self.door.connections.add(self)
        self._patience.start()
        if self.door.is_closed:  # by an upgrade that came too late
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.is_refused = True
        self._patience.stop()
        self._held.drop()
        self.credential.stop()
        if exc is not None or self._has_aborted or self.responses.has_aborted or self.reading.has_aborted:
            self._unsent.give_back()
        # Else it was closed, which happens behind the last byte.
        for call in [*self._calls]:
            call.leave()
        self.responses.stop()
        self.reading.stop()
        self.door.discard(self)

    def pause_writing(self) -> None:
        self.responses.pause()
        self.balance_reading()

    def resume_writing(self) -> None:
        self.responses.resume()
        self.balance_reading()

    def data_received(self, data: bytes) -> None:
        self._patience.is_heard = True
        if self._held.is_holding or self._turns.is_contended:
            self._held.take(data)
        else:
            self.parse(data)

    # --- Reading ---------------------------------------------------------------------------------------------------

    def parse(self, data: bytes) -> None:
        """Parse the bytes of a read, and begin their calls."""
        if self.is_refused:
            return
        responses = self.responses
        responses.is_collecting = True
        try:
            frames = self.reader.feed(data)
            self.frames_read += len(frames)
            for kind, number, body in frames:
                if kind == FrameKind.CALL and self.is_greeted:
                    self._begin(number, body)
                else:
                    self._take(kind, number, body)
            if self.reader.failure is not None:
                raise RefusedFrame(self.reader.failure)
        except RefusedFrame as refusal:
            self.fail(str(refusal), **refusal.facts)
        finally:
            responses.end_collecting()
        if self._bytes_in_hand > self.door.max_bytes_in_hand:
            self.balance_reading()
        if not self.credential.is_known and self.reader.missing > MAX_UNKNOWN_BYTES and not self.is_refused:
            self.credential.check()

    def _begin(self, number: int, body: bytes) -> None:
        if number == CONNECTION or number in self._open:
            raise RefusedFrame(f"call {number} is open, or is the connection: give each call a number of its own")
        self.calls_begun += 1
        call = self.make_call(number, body)
        self._calls.add(call)
        self._open[number] = call
        self._bytes_in_hand += len(body)
        most = self.door.max_calls
        if len(self._open) > most:
            call.refuse(RateLimited(f"a connection has at most {most} open calls", limit=most))
            return
        try:
            given, handler, is_short = self.read_call(call, body)
        except InvalidArgument as error:
            call.refuse(error)
        except NotMessagePack as error:
            raise RefusedFrame(f"the body of a CALL is not MessagePack: {error}") from None
        else:
            if isinstance(given, UploadCall):
                call.incoming = Incoming(call)  # its payload may come with this read
            call.run(handler, given, is_short=is_short)

    def make_call(self, number: int, body: bytes) -> FramedCall:
        """Return the call that a CALL begins."""
        return FramedCall(self, number, len(body))

    def read_call(self, call: FramedCall, body: bytes) -> tuple[CallFrame, Handler, bool]:
        """Return the content of a CALL, its handler, and whether the call is short, as `FramedCall.run` takes them.

        Raise `InvalidArgument` or `NotMessagePack`.
        """
        given = parse_call(body)
        return given, *handler_of(given)

    def _take(self, kind: int, number: int, body: bytes) -> None:
        """Take a frame that is no CALL."""
        if kind == FrameKind.HELLO:
            self.greet(body)
            return
        if not self.is_greeted:
            raise RefusedFrame("the first frame is not HELLO")
        call = self._open.get(number)
        match kind:
            case FrameKind.CANCEL:
                if call is not None:
                    call.cancel()
            case FrameKind.DATA | FrameKind.END:
                # Without a call it was refused, and the refusal has crossed this on the way.
                if call is not None:
                    self._take_payload(call, body, is_end=kind == FrameKind.END)
            case FrameKind.PING:
                if len(body) > MAX_PING_BYTES:
                    raise RefusedFrame(f"a PING has more than {MAX_PING_BYTES} bytes")
                self.send(FrameKind.PONG, CONNECTION, body)
            case FrameKind.PONG:
                pass
            case _:
                raise RefusedFrame(f"frames of kind {kind} are not sent by clients")

    def _take_payload(self, call: FramedCall, part: bytes, *, is_end: bool) -> None:
        if call.incoming is None:
            raise RefusedFrame(f"call {call.number} is no upload, and gets a payload")
        if is_end:
            call.incoming.take(b"")
        elif part:
            call.incoming.take(part)

    def greet(self, body: bytes) -> None:
        try:
            hello = read_client_hello(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RefusedFrame("the body of HELLO is not [version, token, program, program_version]") from None
        if hello.version != VERSION:
            raise RefusedFrame(
                f"this server speaks version {VERSION} of the framed protocol, not {hello.version}", versions=[VERSION]
            )
        self.credential.take_token(hello.token)
        if (key := self.credential.key) is not None:
            self._held.note_credential(key)
        if not self.is_greeted:
            self.is_greeted = True
            self.send(FrameKind.HELLO, CONNECTION, self.door.hello)
            if self.door.is_draining:
                self.send(FrameKind.GOING_AWAY, CONNECTION)

    def note_tenant(self, tenant: str) -> None:
        """Learn whose call is being carried out."""
        self._held.note_tenant(tenant, self.credential.key)

    def balance_reading(self) -> None:
        """Stop reading the socket while there is enough in memory, or the caller does not take its answers."""
        if self.is_lost:
            return
        is_enough = (
            self.responses.is_paused or self._bytes_in_hand > self.door.max_bytes_in_hand or self.credential.is_checking
        )
        if (is_enough and not self.is_refused) or self._held.is_full:
            self.reading.pause()
        else:
            self.reading.resume()

    def _has_waiting_call(self) -> bool:
        return any(call.is_waiting for call in self._calls)

    # --- Calls -----------------------------------------------------------------------------------------------------

    def forget(self, call: FramedCall) -> None:
        """Learn that a call is answered."""
        self._open.pop(call.number, None)

    def discard(self, call: FramedCall) -> None:
        """Learn that nothing of a call is left to do."""
        self.release_bytes(call)
        self._open.pop(call.number, None)
        self._calls.discard(call)
        if self._is_closing and not self._calls:
            self._close()

    def keep_bytes(self, call: FramedCall, size: int) -> None:
        """Learn of bytes that a call keeps in memory; of a negative number that it does so no longer."""
        was_enough = self._bytes_in_hand > self.door.max_bytes_in_hand
        call.bytes_in_hand += size
        self._bytes_in_hand += size
        if was_enough or self._bytes_in_hand > self.door.max_bytes_in_hand:
            self.balance_reading()

    def release_bytes(self, call: FramedCall) -> None:
        if call.bytes_in_hand:
            self.keep_bytes(call, -call.bytes_in_hand)

    def count_uploads(self) -> int:
        return sum(call.incoming is not None for call in self._calls)

    def in_hand(self) -> "set[asyncio.Future[None]]":
        """Return a future for each call that has not ended."""
        return {call.ended() for call in self._calls}

    def describe_calls(self) -> list[str]:
        return [call.operation for call in self._calls]

    # --- Writing ---------------------------------------------------------------------------------------------------

    def send(self, kind: FrameKind, number: int, body: bytes = b"", give_back: GiveBack | None = None) -> None:
        """Write a frame, by the end of this round of the loop. `give_back` is called if it does not leave."""
        if self.is_lost:
            if give_back is not None:
                give_back()
            return
        frame = write_frame(kind, number, body)
        responses = self.responses
        if not responses.is_collecting:
            responses.is_collecting = True
            self.loop.call_soon(responses.end_collecting)
        responses.write_last(frame)
        self._written_bytes += len(frame)
        if give_back is not None:
            self._unsent.hold(self._written_bytes, give_back)

    def _sent_bytes(self) -> int:
        """Return the bytes that the operating system is known to have taken."""
        if self.transport.is_closing():
            return 0  # a transport that has failed forgets what it was to write
        return self._written_bytes - self.responses.unflushed_bytes - self.transport.get_write_buffer_size()

    # --- Ending ----------------------------------------------------------------------------------------------------

    def fail(self, why: str, **facts: object) -> None:
        """End the connection, and say why."""
        address = self.transport.get_extra_info("peername")
        _log.warning(
            "a connection was closed: it sent what is not the framed protocol, or too much or too little of it",
            extra={"reason": printable(why[:200]), "address": str(address)},
        )
        self.end_with(InvalidArgument(why, **facts))

    def end_with(self, error: HoldfastError) -> None:
        """End the connection, and tell the caller of the error."""
        if self.is_lost:
            return
        self.send(FrameKind.ERROR, CONNECTION, write_error(error))
        self.is_refused = True
        self._held.drop()
        self._patience.stop()
        self.responses.flush()
        if self.transport.can_write_eof() and not self._calls:
            self.transport.write_eof()
        self.balance_reading()
        self.loop.call_later(LINGER_S, self._close_socket)

    def go_away(self) -> None:
        """Tell the caller to begin no more calls here."""
        if self.is_greeted and not self.is_refused:
            self.send(FrameKind.GOING_AWAY, CONNECTION)

    def shut_down(self) -> None:
        """End the connection as soon as no call is open on it."""
        self._is_closing = True
        if not self._calls:
            self._close()

    def _close(self) -> None:
        """Close once everything that was written is sent, unless the caller stops reading.

        Bytes of the caller that are unread when a socket closes reset the connection, and a reset may take the last
        answers with it. So the caller may close first.
        """
        self.is_refused = True
        if self._is_lingering or self.is_lost:
            return
        self._is_lingering = True
        self.responses.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.balance_reading()
            self.loop.call_later(LINGER_S, self._close_socket)
        else:
            self._close_socket()

    def _close_socket(self) -> None:
        if not self.is_lost:
            self.responses.flush()
            self.responses.close()

    def abort(self) -> None:
        """End the connection at once."""
        if not self.is_lost:
            self._unsent.forget_sent()
            self._has_aborted = True
            self.transport.abort()
