"""Encode frames of the framed protocol (docs/framed.md), and split received bytes into frames. Does no I/O.

    u32 length of the rest, big-endian | u8 kind | u32 call | body

A frame is returned once it has arrived whole. No memory is reserved for an announced length before the bytes arrive.
"""

import struct
from enum import IntEnum
from typing import Final

# The bytes of kind and call, which every frame has.
_LEAST_LENGTH = 5
_HEAD = struct.Struct(">IBI")
_LENGTH = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size

# The call number of frames that concern the whole connection.
CONNECTION: Final = 0


class FrameKind(IntEnum):
    """The kinds of frames."""

    # The first frame of each side.
    HELLO = 1
    CALL = 2
    CANCEL = 3
    # A part of an upload's payload, and the end of the payload.
    DATA = 4
    END = 5
    # The number of further bytes of an upload that the client may send.
    CREDIT = 6
    PING = 7
    PONG = 8
    # The final response to a call is one of these two.
    RESULT = 9
    ERROR = 10
    # One item of a stream, before the final response.
    ITEM = 11
    # The server is shutting down: start no more calls on this connection.
    GOING_AWAY = 12


# Kind, call, body.
Frame = tuple[int, int, bytes]


def write_frame(kind: int, call: int, body: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEAD.pack(_LEAST_LENGTH + len(body), kind, call) + body


class FrameReader:
    """A parser that splits the bytes of one connection into frames.

    `max_frame_bytes` limits a frame's length field. `failure` is the reason why the connection cannot be read any
    further: the frames before it are returned, and all later bytes are dropped.
    """

    __slots__ = ("_max_length", "_rest", "_wanted", "failure")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_length = max_frame_bytes
        # The beginning of an incomplete frame, and the number of bytes to wait for before parsing it again.
        self._rest = bytearray()
        self._wanted = 0
        self.failure: str | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes, and return the frames that are now complete."""
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
        """Keep the beginning of a frame, or set `failure` if its length is out of range."""
        self._wanted = 4
        if len(data) - at >= 4:
            [length] = _LENGTH.unpack_from(data, at)
            if not _LEAST_LENGTH <= length <= self._max_length:
                self.failure = (
                    f"a frame of {length} (0x{length:08x}) bytes is out of range: frames have {_LEAST_LENGTH}-"
                    f"{self._max_length} bytes; this port speaks Holdfast's framed protocol, not HTTP and not TLS"
                )
                return
            self._wanted = 4 + length
        self._rest += data[at:]

    @property
    def held(self) -> int:
        """Return the number of bytes received of an incomplete frame."""
        return len(self._rest)

    @property
    def missing(self) -> int:
        """Return the number of bytes that an incomplete frame is known to still need; 0 between frames."""
        return self._wanted - len(self._rest) if self._rest else 0
