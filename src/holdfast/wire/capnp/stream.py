"""A connection that stands between a socket and pycapnp, and controls what each of them sees.

pycapnp's own stream gets our transport instead of the socket's. A frame therefore reaches pycapnp only when it is whole
and within limits, several responses leave in one write, and the end of a connection is reported in the only way that
pycapnp survives: it follows a null pointer if a connection ends while it is not reading, which any caller could cause.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import capnp
from capnp.lib import capnp as library

from holdfast.wire.capnp.frames import Frames, Malformed

# Reading from the socket pauses while more received bytes than this wait for pycapnp.
_MAX_UNREAD_BYTES = 1 << 20
# The lowest rate at which a message may arrive.
_MIN_BYTES_PER_S = 4_096
# A peer that vanished without closing the connection is noticed after about a minute.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# pycapnp writes a response in the next turns of the loop. One not written within this time was dropped.
_DROPPED_S = 1.0


class Stream(asyncio.Protocol):
    """One connection.

    `begun` is called with the stream when the connection is made, and `ended` once, with the reason, when it is lost.
    """

    def __init__(
        self,
        frames: Frames,
        begun: Callable[["Stream"], None],
        ended: Callable[[Exception | None], None],
        *,
        patience_s: float | None = None,
        hold_back: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Create the protocol of one connection.

        With `patience_s`, a connection is closed if a message arrives too slowly over that time. `hold_back` is called
        first with all received bytes. If it returns True, it has kept them, and passes them to `take` later.
        """
        self._frames = frames
        self._patience_s = patience_s
        # While a message is incomplete: the timer of the next check of its rate. The counts are all bytes received so
        # far, and those at the previous check.
        self._rate_check: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._received_bytes_before = 0
        self._hold_back = hold_back
        self._is_socket_held = False
        self._begun = begun
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._is_wanted = False
        self._is_feeding = False
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._is_write_paused = False
        self.is_read_paused = False
        # Called when most of the written bytes have been sent.
        self.on_drained: Callable[[], None] = lambda: None
        self._is_over = False
        self._closes_after_flush = False
        # Responses that are waiting to be sent completely, in the order of writing. The last ones may not be written.
        self._held: list[_Held] = []
        self._has_write_limit = False
        # Bytes passed to the transport so far.
        self._written = 0

    # --- Called by the event loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _enable_keepalive(transport.get_extra_info("socket"))
        self._protocol = library._PyAsyncIoStreamProtocol()
        self._protocol.connection_made(_Side(self))
        self.io = capnp.AsyncIoStream()
        self.io._post_init(self._protocol)
        self._begun(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over or (self._hold_back is not None and self._hold_back(data)):
            return
        self.take(data)

    def take(self, data: bytes) -> None:
        """Process received bytes, in the order in which they arrived."""
        if self._is_over:
            return
        self._received_bytes += len(data)
        try:
            whole = self._frames.take(data)
        except Malformed as error:
            self.cut_off(error)
            return
        if self._patience_s is not None:
            self._watch_arrival(self._patience_s)
        if self._is_wanted and not self._unread and not self._is_feeding:
            whole = self._hand_over(whole)
            # Usually everything was handed over, so reading need not pause.
            if not whole and not self._frames.is_full:
                return
        self._unread += whole
        self._feed()
        self._balance()

    def _hand_over(self, whole: bytes) -> bytes:
        """Pass pycapnp as many bytes as it has room for, and return the rest."""
        if not whole:
            return whole
        room = self._protocol.get_buffer(-1)
        taken = min(len(room), len(whole))
        room[:taken] = whole[:taken]
        self._protocol.buffer_updated(taken)
        return whole[taken:]

    def _watch_arrival(self, patience_s: float) -> None:
        if self._frames.is_between_frames:
            if self._rate_check is not None:
                self._rate_check.cancel()
                self._rate_check = None
        elif self._rate_check is None:
            self._received_bytes_before = self._received_bytes
            self._rate_check = self._loop.call_later(patience_s, self._check_rate, patience_s)

    def _check_rate(self, patience_s: float) -> None:
        self._rate_check = None
        arrived = self._received_bytes - self._received_bytes_before
        # Nothing can arrive while this side has paused reading.
        if arrived < patience_s * _MIN_BYTES_PER_S and not self.is_read_paused:
            self.cut_off(Malformed(f"a message arrives too slowly: less than {_MIN_BYTES_PER_S} bytes per second"))
        else:
            self._watch_arrival(patience_s)

    def eof_received(self) -> bool:
        """End the connection: a side that sends no more makes no more calls, and drops those it waited for."""
        is_whole = self._frames.is_between_frames
        self._end(None if is_whole else Malformed("the connection ended in the middle of a message"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._protocol.pause_writing()
        self._balance()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._let_go_of_sent()
        self._protocol.resume_writing()
        self._loop.call_later(_DROPPED_S, self._give_back_dropped)
        self._balance()
        self.on_drained()

    # --- Called by its owner -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Return whether the connection is lost."""
        return self._is_over

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that pycapnp has written and the socket has not taken."""
        if self._is_over or self._transport is None:
            return 0
        return self._outbox_bytes + self._transport.get_write_buffer_size()

    def peer(self) -> asyncio.BaseTransport:
        """Return the transport of the connection."""
        assert self._transport is not None
        return self._transport

    def hold(self, mark: bytes, give_back: Callable[[], None]) -> None:
        """Watch a response that pycapnp is about to write, until all its bytes have been sent.

        `mark` is a byte string that occurs in this response and in no other. `give_back` is called if the connection is
        lost before the response was sent, or if pycapnp never writes it because the caller has cancelled its call.
        """
        if self._is_over:
            give_back()
            return
        self._held.append(_Held(mark, give_back))
        self._loop.call_later(_DROPPED_S, self._give_back_dropped)
        if not self._has_write_limit and self._transport is not None:
            self._has_write_limit = True
            # With TLS a limit of 0 would count as reached while the buffer is empty, and writing would never resume.
            is_tls = self._transport.get_extra_info("ssl_object") is not None
            self._transport.set_write_buffer_limits(high=1 if is_tls else 0)

    def hold_socket(self, *, is_held: bool) -> None:
        """Pause or resume reading from the socket."""
        if is_held != self._is_socket_held:
            self._is_socket_held = is_held
            self._balance()

    def cut_off(self, error: Exception | None) -> None:
        """Abort the connection at once. `error` is the reason that `ended` gets."""
        transport = self._transport
        self._end(error)
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Close the connection once all written bytes have been sent."""
        if self._transport is None or self._is_over:
            return
        self._closes_after_flush = True
        self._flush()

    # --- Called by pycapnp, through `_Side` --------------------------------------------------------------------

    def want(self, is_wanted: bool) -> None:
        """Note whether pycapnp wants to read, and pass it the bytes that wait for it."""
        self._is_wanted = is_wanted
        if is_wanted:
            self._feed()
            self._balance()

    def write(self, data: bytes) -> None:
        """Collect bytes until this turn of the loop ends, so that its responses leave in one write."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_bytes += len(data)

    def _feed(self) -> None:
        if self._is_feeding:
            return
        self._is_feeding = True
        unread, protocol = self._unread, self._protocol
        while self._is_wanted and unread:
            room = protocol.get_buffer(-1)
            taken = min(len(room), len(unread))
            room[:taken] = unread[:taken]
            del unread[:taken]
            protocol.buffer_updated(taken)
        self._is_feeding = False

    def _balance(self) -> None:
        """Pause reading from a peer that does not read its responses or sends faster than it is served."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = (
            self._is_write_paused
            or self._is_socket_held
            or len(self._unread) > _MAX_UNREAD_BYTES
            or self._frames.is_full
        )
        if is_full and not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()
        elif not is_full and self.is_read_paused:
            self.is_read_paused = False
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            self._outbox.clear()
            return
        if self._outbox:
            data = b"".join(self._outbox)
            self._outbox.clear()
            self._outbox_bytes = 0
            # pycapnp writes all pieces of a message in the same turn of the loop, so `data` has only whole frames.
            self._written += len(data)
            self._frames.note_sent(data)
            if self.is_read_paused:
                self._balance()
            for held in self._held:
                if held.ends_at is None and held.mark in data:
                    held.ends_at = self._written
            self._transport.write(data)
            self._let_go_of_sent()
        if self._closes_after_flush:
            self._transport.close()

    def _let_go_of_sent(self) -> None:
        if self._held and self._transport is not None:
            sent = self._written - self._transport.get_write_buffer_size()
            self._held = [each for each in self._held if each.ends_at is None or each.ends_at > sent]

    def _give_back_dropped(self) -> None:
        """Give back responses that pycapnp has not written although nothing stopped it: their callers cancelled."""
        if self._is_over or self._is_write_paused:
            return
        at = self._loop.time()
        dropped = [each for each in self._held if each.ends_at is None and at - each.since >= _DROPPED_S]
        if dropped:
            self._held = [each for each in self._held if each not in dropped]
            for each in dropped:
                each.give_back()

    def _end(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._outbox.clear()
        self._unread.clear()
        if self._rate_check is not None:
            self._rate_check.cancel()
        self._protocol.connection_lost(error)
        held, self._held = self._held, []
        for each in held:
            each.give_back()
        self._ended(error)


def _enable_keepalive(connection: socket.socket | None) -> None:
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # the connection may already be lost
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Held:
    """A response that is watched until all its bytes have been sent."""

    __slots__ = ("ends_at", "give_back", "mark", "since")

    def __init__(self, mark: bytes, give_back: Callable[[], None]) -> None:
        self.mark = mark
        self.give_back = give_back
        self.since = asyncio.get_running_loop().time()
        # The number of bytes written to the connection up to its end; None until it is written.
        self.ends_at: int | None = None


class _Side:
    """The transport that pycapnp sees."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def pause_reading(self) -> None:
        self._stream.want(False)

    def resume_reading(self) -> None:
        self._stream.want(True)

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def is_closing(self) -> bool:
        return self._stream.is_over

    def close(self) -> None:
        self._stream.close()

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> Any:
        raise NotImplementedError
