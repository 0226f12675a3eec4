"""The frames of the framed protocol (docs/framed.md), written and taken apart. No I/O.

    u32 length of what follows, big-endian | u8 kind | u32 call | body

A body is handed on when its frame has come whole: what a length promises costs nothing until it is sent.
"""

import struct
from enum import IntEnum
from typing import Final

# Kind and call, which every frame has.
_LEAST_LENGTH = 5
_HEAD = struct.Struct(">IBI")
_LENGTH = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size

# The call number of frames that concern the connection.
CONNECTION: Final = 0


class FrameKind(IntEnum):
    # The first frame of each side.
    HELLO = 1
    CALL = 2
    CANCEL = 3
    # A part of an upload's payload, and its end.
    DATA = 4
    END = 5
    # Bytes that may be sent of an upload, beyond those allowed before.
    CREDIT = 6
    PING = 7
    PONG = 8
    # The final answer to a call is one of these two.
    RESULT = 9
    ERROR = 10
    # A piece of a stream, before its final answer.
    ITEM = 11
    # The server is closing: begin no more calls on this connection.
    GOING_AWAY = 12


# Kind, call, body.
Frame = tuple[int, int, bytes]


def write_frame(kind: int, call: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(_LEAST_LENGTH + len(body), kind, call) + body


class FrameReader:
    """Cuts the bytes of one connection into frames of at most `max_frame_bytes`, counted as their length is.

    `failure` is the reason why nothing more can be read: the frames before are handed on, and the rest is dropped.
    """

    __slots__ = ("_max_length", "_rest", "_wanted", "failure")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_length = max_frame_bytes
        # The beginning of a frame, and the bytes that are needed before it is worth another look.
        self._rest = bytearray()
        self._wanted = 0
        self.failure: str | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole now."""
        if self.failure is not None:
            return []
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._wanted:
                return []
            data = bytes(rest)
            rest.clear()
        frames: list[Frame] = []
        at, size = 0, len(data)
        max_length, unpack_head = self._max_length, _HEAD.unpack_from
        while at + HEAD_BYTES <= size:
            length, kind, call = unpack_head(data, at)
            end = at + 4 + length
            if end > size or not _LEAST_LENGTH <= length <= max_length:
                break
            frames.append((kind, call, data[at + HEAD_BYTES : end]))
            at = end
        if at < size:
            self._keep(data, at)
        return frames

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of a frame, unless its length can be no frame's."""
        self._wanted = 4
        if len(data) - at >= 4:
            [length] = _LENGTH.unpack_from(data, at)
            if not _LEAST_LENGTH <= length <= self._max_length:
                self.failure = (
                    f"a frame begins with its length, {_LEAST_LENGTH}-{self._max_length} bytes, and this one with "
                    f"{length} (0x{length:08x}): this port speaks Holdfast's framed protocol, not HTTP and not TLS"
                )
                return
            self._wanted = 4 + length
        self._rest += data[at:]

    @property
    def held(self) -> int:
        """Return the bytes that have come of a frame that is not whole."""
        return len(self._rest)

    @property
    def missing(self) -> int:
        """Return the bytes that a frame that has begun still needs, as far as is known; 0 between two frames."""
        return self._wanted - len(self._rest) if self._rest else 0
