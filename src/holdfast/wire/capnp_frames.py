"""The frames of a Cap'n Proto stream, taken apart before anything of them is read.

    u32 segments - 1 | u32 words of each segment | 0-4 bytes to a whole word | the segments

A frame is handed on when it has come whole: what a header promises costs nothing until it is sent.
"""

import struct

# The most that the library reads.
_MAX_SEGMENTS = 512
_WORD = 8

_U32 = struct.Struct("<I")
_ROOT = struct.Struct("<iHH")
_TAG = struct.Struct("<H")

_FAR = 2

# The kinds of rpc.capnp's Message that begin something to be answered, and the one that ends it.
_CALL, _FINISH, _BOOTSTRAP = 2, 4, 8


class Malformed(Exception):
    """What came is no Cap'n Proto, or more than is allowed: there is nobody to talk to."""


class Frames:
    """`max_bytes` of one frame; `max_unfinished` calls whose answers the other side has not let go of, each of which
    costs memory on this one (None: as many as it likes)."""

    def __init__(self, max_bytes: int, max_unfinished: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_unfinished = max_unfinished
        self._unfinished = 0
        self._data = bytearray()

    def take(self, data: bytes) -> bytes:
        """The frames that are whole now, one behind the other."""
        self._data += data
        end = 0
        while (size := self._size_at(end)) is not None and len(self._data) - end >= size:
            if self._max_unfinished is not None:
                self._count(end)
            end += size
        if not end:
            return b""
        whole = bytes(memoryview(self._data)[:end])
        del self._data[:end]
        return whole

    @property
    def is_between(self) -> bool:
        """No frame has begun that is not whole."""
        return not self._data

    def _size_at(self, at: int) -> int | None:
        """None: the table has not come whole."""
        data = self._data
        if len(data) - at < 4:
            return None
        segments = _U32.unpack_from(data, at)[0] + 1
        if segments > _MAX_SEGMENTS:
            raise Malformed(f"a message of {segments} segments")
        table = (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD
        if len(data) - at < table:
            return None
        words = sum(_U32.unpack_from(data, at + 4 * (n + 1))[0] for n in range(segments))
        size = int(table + words * _WORD)
        if size > self._max_bytes:
            raise Malformed(f"a message of {size} bytes, more than the {self._max_bytes} that are taken")
        return size

    def _count(self, at: int) -> None:
        kind = self._kind_at(at)
        if kind in (_CALL, _BOOTSTRAP, None):
            self._unfinished += 1
            if self._max_unfinished is not None and self._unfinished > self._max_unfinished:
                raise Malformed(f"more than {self._max_unfinished} calls that are not finished")
        elif kind == _FINISH and self._unfinished:
            self._unfinished -= 1

    def _kind_at(self, at: int) -> int | None:
        """None: its root lies in another segment, as it may where the first is small. Nobody finishes a call so."""
        data = self._data
        segments = _U32.unpack_from(data, at)[0] + 1
        words = _U32.unpack_from(data, at + 4)[0]
        start = at + (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD
        if not words:
            raise Malformed("a message of nothing")
        pointer, data_words, _ = _ROOT.unpack_from(data, start)
        if pointer & 3 == _FAR:
            return None
        tag = 1 + (pointer >> 2)
        if pointer & 3 or not data_words or not 0 < tag < words:
            raise Malformed("a message without a root")
        return int(_TAG.unpack_from(data, start + tag * _WORD)[0])
