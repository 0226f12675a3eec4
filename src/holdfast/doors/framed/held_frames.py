"""Hold received bytes of one connection until its tenant's turn to be served."""

import struct
from typing import TYPE_CHECKING

from holdfast.doors.sockets.held_input import HeldInput
from holdfast.service.limits.request_turns import RequestTurns, TurnTaken

if TYPE_CHECKING:
    from holdfast.doors.framed.connection import FramedConnection

# The part of a large frame that is parsed in one turn.
_PART_BYTES = 16 * 1_024
_LENGTH = struct.Struct(">I")


class HeldFrames(HeldInput):
    """The bytes that a connection has received and that wait for a turn. Each turn parses one frame.

    While `is_holding` is true, the connection must pass further bytes to `take`, even if tenants no longer take turns.
    """

    __slots__ = ("_at", "_connection", "_data", "_is_in_line", "is_full", "is_holding")

    def __init__(self, connection: "FramedConnection", turns: RequestTurns) -> None:
        super().__init__(turns)
        self._connection = connection
        # The held bytes, and how many of them were parsed.
        self._data = b""
        self._at = 0
        self._is_in_line = False
        self.is_holding = False
        # True once a further read was added. That is enough to hold; the rest waits in the socket.
        self.is_full = False

    def note_credential(self, credential: bytes) -> None:
        """Note the credential of the calls from now on."""
        self._name = self._turns.tenant_of(credential) or self._name

    def take(self, data: bytes) -> None:
        """Parse received bytes at once if they are one frame and its tenant has used few turns, else hold them."""
        if self.is_holding:
            self._data = self._data[self._at :] + data
            self._at = 0
            self.is_full = True
            self._connection.balance_reading()
        elif self._frame_bytes(data, 0) >= len(data) and self._turns.may_go_on(self._name):
            self._connection.parse(data)
        else:
            self._data, self._at = data, 0
            self.is_holding = True
            self._wait()

    def take_turn(self) -> TurnTaken:
        """Parse one held frame, or a part of a large one."""
        self._is_in_line = False
        if not self._data:  # the connection was lost
            return TurnTaken(0, 0)
        connection, at = self._connection, self._at
        begun = connection.calls_begun
        end = min(at + self._frame_bytes(self._data, at), at + _PART_BYTES, len(self._data))
        part, self._at = self._data[at:end], end
        if end == len(self._data):
            self.drop()
        connection.parse(part)
        if not self.is_holding:
            connection.balance_reading()
        elif connection.is_refused:
            self.drop()
        else:
            self._wait()
        return TurnTaken(connection.calls_begun - begun, len(part))

    def drop(self) -> None:
        """Drop all held bytes."""
        self._data, self._at = b"", 0
        self.is_holding = self.is_full = False

    def _wait(self) -> None:
        if not self._is_in_line:
            self._is_in_line = True
            self._turns.wait(self._name, self)

    def _frame_bytes(self, data: bytes, at: int) -> int:
        """Return the number of bytes up to the end of the first frame, which may not all have arrived."""
        missing = self._connection.reader.missing
        if missing or len(data) - at < _LENGTH.size:
            return missing or len(data) - at
        length: int = _LENGTH.unpack_from(data, at)[0]
        return _LENGTH.size + length
