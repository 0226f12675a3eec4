"""Whether the socket of a connection is read."""

import asyncio


class SocketReading:
    """Stops reading a socket, and goes on."""

    __slots__ = ("_transport", "is_paused")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.is_paused = False

    def connect(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def pause(self) -> None:
        if not self.is_paused:
            assert self._transport is not None
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused:
            assert self._transport is not None
            self.is_paused = False
            self._transport.resume_reading()
