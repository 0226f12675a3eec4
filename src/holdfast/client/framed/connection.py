"""One connection on an event loop. It carries any number of calls at once, answered in any order."""

import asyncio
import select
from collections.abc import Callable, Collection
from typing import Final, cast

from holdfast.client.framed.answer import ERROR, KEEPALIVE_S, LONGEST_FRAME, RESULT, SILENCES
from holdfast.client.framed.call import LoopOpenCall
from holdfast.client.framed.greeting import Greeting, Known, check_first, read_upgrade
from holdfast.client.framed.time_limits import TimeLimits
from holdfast.client.remote.lost import Lost, Reused
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ServerHello, read_error, read_server_hello

_LAST_NUMBER: Final = 0xFFFF_FFFF
_FINAL: Final = (RESULT, ERROR)
# A connection that carries more calls than this, and was heard so lately, is there.
_BUSY: Final = 4
_QUIET_S: Final = 0.001


class FramedClientConnection(asyncio.Protocol):
    def __init__(self, greeting: Greeting, over: Callable[["FramedClientConnection"], None]) -> None:
        """`over` is called when it has ended."""
        self.loop = asyncio.get_running_loop()
        self._greeting = greeting
        self._over = over
        self._known = Known()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(LONGEST_FRAME)
        # Open calls by their number.
        self._calls: dict[int, LoopOpenCall] = {}
        self._last = 0
        # Frames of this turn of the loop, which leave together.
        self._out: list[bytes] = []
        self._room: asyncio.Future[None] | None = None
        # The answer to the upgrade, until it is whole; None once frames are spoken.
        self._head: bytes | None = b"" if greeting.upgrade else None
        self._poll: select.poll | None = None
        self._is_ready: asyncio.Future[None] = self.loop.create_future()
        self._hello: asyncio.Future[ServerHello] | None = None
        self._said: ServerHello | None = None
        self._is_going_away = False
        # None while it is open.
        self._end: Lost | None = None
        self.heard_at = 0.0
        self.limits = TimeLimits(self)
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._pinged_at: float | None = None

    @property
    def is_usable(self) -> bool:
        """Return whether a call can be opened on this connection."""
        return (
            self._end is None and not self._is_going_away and not cast(asyncio.Transport, self._transport).is_closing()
        )

    @property
    def calls(self) -> Collection[LoopOpenCall]:
        """The calls that are open."""
        return self._calls.values()

    @property
    def under_way(self) -> int:
        return len(self._calls)

    @property
    def most_calls(self) -> int | None:
        """How many calls the server lets be open at once, once it has said so."""
        return None if self._said is None else self._said.max_calls

    def has_unread(self) -> bool:
        """Return whether a connection that was quiet has something to say, its end perhaps, that nobody has heard."""
        if self._poll is None or (len(self._calls) > _BUSY and self.loop.time() - self.heard_at < _QUIET_S):
            return False
        return bool(self._poll.poll(0))

    async def ready(self) -> None:
        """Wait until frames can be sent. Raise `Lost`."""
        await asyncio.shield(self._is_ready)

    async def greeted(self, limit_s: float, *, was_sent: bool) -> ServerHello:
        if self._said is not None:
            return self._said
        if self._end is not None:
            raise self._end
        if not self._known.is_greeted:
            self.write(self._greeting.due(self._known))
        if self._hello is None:
            self._hello = self.loop.create_future()
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            raise Lost(f"no answer within {limit_s:g} s", was_sent=was_sent, is_timeout=True) from None

    # --- Calls -----------------------------------------------------------------------------------------------------

    def open(self, call: LoopOpenCall, body: bytes) -> None:
        if not self.is_usable:
            raise Lost("the connection is closed" if self._end is None else self._end.reason, was_sent=False)
        calls, number = self._calls, self._last
        while True:
            number = number + 1 if number < _LAST_NUMBER else 1
            if number not in calls:
                break
        self._last = call.number = number
        hello = b"" if self._known.is_greeted and not self._greeting.is_renewed else self._greeting.due(self._known)
        call.is_over = False
        calls[number] = call
        frame = write_frame(FrameKind.CALL, number, body)
        self.write(hello + frame if hello else frame)

    def write(self, data: bytes) -> None:
        """Send what is given; together with the rest of this turn where several calls are under way."""
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
        """Wait until the network has taken most of what was written."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def close(self, reason: str = "the connection was closed") -> None:
        self._lose(reason)

    # --- Silence ---------------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        keepalive_s = KEEPALIVE_S if self._said is None else self._said.keepalive_ms / 1_000
        now = self.loop.time()
        if self._pinged_at is None and now - self.heard_at >= keepalive_s:
            self._pinged_at = now
            self.write(write_frame(FrameKind.PING, CONNECTION))
        elif self._pinged_at is not None and now - self._pinged_at >= keepalive_s * (SILENCES - 1):
            self._lose("the server is silent")
            return
        self._schedule_keepalive(keepalive_s / 2)

    def _schedule_keepalive(self, seconds: float) -> None:
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self._keepalive_timer = self.loop.call_later(seconds, self._keep_alive)

    # --- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.heard_at = self.loop.time()
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        self._schedule_keepalive(KEEPALIVE_S)
        if self._head is None:
            self._is_ready.set_result(None)
        else:
            self._transport.write(self._greeting.upgrade)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        self._pinged_at = None
        try:
            if self._said is None:
                data = self._first(data)
            self._take(data)
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

    # --- What came -------------------------------------------------------------------------------------------------

    def _first(self, data: bytes) -> bytes:
        """Return the bytes of frames among the first that came."""
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

    def _take(self, data: bytes) -> None:
        calls, reader = self._calls, self._reader
        for kind, number, body in reader.feed(data):
            call = calls.get(number)
            if call is None:
                if number == CONNECTION:
                    self._take_own(kind, body)
            elif kind in _FINAL:
                del calls[number]
                call.is_over = True
                call.arrived(kind, body)
            else:
                call.arrived(kind, body)
        if reader.failure is not None:
            raise Lost(reader.failure, was_sent=True)

    def _take_own(self, kind: int, body: bytes) -> None:
        """Take a frame of the connection itself. Kinds that later servers send are ignored."""
        match kind:
            case FrameKind.HELLO:
                try:
                    self._said = read_server_hello(body)
                except ValueError as error:
                    raise Lost(f"its hello is not understood: {error}", was_sent=False) from None
                self._schedule_keepalive(self._said.keepalive_ms / 1_000)
                if self._hello is not None and not self._hello.done():
                    self._hello.set_result(self._said)
            case FrameKind.PING:
                self.write(write_frame(FrameKind.PONG, CONNECTION, body))
            case FrameKind.ERROR:
                raise Lost(read_error(body).message, was_sent=self._said is not None)
            case FrameKind.GOING_AWAY:
                self._is_going_away = True

    def _lose(self, reason: str, *, was_sent: bool = True) -> None:
        if self._end is not None:
            return
        self._end = Lost(reason, was_sent=was_sent)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            is_reused = self._said is not None and self.heard_at <= call.sent_at
            call.lose((Reused if is_reused else Lost)(reason, was_sent=was_sent))
        for waiting in (self._is_ready, self._hello):
            if waiting is not None and not waiting.done():
                waiting.set_exception(Lost(reason, was_sent=False))
                waiting.exception()  # heard, if nobody waits for it
        self.limits.end()
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()
