"""The time limits of one connection: for silence, and for an incomplete frame."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.wire.framed.frames import CONNECTION, FrameKind

if TYPE_CHECKING:
    from holdfast.doors.framed.connection import FramedConnection

# After this time without a byte, the caller is sent a PING.
KEEPALIVE_S = 30.0
# After this number of such periods without a byte, the caller counts as lost.
_SILENCES = 2.5
# The time limit for HELLO. Also the time after which an incomplete frame must arrive at the rate below.
FRAME_PATIENCE_S = 10.0
FRAME_BYTES_PER_S = 4_096
_LOOKS = 4


class Patience:
    """The timer of one connection, which checks all of its time limits every few seconds."""

    __slots__ = (
        "_begun_at_s",
        "_connection",
        "_frames_read",
        "_is_pinged",
        "_loop",
        "_received_at_s",
        "_timer",
        "has_received",
        "keepalive_s",
        "patience_s",
    )

    def __init__(self, connection: "FramedConnection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # True if bytes have arrived since the last check.
        self.has_received = False
        self.keepalive_s = connection.door.keepalive_s
        self.patience_s = connection.door.patience_s
        self._received_at_s = self._begun_at_s = loop.time()
        # The number of whole frames at the last check. If it is unchanged, the incomplete frame is still the same one.
        self._frames_read = 0
        self._is_pinged = False

    def start(self) -> None:
        """Schedule the next check."""
        self._timer = self._loop.call_later(min(self.patience_s, self.keepalive_s) / _LOOKS, self._look)

    def stop(self) -> None:
        """Make no more checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s, connection = self._loop.time(), self._connection
        if self.has_received or connection.reading.is_paused:
            # While reading is paused, bytes may have arrived that were not read.
            self.has_received = self._is_pinged = False
            self._received_at_s = now_s
        if not self._is_stalled(now_s) and not self._is_silent(now_s):
            self.start()

    def _is_stalled(self, now_s: float) -> bool:
        """End the connection if its HELLO, or an incomplete frame, arrives too slowly. Return whether it was ended."""
        connection = self._connection
        held = connection.reader.held
        if connection.is_greeted and (
            not held or connection.frames_read != self._frames_read or connection.reading.is_paused
        ):
            self._frames_read = connection.frames_read
            self._begun_at_s = now_s
            return False
        overtime_s = now_s - self._begun_at_s - self.patience_s
        if overtime_s < 0 or (held and held >= overtime_s * FRAME_BYTES_PER_S):
            return False
        what = "the rest of a frame" if held else "HELLO"
        connection.fail(f"{what} did not arrive: send at least {FRAME_BYTES_PER_S} bytes per second")
        return True

    def _is_silent(self, now_s: float) -> bool:
        """Send a PING to a silent caller, and end the connection without a response. Return whether it was ended."""
        silent_s = now_s - self._received_at_s
        if silent_s >= self.keepalive_s * _SILENCES:
            self._connection.abort()
            return True
        if silent_s >= self.keepalive_s and not self._is_pinged:
            self._is_pinged = True
            self._connection.send(FrameKind.PING, CONNECTION, b"")
        return False
