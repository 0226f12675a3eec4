"""The frames of a Cap'n Proto stream, taken apart before anything of them is read.

    u32 segments - 1 | u32 words of each segment | 0-4 bytes to a whole word | the segments

A frame is handed on when it has come whole: what a header promises costs nothing until it is sent.
"""

import struct
from typing import NamedTuple

# The most that the library reads.
_MAX_SEGMENTS = 512
_WORD = 8

_U32 = struct.Struct("<I")
_ROOT = struct.Struct("<iHH")
_TAG = struct.Struct("<H")
_NUMBERED = struct.Struct("<IB")
# A frame as every library writes it: one segment, and in it the root, its tag, the body's pointer and its number.
_USUAL = struct.Struct("<IIQQiHHIB")
_USUAL_ROOT = 0x0001_0001_0000_0000

_FAR = 2

# The kinds of rpc.capnp's Message that ask something, that answer it, and that let go of the answer. Each begins with
# the number of its question.
_CALL, _RETURN, _FINISH, _BOOTSTRAP = 2, 3, 4, 8
# In the byte behind that number: nothing in the answer need be let go of.
_NO_FINISH = 0b10


class Malformed(Exception):
    """What came is no Cap'n Proto, or more than is allowed: there is nobody to talk to."""


class Frames:
    """`max_bytes` of one frame; `max_unfinished` calls whose answers the other side has not let go of, each of which
    costs memory on this one (None: as many as it likes)."""

    def __init__(self, max_bytes: int, max_unfinished: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_unfinished = max_unfinished
        self._unfinished: set[int] = set()
        # Calls that are written in such a way that their number is not seen here.
        self._nameless = 0
        self._data = bytearray()

    def take(self, data: bytes) -> bytes:
        """The frames that are whole now, one behind the other."""
        self._data += data
        end = 0
        while (size := self._size_at(end)) is not None and len(self._data) - end >= size:
            if self._max_unfinished is not None:
                self._note_asked(end, self._max_unfinished)
            end += size
        if not end:
            return b""
        whole = bytes(memoryview(self._data)[:end])
        del self._data[:end]
        return whole

    def note_answered(self, data: bytes) -> None:
        """Of whole frames that go the other way: answers that hold nothing are let go of as they are sent."""
        at = 0
        while self._unfinished and at < len(data):
            message = _read(data, at)
            if message is not None and message.kind == _RETURN and message.flags & _NO_FINISH:
                self._unfinished.discard(message.question)
            at += _size_of(data, at)[1]

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
        if len(data) - at < _table_of(segments):
            return None
        _, size = _size_of(data, at)
        if size > self._max_bytes:
            raise Malformed(f"a message of {size} bytes, more than the {self._max_bytes} that are taken")
        return size

    def _note_asked(self, at: int, most: int) -> None:
        message = _read(self._data, at)
        if message is None:
            self._nameless += 1
        elif message.kind in (_CALL, _BOOTSTRAP):
            self._unfinished.add(message.question)
        elif message.kind == _FINISH:
            self._unfinished.discard(message.question)
        if len(self._unfinished) + self._nameless > most:
            raise Malformed(f"more than {most} calls that are not finished")


class _Message(NamedTuple):
    kind: int
    question: int
    flags: int


def _table_of(segments: int) -> int:
    return (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD


def _size_of(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Of the frame that begins here: its table's bytes, and its own."""
    segments = _U32.unpack_from(data, at)[0] + 1
    table = _table_of(segments)
    words = sum(_U32.unpack_from(data, at + 4 * (n + 1))[0] for n in range(segments))
    return table, int(table + words * _WORD)


def _read(data: bytes | bytearray, at: int) -> _Message | None:
    """What a frame is. None: that stands in another segment, as it may where the first is small."""
    if len(data) - at >= _USUAL.size:
        more, words, root_word, tag, pointer, body_words, _, number, flags = _USUAL.unpack_from(data, at)
        if not more and root_word == _USUAL_ROOT and not pointer and body_words and words >= 3 + body_words:
            return _Message(tag & 0xFFFF, number, flags)
    table, _ = _size_of(data, at)
    words = _U32.unpack_from(data, at + 4)[0]
    start = at + table
    if not words:
        raise Malformed("a message of nothing")
    root = _follow(data, start, 0, words, least=1)
    if root is None:
        return None
    place, data_words = root
    kind = int(_TAG.unpack_from(data, start + place * _WORD)[0])
    if kind not in (_CALL, _RETURN, _FINISH, _BOOTSTRAP):
        return _Message(kind, 0, 0)
    body = _follow(data, start, place + data_words, words, least=1)
    if body is None:
        return None
    number, flags = _NUMBERED.unpack_from(data, start + body[0] * _WORD)
    return _Message(kind, number, flags)


def _follow(data: bytes | bytearray, start: int, at: int, words: int, *, least: int) -> tuple[int, int] | None:
    """The struct that the pointer in word `at` of a segment leads to: where it begins, and its words of data. None: it
    is in another segment."""
    if at >= words:
        raise Malformed("a message without a root")
    pointer, data_words, _ = _ROOT.unpack_from(data, start + at * _WORD)
    if pointer & 3 == _FAR:
        return None
    place = at + 1 + (pointer >> 2)
    if pointer & 3 or data_words < least or not 0 < place <= words - data_words:
        raise Malformed("a message without a root")
    return place, data_words
