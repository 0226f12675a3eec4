"""Split a Cap'n Proto stream into frames and enforce limits before pycapnp reads them.

    u32 segments - 1 | u32 words of each segment | 0-4 bytes of padding to a whole word | the segments

A frame is returned once it has arrived whole. No memory is reserved for an announced size before the bytes arrive.
"""

import struct

# The maximum number of segments that pycapnp reads.
_MAX_SEGMENTS = 512
_WORD = 8

_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<II")
_ROOT = struct.Struct("<iHH")
_TAG = struct.Struct("<H")
_NUMBERED = struct.Struct("<IB")
# The layout that every known library writes: one segment with the root, its tag, the pointer to the body, and the
# body's question number.
_USUAL = struct.Struct("<IIQQiHHIB")
_USUAL_ROOT = 0x0001_0001_0000_0000

_FAR = 2

# The kinds of rpc.capnp's Message that ask a question (`_CALL`, `_BOOTSTRAP`), answer it (`_RETURN`) and release the
# answer (`_FINISH`). Each begins with the number of its question.
_CALL, _RETURN, _FINISH, _BOOTSTRAP = 2, 3, 4, 8
# A flag of a return, in the byte after that number: it holds no capabilities, so no finish is needed.
_NO_FINISH = 0b10


class Malformed(Exception):
    """The received bytes are not valid Cap'n Proto or exceed a limit. The connection cannot be read any further."""


