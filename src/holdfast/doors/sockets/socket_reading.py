"""Whether the socket of a connection is read."""

import asyncio
from collections.abc import Callable

from holdfast.doors.sockets.socket_state import has_left

# Between two looks whether a caller is still there.
LOOK_S = 1.0


class SocketReading:
    """Stops reading a socket, and goes on.

    A socket that is not read does not tell of its end. So while it is not, and `is_watched` says that the call under
    way must end when its caller leaves, the operating system is asked now and then, and the connection of a caller
    that has left is aborted.
    """

    __slots__ = ("_is_watched", "_loop", "_timer", "_transport", "has_aborted", "is_paused")

    def __init__(self, loop: asyncio.AbstractEventLoop, is_watched: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_watched = is_watched
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        # The connection was aborted, for its caller has left.
        self.has_aborted = False

    def connect(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def pause(self) -> None:
        if not self.is_paused:
            assert self._transport is not None
            self.is_paused = True
            self._transport.pause_reading()
            self.watch()

    def resume(self) -> None:
        if self.is_paused:
            assert self._transport is not None
            self.is_paused = False
            self._transport.resume_reading()

    def watch(self) -> None:
        """Look for the end of the connection, if that is needed. To be called when a call begins to be watched."""
        if self.is_paused and self._timer is None and self._is_watched():
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        assert self._transport is not None
        if self.is_paused and self._is_watched() and has_left(self._transport):
            self.has_aborted = True
            self._transport.abort()
        else:
            self.watch()

    def stop(self) -> None:
        """Forget the connection: it is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_paused = False
