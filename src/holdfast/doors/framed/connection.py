"""One connection of the framed protocol.

All frames of one read are parsed in a loop, and each CALL is begun at once. Responses that are ready by the end of the
read, or in the same iteration of the event loop, leave in one write.

While several tenants call at once, received bytes are held until the connection's turn (`HeldFrames`).
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
# If the connection of a refused caller were closed while the caller still sends, a reset could destroy the response.
# Therefore bytes are read and dropped for this time.
LINGER_S = 1.0
# The maximum part of a frame that is held in memory before the credential of its caller has been checked.
MAX_UNKNOWN_BYTES = 64 * 1_024


class RefusedFrame(Exception):
    """A frame that the protocol does not allow. The connection ends with this error."""

    def __init__(self, why: str, **facts: object) -> None:
        super().__init__(why)
        self.facts = facts


class FramedConnection(asyncio.Protocol):
    """The asyncio protocol of one connection."""

    transport: asyncio.Transport

    def __init__(self, door: "FramedDoor") -> None:
        self.door = door
        self.loop = door.loop
        self.reader = FrameReader(door.max_frame_bytes)
        self.responses = ResponseWriter(door.loop)
        self.reading = SocketReading(door.loop, self._has_waiting_call)
        self.credential = Credential(self)
        # True once the caller's HELLO has arrived.
        self.is_greeted = False
        # True once all further received bytes are dropped.
        self.is_refused = False
        self.is_lost = False
        # The calls without a response yet, by number; and all calls that have not ended completely.
        self._open: dict[int, FramedCall] = {}
        self._calls: set[FramedCall] = set()
        self._bytes_in_hand = 0
        self._written_bytes = 0
        self._unsent = UnsentDeliveries(door.loop, self._sent_bytes)
        self._turns = door.turns
        self._held = HeldFrames(self, door.turns)
        self._patience = Patience(self, door.loop)
        self._is_closing = False
        # True once the last responses were written. Further received bytes are read and dropped.
        self._is_lingering = False
        self._has_aborted = False
        # The calls begun and the frames read so far, by which turns and the time limits of slow callers are calculated.
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
        if self.door.is_closed:  # an upgraded connection that arrives after the door was closed
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.is_refused = True
        self._patience.stop()
        self._held.drop()
        self.credential.stop()
        if exc is not None or self._has_aborted or self.responses.has_aborted or self.reading.has_aborted:
            self._unsent.give_back()
        # Otherwise the connection was closed, which happens after the last byte was sent.
        for call in [*self._calls]:
            call.leave()
        self.responses.stop()
        self.reading.stop()
        self.door.connections.discard(self)

    def pause_writing(self) -> None:
        self.responses.pause()
        self.balance_reading()

    def resume_writing(self) -> None:
        self.responses.resume()
        self.balance_reading()

    def data_received(self, data: bytes) -> None:
        self._patience.has_received = True
        if self._held.is_holding or self._turns.is_contended:
            self._held.take(data)
        else:
            self.parse(data)

    # --- Reading ---------------------------------------------------------------------------------------------------

    def parse(self, data: bytes) -> None:
        """Parse received bytes, and begin their calls."""
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
                call.incoming = Incoming(call)  # its payload may be part of this read
            call.run(handler, given, is_short=is_short)

    def make_call(self, number: int, body: bytes) -> FramedCall:
        """Return the call that a CALL frame begins."""
        return FramedCall(self, number, len(body))

    def read_call(self, call: FramedCall, body: bytes) -> tuple[CallFrame, Handler, bool]:
        """Return the content of a CALL frame, its handler, and whether the call is short, for `FramedCall.run`.

        Raise `InvalidArgument` or `NotMessagePack`.
        """
        given = parse_call(body)
        return given, *handler_of(given)

    def _take(self, kind: int, number: int, body: bytes) -> None:
        """Handle a frame of any kind but CALL."""
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
                # Without an open call, the call was refused, and this frame was sent before the refusal arrived.
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
            raise RefusedFrame(f"call {call.number} is not an upload, so it must not send a payload")
        if is_end:
            call.incoming.take(b"")
        elif part:
            call.incoming.take(part)

    def greet(self, body: bytes) -> None:
        """Take the caller's HELLO, and respond to the first one with the server's."""
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
        """Note the tenant of the current call."""
        self._held.note_tenant(tenant, self.credential.key)

    def balance_reading(self) -> None:
        """Pause reading while enough bytes are held in memory, or the caller does not read its responses."""
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
        """Note that a call has its final response."""
        self._open.pop(call.number, None)

    def discard(self, call: FramedCall) -> None:
        """Note that a call has ended completely."""
        self.release_bytes(call)
        self._open.pop(call.number, None)
        self._calls.discard(call)
        if self._is_closing and not self._calls:
            self._close()

    def keep_bytes(self, call: FramedCall, size: int) -> None:
        """Count bytes that a call holds in memory. A negative `size` means that it released them."""
        was_enough = self._bytes_in_hand > self.door.max_bytes_in_hand
        call.bytes_in_hand += size
        self._bytes_in_hand += size
        if was_enough or self._bytes_in_hand > self.door.max_bytes_in_hand:
            self.balance_reading()

    def release_bytes(self, call: FramedCall) -> None:
        """Count all bytes of a call as released."""
        if call.bytes_in_hand:
            self.keep_bytes(call, -call.bytes_in_hand)

    def count_uploads(self) -> int:
        """Return the number of open uploads."""
        return sum(call.incoming is not None for call in self._calls)

    def in_hand(self) -> "set[asyncio.Future[None]]":
        """Return a future for each call that has not ended."""
        return {call.ended() for call in self._calls}

    def describe_calls(self) -> list[str]:
        """Return the operation of each call that has not ended."""
        return [call.operation for call in self._calls]

    # --- Writing ---------------------------------------------------------------------------------------------------

    def send(self, kind: FrameKind, number: int, body: bytes = b"", give_back: GiveBack | None = None) -> None:
        """Write a frame by the end of this iteration of the loop. `give_back` is called if it is not sent."""
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
        """Return the number of bytes that are known to have left for the operating system."""
        if self.transport.is_closing():
            return 0  # a transport that has failed drops its buffer, so the sizes say nothing
        return self._written_bytes - self.responses.unflushed_bytes - self.transport.get_write_buffer_size()

    # --- Ending ----------------------------------------------------------------------------------------------------

    def fail(self, why: str, **facts: object) -> None:
        """End the connection with the error `why`, and log it."""
        address = self.transport.get_extra_info("peername")
        _log.warning(
            "connection_refused",
            extra={"reason": printable(why[:200]), "address": str(address)},
        )
        self.end_with(InvalidArgument(why, **facts))

    def end_with(self, error: HoldfastError) -> None:
        """Send an error that concerns the whole connection, and end it."""
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
        """Ask the caller to begin no more calls on this connection."""
        if self.is_greeted and not self.is_refused:
            self.send(FrameKind.GOING_AWAY, CONNECTION)

    def shut_down(self) -> None:
        """End the connection as soon as it has no call."""
        self._is_closing = True
        if not self._calls:
            self._close()

    def _close(self) -> None:
        """Close the connection once all written bytes have been sent, unless the caller stops reading.

        If a socket is closed while it has unread bytes, the connection is reset, and the caller may lose the last
        responses. So the caller has `LINGER_S` to close first.
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
