"""Pause and resume reading from the socket of a connection."""

import asyncio
from collections.abc import Callable

from holdfast.doors.sockets.socket_state import has_left

# The interval of the checks whether a caller has left.
CHECK_S = 1.0


class SocketReading:
    """The switch that pauses and resumes reading from a socket.

    The event loop does not report the end of a connection while reading is paused. If `is_watched` then says that the
    current call must end when its caller leaves, the operating system is asked every `CHECK_S` seconds, and the
    connection of a caller that has left is aborted.
    """

    __slots__ = ("_is_watched", "_loop", "_timer", "_transport", "has_aborted", "is_paused")

    def __init__(self, loop: asyncio.AbstractEventLoop, is_watched: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_watched = is_watched
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        # Whether the connection was aborted because its caller has left.
        self.has_aborted = False

    def connect(self, transport: asyncio.Transport) -> None:
        """Set the transport of the connection."""
        self._transport = transport

    def pause(self) -> None:
        """Stop reading from the socket."""
        if not self.is_paused:
            assert self._transport is not None
            self.is_paused = True
            self._transport.pause_reading()
            self.watch()

    def resume(self) -> None:
        """Read from the socket again."""
        if self.is_paused:
            assert self._transport is not None
            self.is_paused = False
            self._transport.resume_reading()

    def watch(self) -> None:
        """Check regularly whether the caller has left, while that is needed. Call this when a call becomes watched."""
        if self.is_paused and self._timer is None and self._is_watched():
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        assert self._transport is not None
        if self.is_paused and self._is_watched() and has_left(self._transport):
            self.has_aborted = True
            self._transport.abort()
        else:
            self.watch()

    def stop(self) -> None:
        """Stop checking: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_paused = False