class Frames:
    """A parser that splits the bytes of one connection into frames and counts its unfinished calls.

    `max_bytes` limits one frame. `max_unfinished` limits the calls whose responses the other side has not released yet,
    because each of them uses memory on this side; None means no limit.
    """

    def __init__(self, max_bytes: int, max_unfinished: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_unfinished = max_unfinished
        # The bytes of each unfinished call by its question number; 0 once its response was sent.
        self._unfinished: dict[int, int] = {}
        self._unanswered_bytes = 0
        # Calls in a layout that hides their question number from this parser, and their bytes.
        self._unnumbered = 0
        self._unnumbered_bytes = 0
        self._data = bytearray()

    def take(self, data: bytes) -> bytes:
        """Add received bytes, and return the frames that are now complete, concatenated.

        Finishes of calls that were already finished by their return are left out. Raise `Malformed` for invalid bytes
        and for exceeded limits.
        """
        given: bytes | bytearray = data
        if self._data:
            self._data += data
            given = self._data
        begins = end = 0
        wanted: list[bytes | bytearray] = []
        while (size := self._size_at(given, end)) is not None and len(given) - end >= size:
            if self._max_unfinished is not None and not self._note_received(given, end, size, self._max_unfinished):
                wanted.append(given[begins:end])
                begins = end + size
            end += size
        if given is data:
            self._data += data[end:]
            # Most calls arrive in one piece.
            if not begins and end == len(data):
                return data
            wanted.append(data[begins:end])
        else:
            wanted.append(self._data[begins:end])
            del self._data[:end]
        return b"".join(wanted)

    def note_sent(self, data: bytes) -> None:
        """Note the responses among whole frames that this side sends.

        A response without capabilities finishes its call as it is sent.
        """
        at = 0
        while self._unfinished and at < len(data):
            message = _read(data, at)
            if message is not None:
                kind, question, flags = message
                if kind == _RETURN and question in self._unfinished:
                    self._unanswered_bytes -= self._unfinished[question]
                    if flags & _NO_FINISH:
                        del self._unfinished[question]
                    else:
                        self._unfinished[question] = 0
            at += _size_of(data, at)[1]

    @property
    def is_full(self) -> bool:
        """Return whether the unanswered calls hold more bytes than one frame may have, so that reading must pause."""
        return self._unanswered_bytes > self._max_bytes

    @property
    def is_between_frames(self) -> bool:
        """Return whether no incomplete frame is held."""
        return not self._data

    def _size_at(self, data: bytes | bytearray, at: int) -> int | None:
        """Return the size of the frame that begins at `at`, or None until its segment table has arrived whole."""
        if len(data) - at < 4:
            return None
        segments = _U32.unpack_from(data, at)[0] + 1
        if segments > _MAX_SEGMENTS:
            raise Malformed(f"a message of {segments} segments")
        if len(data) - at < _table_bytes(segments):
            return None
        _, size = _size_of(data, at)
        if size > self._max_bytes:
            raise Malformed(f"a message of {size} bytes; the limit is {self._max_bytes}")
        return size

    def _note_received(self, data: bytes | bytearray, at: int, size: int, max_unfinished: int) -> bool:
        """Count a received frame. Return False for a finish of a call that its return has already finished."""
        message = _read(data, at)
        if message is None:
            self._unnumbered += 1
            self._unnumbered_bytes += size
            if self._unnumbered_bytes > self._max_bytes:
                raise Malformed(f"more than {self._max_bytes} bytes of calls without a readable question number")
        else:
            kind, question, _ = message
            if kind == _FINISH:
                unanswered = self._unfinished.pop(question, None)
                if unanswered is None:
                    return self._unnumbered > 0  # it may finish one of those
                self._unanswered_bytes -= unanswered
                return True
            if kind in (_CALL, _BOOTSTRAP):
                self._unanswered_bytes += size - self._unfinished.get(question, 0)
                self._unfinished[question] = size
        if len(self._unfinished) + self._unnumbered > max_unfinished:
            raise Malformed(f"more than {max_unfinished} unfinished calls")
        return True


def _table_bytes(segments: int) -> int:
    return (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD


def _size_of(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the bytes of the segment table of the frame that begins at `at`, and those of the whole frame."""
    more, words = _HEAD.unpack_from(data, at)
    if not more:
        return _WORD, _WORD + words * _WORD
    segments = more + 1
    table = _table_bytes(segments)
    words = sum(_U32.unpack_from(data, at + 4 * (n + 1))[0] for n in range(segments))
    return table, int(table + words * _WORD)


def _read(data: bytes | bytearray, at: int) -> tuple[int, int, int] | None:
    """Return the kind, the question number and the flags of a frame.

    Return None if they are not in the first segment, which is allowed if that is small.
    """
    if len(data) - at >= _USUAL.size:
        more, words, root_pointer, tag, pointer, body_words, _, number, flags = _USUAL.unpack_from(data, at)
        if not more and root_pointer == _USUAL_ROOT and not pointer and body_words and words >= 3 + body_words:
            return tag & 0xFFFF, number, flags
    table, _ = _size_of(data, at)
    words = _U32.unpack_from(data, at + 4)[0]
    start = at + table
    if not words:
        raise Malformed("an empty message")
    root = _follow(data, start, 0, words, least=1)
    if root is None:
        return None
    root_word, data_words = root
    kind = int(_TAG.unpack_from(data, start + root_word * _WORD)[0])
    if kind not in (_CALL, _RETURN, _FINISH, _BOOTSTRAP):
        return kind, 0, 0
    body = _follow(data, start, root_word + data_words, words, least=1)
    if body is None:
        return None
    number, flags = _NUMBERED.unpack_from(data, start + body[0] * _WORD)
    return kind, number, flags


def _follow(data: bytes | bytearray, start: int, at: int, words: int, *, least: int) -> tuple[int, int] | None:
    """Return the first word and the data words of the struct that the pointer in word `at` of a segment points to.

    Return None if it points into another segment.
    """
    if at >= words:
        raise Malformed("a message without a root")
    pointer, data_words, _ = _ROOT.unpack_from(data, start + at * _WORD)
    if pointer & 3 == _FAR:
        return None
    first = at + 1 + (pointer >> 2)
    if pointer & 3 or data_words < least or not 0 < first <= words - data_words:
        raise Malformed("a message without a root")
    return first, data_words
