"""One connection on an event loop, which carries any number of calls at once and gets responses in any order."""

import asyncio
import select
from collections.abc import Callable, Collection
from typing import Final, cast

from holdfast.client.framed.handshake import Handshake, HandshakeState, check_first, read_upgrade
from holdfast.client.framed.loop_call import LoopOpenCall, TimeLimits
from holdfast.client.framed.open_call import ERROR, KEEPALIVE_S, LONGEST_FRAME, MAX_SILENT_INTERVALS, RESULT
from holdfast.client.remote.lost import Lost, LostOnReuse
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ServerHello, read_error, read_server_hello

_LAST_NUMBER: Final = 0xFFFF_FFFF
_FINAL: Final = (RESULT, ERROR)
# A connection with more open calls than this, which received a byte within _QUIET_S, is known to be alive.
_BUSY: Final = 4
_QUIET_S: Final = 0.001


class FramedClientConnection(asyncio.Protocol):
    """A connection on an event loop."""

    def __init__(self, handshake: Handshake, over: Callable[["FramedClientConnection"], None]) -> None:
        """`over` is called once the connection has ended."""
        self.loop = asyncio.get_running_loop()
        self._handshake = handshake
        self._over = over
        self._handshake_state = HandshakeState()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(LONGEST_FRAME)
        # Open calls by their number.
        self._calls: dict[int, LoopOpenCall] = {}
        self._last = 0
        # Frames written in this pass of the loop, which are sent together.
        self._out: list[bytes] = []
        self._room: asyncio.Future[None] | None = None
        # The head of the response to the upgrade while it is incomplete; None once the connection carries frames.
        self._head: bytes | None = b"" if handshake.upgrade else None
        self._poll: select.poll | None = None
        self._is_ready: asyncio.Future[None] = self.loop.create_future()
        self._hello: asyncio.Future[ServerHello] | None = None
        self._server_hello: ServerHello | None = None
        self._is_going_away = False
        # Why the connection ended; None while it is open.
        self._end: Lost | None = None
        self.received_at = 0.0
        self.limits = TimeLimits(self)
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._pinged_at: float | None = None

    @property
    def is_usable(self) -> bool:
        """True if a call can be opened on this connection."""
        return (
            self._end is None and not self._is_going_away and not cast(asyncio.Transport, self._transport).is_closing()
        )

    @property
    def calls(self) -> Collection[LoopOpenCall]:
        """The open calls."""
        return self._calls.values()

    @property
    def open_calls(self) -> int:
        """Return the number of open calls."""
        return len(self._calls)

    @property
    def max_calls(self) -> int | None:
        """The number of calls that the server allows to be open at once; None before its hello."""
        return None if self._server_hello is None else self._server_hello.max_calls

    def has_unread(self) -> bool:
        """Return whether an idle connection has unread bytes, which may mean that it has ended."""
        if self._poll is None or (len(self._calls) > _BUSY and self.loop.time() - self.received_at < _QUIET_S):
            return False
        return bool(self._poll.poll(0))

    async def ready(self) -> None:
        """Wait until the connection carries frames. Raise `Lost`."""
        await asyncio.shield(self._is_ready)

    async def server_hello(self, limit_s: float, *, was_sent: bool) -> ServerHello:
        """Return the hello of the server, waiting for it if necessary. Raise `Lost`."""
        if self._server_hello is not None:
            return self._server_hello
        if self._end is not None:
            raise self._end
        if not self._handshake_state.is_greeted:
            self.write(self._handshake.due(self._handshake_state))
        if self._hello is None:
            self._hello = self.loop.create_future()
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            raise Lost(f"no response within {limit_s:g} s", was_sent=was_sent, is_timeout=True) from None

    # --- Calls -----------------------------------------------------------------------------------------------------

    def open(self, call: LoopOpenCall, body: bytes) -> None:
        """Send a call with the next free number. Raise `Lost`."""
        if not self.is_usable:
            raise Lost("the connection is closed" if self._end is None else self._end.reason, was_sent=False)
        calls, number = self._calls, self._last
        while True:
            number = number + 1 if number < _LAST_NUMBER else 1
            if number not in calls:
                break
        self._last = call.number = number
        hello = (
            b""
            if self._handshake_state.is_greeted and not self._handshake.is_renewed
            else self._handshake.due(self._handshake_state)
        )
        call.is_over = False
        calls[number] = call
        frame = write_frame(FrameKind.CALL, number, body)
        self.write(hello + frame if hello else frame)

    def write(self, data: bytes) -> None:
        """Send bytes. With several open calls, they are sent together with the others of this pass of the loop."""
        if self._end is not None:
            return
        if self._out:
            self._out.append(data)
        elif len(self._calls) <= 1:
            cast(asyncio.Transport, self._transport).write(data)
        else:
            self._out.append(data)
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        if self._end is None:
            cast(asyncio.Transport, self._transport).write(data)

    async def drained(self) -> None:
        """Wait until the network has accepted most of the written bytes."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def close(self, reason: str = "the connection was closed") -> None:
        self._lose(reason)

    # --- Keepalive -------------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        keepalive_s = KEEPALIVE_S if self._server_hello is None else self._server_hello.keepalive_ms / 1_000
        now = self.loop.time()
        if self._pinged_at is None and now - self.received_at >= keepalive_s:
            self._pinged_at = now
            self.write(write_frame(FrameKind.PING, CONNECTION))
        elif self._pinged_at is not None and now - self._pinged_at >= keepalive_s * (MAX_SILENT_INTERVALS - 1):
            self._lose("the server sent no byte during its keepalive time")
            return
        self._schedule_keepalive(keepalive_s / 2)

    def _schedule_keepalive(self, seconds: float) -> None:
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self._keepalive_timer = self.loop.call_later(seconds, self._keep_alive)

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.received_at = self.loop.time()
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        self._schedule_keepalive(KEEPALIVE_S)
        if self._head is None:
            self._is_ready.set_result(None)
        else:
            self._transport.write(self._handshake.upgrade)

    def data_received(self, data: bytes) -> None:
        self.received_at = self.loop.time()
        self._pinged_at = None
        try:
            if self._server_hello is None:
                data = self._read_first(data)
            self._handle_frames(data)
        except Lost as lost:
            self._lose(lost.reason, was_sent=lost.was_sent)

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose("the connection was closed" if error is None else f"the connection broke: {error}")
        self._over(self)

    # --- Received bytes ----------------------------------------------------------------------------------------------

    def _read_first(self, data: bytes) -> bytes:
        """Return the frames among the first bytes, after the response to the upgrade."""
        if self._head is not None:
            self._head += data
            rest = read_upgrade(self._head)
            if rest is None:
                return b""
            self._head = None
            self._is_ready.set_result(None)
            data = rest
        if not self._reader.held:
            check_first(data)
        return data

    def _handle_frames(self, data: bytes) -> None:
        calls, reader = self._calls, self._reader
        for kind, number, body in reader.feed(data):
            call = calls.get(number)
            if call is None:
                if number == CONNECTION:
                    self._handle_own(kind, body)
            elif kind in _FINAL:
                del calls[number]
                call.is_over = True
                call.add_frame(kind, body)
            else:
                call.add_frame(kind, body)
        if reader.failure is not None:
            raise Lost(reader.failure, was_sent=True)

    def _handle_own(self, kind: int, body: bytes) -> None:
        """Handle a frame of the connection itself. Unknown kinds, which later servers may send, are ignored."""
        match kind:
            case FrameKind.HELLO:
                try:
                    self._server_hello = read_server_hello(body)
                except ValueError as error:
                    raise Lost(f"the server sent a malformed hello: {error}", was_sent=False) from None
                self._schedule_keepalive(self._server_hello.keepalive_ms / 1_000)
                if self._hello is not None and not self._hello.done():
                    self._hello.set_result(self._server_hello)
            case FrameKind.PING:
                self.write(write_frame(FrameKind.PONG, CONNECTION, body))
            case FrameKind.ERROR:
                raise Lost(read_error(body).message, was_sent=self._server_hello is not None)
            case FrameKind.GOING_AWAY:
                self._is_going_away = True

    def _lose(self, reason: str, *, was_sent: bool = True) -> None:
        if self._end is not None:
            return
        self._end = Lost(reason, was_sent=was_sent)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            is_reused = self._server_hello is not None and self.received_at <= call.sent_at
            call.lose((LostOnReuse if is_reused else Lost)(reason, was_sent=was_sent))
        for waiting in (self._is_ready, self._hello):
            if waiting is not None and not waiting.done():
                waiting.set_exception(Lost(reason, was_sent=False))
                waiting.exception()  # retrieved, because perhaps no caller waits for it
        self.limits.end()
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()
