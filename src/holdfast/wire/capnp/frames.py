"""The frames of a Cap'n Proto stream, taken apart before anything of them is read.

    u32 segments - 1 | u32 words of each segment | 0-4 bytes to a whole word | the segments

A frame is handed on when it has come whole: what a header promises costs nothing until it is sent.
"""

import struct

# The most that the library reads.
_MAX_SEGMENTS = 512
_WORD = 8

_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<II")
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
        # By their numbers: how many bytes each has, until it is answered.
        self._unfinished: dict[int, int] = {}
        self._in_hand = 0
        # Calls that are written in such a way that their number is not seen here, and their bytes.
        self._nameless = 0
        self._nameless_bytes = 0
        self._data = bytearray()

    def take(self, data: bytes) -> bytes:
        """The frames that are whole now, one behind the other, without those that the library need not see."""
        given: bytes | bytearray = data
        if self._data:
            self._data += data
            given = self._data
        begins = end = 0
        wanted: list[bytes | bytearray] = []
        while (size := self._size_at(given, end)) is not None and len(given) - end >= size:
            if self._max_unfinished is not None and not self._note_asked(given, end, size, self._max_unfinished):
                wanted.append(given[begins:end])
                begins = end + size
            end += size
        if given is data:
            self._data += data[end:]
            if not begins and end == len(data):  # as most calls come
                return data
            wanted.append(data[begins:end])
        else:
            wanted.append(self._data[begins:end])
            del self._data[:end]
        return b"".join(wanted)

    def note_answered(self, data: bytes) -> None:
        """Of whole frames that go the other way: answers that hold nothing are let go of as they are sent."""
        at = 0
        while self._unfinished and at < len(data):
            message = _read(data, at)
            if message is not None:
                kind, question, flags = message
                if kind == _RETURN and question in self._unfinished:
                    self._in_hand -= self._unfinished[question]
                    if flags & _NO_FINISH:
                        del self._unfinished[question]
                    else:
                        self._unfinished[question] = 0
            at += _size_of(data, at)[1]

    @property
    def is_full(self) -> bool:
        """The calls that are not answered yet have more bytes than the largest one may have: no more of them are to be
        read for now."""
        return self._in_hand > self._max_bytes

    @property
    def is_between(self) -> bool:
        """No frame has begun that is not whole."""
        return not self._data

    def _size_at(self, data: bytes | bytearray, at: int) -> int | None:
        """None: the table has not come whole."""
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

    def _note_asked(self, data: bytes | bytearray, at: int, size: int, most: int) -> bool:
        """False: it lets go of what was let go of when it was answered, and says nothing."""
        message = _read(data, at)
        if message is None:
            self._nameless += 1
            self._nameless_bytes += size
            if self._nameless_bytes > self._max_bytes:
                raise Malformed(f"more than {self._max_bytes} bytes of calls whose numbers cannot be seen")
        else:
            kind, question, _ = message
            if kind == _FINISH:
                asked = self._unfinished.pop(question, None)
                if asked is None:
                    return self._nameless > 0  # perhaps of one of those
                self._in_hand -= asked
                return True
            if kind in (_CALL, _BOOTSTRAP):
                self._in_hand += size - self._unfinished.get(question, 0)
                self._unfinished[question] = size
        if len(self._unfinished) + self._nameless > most:
            raise Malformed(f"more than {most} calls that are not finished")
        return True


def _table_of(segments: int) -> int:
    return (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD


def _size_of(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Of the frame that begins here: its table's bytes, and its own."""
    more, words = _HEAD.unpack_from(data, at)
    if not more:
        return _WORD, _WORD + words * _WORD
    segments = more + 1
    table = _table_of(segments)
    words = sum(_U32.unpack_from(data, at + 4 * (n + 1))[0] for n in range(segments))
    return table, int(table + words * _WORD)


def _read(data: bytes | bytearray, at: int) -> tuple[int, int, int] | None:
    """What a frame is: its kind, its question and the flags behind that. None: they stand in another segment, as they
    may where the first is small."""
    if len(data) - at >= _USUAL.size:
        more, words, root_word, tag, pointer, body_words, _, number, flags = _USUAL.unpack_from(data, at)
        if not more and root_word == _USUAL_ROOT and not pointer and body_words and words >= 3 + body_words:
            return tag & 0xFFFF, number, flags
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
        return kind, 0, 0
    body = _follow(data, start, place + data_words, words, least=1)
    if body is None:
        return None
    number, flags = _NUMBERED.unpack_from(data, start + body[0] * _WORD)
    return kind, number, flags


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
