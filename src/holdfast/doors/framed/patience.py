"""Time limits of a connection: for silence, and for a frame that has begun."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.wire.framed.frames import CONNECTION, FrameKind

if TYPE_CHECKING:
    from holdfast.doors.framed.connection import FramedConnection

# Without a word from the caller, until it is asked by PING whether it is there.
KEEPALIVE_S = 30.0
# Silent for so many times as long, it is taken for gone.
_SILENCES = 2.5
# From the first byte of a frame until it must be whole, or go on at the rate below; and from the connection to HELLO.
FRAME_PATIENCE_S = 10.0
FRAME_BYTES_PER_S = 4_096
_LOOKS = 4


class Patience:
    """Looks at one connection every few seconds, for as long as it is there. One timer serves all of its limits."""

    __slots__ = (
        "_begun_at_s",
        "_connection",
        "_frames_read",
        "_heard_at_s",
        "_is_asked",
        "_loop",
        "_timer",
        "is_heard",
        "keepalive_s",
        "patience_s",
    )

    def __init__(self, connection: "FramedConnection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Something came since the last look.
        self.is_heard = False
        self.keepalive_s = connection.door.keepalive_s
        self.patience_s = connection.door.patience_s
        self._heard_at_s = self._begun_at_s = loop.time()
        # By the last look, frames that were read whole; while that is the same, the frame that has begun is the same.
        self._frames_read = 0
        self._is_asked = False

    def start(self) -> None:
        self._timer = self._loop.call_later(min(self.patience_s, self.keepalive_s) / _LOOKS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s, connection = self._loop.time(), self._connection
        if self.is_heard or connection.reading.is_paused:
            # What a caller sends while it is not read is not heard.
            self.is_heard = self._is_asked = False
            self._heard_at_s = now_s
        if not self._is_stalled(now_s) and not self._is_silent(now_s):
            self.start()

    def _is_stalled(self, now_s: float) -> bool:
        """End a connection in the middle of a frame, or before its HELLO, that does not go on."""
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
        connection.fail(f"{what} did not arrive: send at least {FRAME_BYTES_PER_S} bytes a second")
        return True

    def _is_silent(self, now_s: float) -> bool:
        """Ask a connection that is silent whether it is there; end one that has not answered."""
        silent_s = now_s - self._heard_at_s
        if silent_s >= self.keepalive_s * _SILENCES:
            self._connection.abort()
            return True
        if silent_s >= self.keepalive_s and not self._is_asked:
            self._is_asked = True
            self._connection.send(FrameKind.PING, CONNECTION, b"")
        return False
