"""A connection as pycapnp reads and writes it, with a hand on what passes.

The library's own stream is given a transport of ours. So a frame reaches the library only when it is whole and within
limits, many answers leave in one write, and the end of a connection is told in the one way that the library survives:
it follows a null pointer when a connection ends while it is not reading, which any caller could bring about.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import capnp
from capnp.lib import capnp as library

from holdfast.wire.capnp.frames import Frames, Malformed

# What has come and was not read yet: beyond this the connection is not read.
_MOST_UNREAD = 1 << 20
_BYTES_PER_S = 4_096
# A peer that is gone without a word is noticed after about a minute.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# An answer is written in the next turns of the loop, if it is.
_DROPPED_S = 1.0


class Stream(asyncio.Protocol):
    """One connection. `begun` is called with the stream when it is there, `ended` once, with why it is gone."""

    def __init__(
        self,
        frames: Frames,
        begun: Callable[["Stream"], None],
        ended: Callable[[Exception | None], None],
        *,
        patience_s: float | None = None,
        hold_back: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`patience_s`: a message must go on arriving, or its connection is closed. `hold_back` is given what was read
        before anybody else, and returns whether it keeps that, to `take` it later."""
        self._frames = frames
        self._patience_s = patience_s
        # While a message is on its way: when it is looked at, and what had come of all by the last time.
        self._looking: asyncio.TimerHandle | None = None
        self._received = 0
        self._received_then = 0
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
        self._is_write_paused = False
        self.is_read_paused = False
        self._is_over = False
        self._closes_after_flush = False
        # Answers that must be known to have left, in the order in which they were written (the last ones were not yet).
        self._held: list[_Held] = []
        self._is_watched = False
        # Bytes given to the transport so far.
        self._written = 0

    # --- Of the connection -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _notice_silence(transport.get_extra_info("socket"))
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
        """Read what has come, in the order in which it came."""
        if self._is_over:
            return
        self._received += len(data)
        try:
            whole = self._frames.take(data)
        except Malformed as error:
            self.cut_off(error)
            return
        if self._patience_s is not None:
            self._watch_arrival(self._patience_s)
        if self._is_wanted and not self._unread and not self._is_feeding:
            whole = self._hand_over(whole)
            if not whole and not self._frames.is_full:  # as it mostly is: there is nothing to balance
                return
        self._unread += whole
        self._feed()
        self._balance()

    def _hand_over(self, whole: bytes) -> bytes:
        """All that the library has room for; what is left."""
        if not whole:
            return whole
        room = self._protocol.get_buffer(-1)
        taken = min(len(room), len(whole))
        room[:taken] = whole[:taken]
        self._protocol.buffer_updated(taken)
        return whole[taken:]

    def _watch_arrival(self, patience_s: float) -> None:
        if self._frames.is_between:
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None
        elif self._looking is None:
            self._received_then = self._received
            self._looking = self._loop.call_later(patience_s, self._look, patience_s)

    def _look(self, patience_s: float) -> None:
        self._looking = None
        # Of a connection that we do not read nothing can arrive.
        if self._received - self._received_then < patience_s * _BYTES_PER_S and not self.is_read_paused:
            self.cut_off(Malformed(f"a message that does not arrive: less than {_BYTES_PER_S} bytes a second"))
        else:
            self._watch_arrival(patience_s)

    def eof_received(self) -> bool:
        """A side that sends no more calls no more, and drops what it waited for."""
        is_whole = self._frames.is_between
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

    # --- For its owner -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._is_over

    def peer(self) -> asyncio.BaseTransport:
        assert self._transport is not None
        return self._transport

    def hold(self, mark: bytes, give_back: Callable[[], None]) -> None:
        """Of an answer that the library is about to write, and that has `mark` in it and no other has: `give_back` is
        called if the connection is lost before it left, or if it is not written at all because its caller let go of
        it."""
        if self._is_over:
            give_back()
            return
        self._held.append(_Held(mark, give_back))
        self._loop.call_later(_DROPPED_S, self._give_back_dropped)
        if not self._is_watched and self._transport is not None:
            self._is_watched = True
            # TLS would take a limit of nothing for reached when there is nothing, and never write again.
            is_tls = self._transport.get_extra_info("ssl_object") is not None
            self._transport.set_write_buffer_limits(high=1 if is_tls else 0)

    def hold_socket(self, *, is_held: bool) -> None:
        """Stop reading the socket, or go on."""
        if is_held != self._is_socket_held:
            self._is_socket_held = is_held
            self._balance()

    def cut_off(self, error: Exception | None) -> None:
        """At once, whatever is under way."""
        transport = self._transport
        self._end(error)
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """After what was written has left."""
        if self._transport is None or self._is_over:
            return
        self._closes_after_flush = True
        self._flush()

    # --- Of the library ----------------------------------------------------------------------------------------

    def want(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        if is_wanted:
            self._feed()
            self._balance()

    def write(self, data: bytes) -> None:
        """Kept until this turn of the loop is over: what is answered together leaves together."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)

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
        """Whoever does not read its answers, or sends faster than it is served, is not read."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = (
            self._is_write_paused or self._is_socket_held or len(self._unread) > _MOST_UNREAD or self._frames.is_full
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
            # All pieces of a message are among these: the library hands them over in one go.
            self._written += len(data)
            self._frames.note_answered(data)
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
        """What was to be written long ago, with nothing in its way, will not be."""
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
        if self._looking is not None:
            self._looking.cancel()
        self._protocol.connection_lost(error)
        held, self._held = self._held, []
        for each in held:
            each.give_back()
        self._ended(error)


def _notice_silence(connection: socket.socket | None) -> None:
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # it may be gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Held:
    __slots__ = ("ends_at", "give_back", "mark", "since")

    def __init__(self, mark: bytes, give_back: Callable[[], None]) -> None:
        self.mark = mark
        self.give_back = give_back
        self.since = asyncio.get_running_loop().time()
        # How many bytes there are to its end, once it is written.
        self.ends_at: int | None = None


class _Side:
    """The transport that the library sees."""

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
