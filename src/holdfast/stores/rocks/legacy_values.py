"""Values of the legacy layout (SPEC 4.7): Cap'n Proto messages, read without its library.

    stored_item   pointers: contents 0 | visibility_ts_index_key 1 | id 2        all Data
    lease_entry   pointers: keys 0, a list of Data;  data: expiry in seconds 8 (0 or missing: the index alone has it)

A value is a stream of one message, plain or packed. It is judged as a stranger's: whatever is wrong with it is
`Unreadable`, and nothing is read outside of it.
"""

import struct
from typing import NamedTuple

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_WORD = 8
_MAX_SEGMENTS = 512
# Pointers that lead to pointers: two at most in what is well made.
_HOPS = 4

_STRUCT, _LIST, _FAR = 0, 1, 2
_BYTES, _POINTERS = 2, 6


class Unreadable(Exception):
    """Why a value is not what it should be."""


class StoredItem(NamedTuple):
    contents: bytes
    index_key: bytes
    id: bytes


class LeaseEntry(NamedTuple):
    keys: list[bytes]
    # 0: it does not say.
    expires_s: int


def decode_item(raw: bytes, id: bytes) -> StoredItem:
    """The item that its key says it is: `id` tells a plain value from a packed one."""
    plain: Unreadable | None = None
    for message in (raw, None):
        try:
            root = _Message(unpack(raw) if message is None else message).root()
            item = StoredItem(root.data(0), root.data(1), root.data(2))
            if item.id and item.id != id:
                raise Unreadable(f"its id is {item.id.hex()}, not its key's")
            if message is None and not item.id:
                raise Unreadable("it has no id")
            return item
        except Unreadable as error:
            plain = plain or error
    raise plain or Unreadable("it is empty")


def decode_lease(raw: bytes) -> LeaseEntry:
    plain: Unreadable | None = None
    for message in (raw, None):
        try:
            root = _Message(unpack(raw) if message is None else message).root()
            return LeaseEntry(root.list_of_data(0), root.number(0))
        except Unreadable as error:
            plain = plain or error
    raise plain or Unreadable("it is empty")


def unpack(packed: bytes) -> bytes:
    """Each word is a byte of flags and the bytes that are not zero. After a flag byte of 0 comes how many more words
    are zero; after one of 255 and its word, how many words follow as they are."""
    out = bytearray()
    at, end = 0, len(packed)
    try:
        while at < end:
            flags = packed[at]
            at += 1
            for bit in range(8):
                if flags >> bit & 1:
                    out.append(packed[at])
                    at += 1
                else:
                    out.append(0)
            if flags == 0:
                out += bytes(_WORD * packed[at])
                at += 1
            elif flags == 0xFF:
                words = packed[at] * _WORD
                at += 1
                if at + words > end:
                    raise Unreadable("it is cut short")
                out += packed[at : at + words]
                at += words
    except IndexError:
        raise Unreadable("it is cut short") from None
    return bytes(out)


class _Message:
    def __init__(self, raw: bytes) -> None:
        if len(raw) < _WORD:
            raise Unreadable("it is too short for a message")
        segments = _U32.unpack_from(raw)[0] + 1
        start = (4 * (segments + 1) + _WORD - 1) // _WORD * _WORD
        if segments > _MAX_SEGMENTS or len(raw) < start:
            raise Unreadable("it is not a message")
        self._segments: list[bytes] = []
        for number in range(segments):
            size = _U32.unpack_from(raw, 4 * (number + 1))[0] * _WORD
            if start + size > len(raw):
                raise Unreadable("it is cut short")
            self._segments.append(raw[start : start + size])
            start += size
        if start != len(raw):
            raise Unreadable("there is more of it than one message")

    def root(self) -> "_Struct":
        segment, at, word = self._follow(0, 0)
        if word is None or word & 3 != _STRUCT:
            raise Unreadable("it has no root")
        data, pointers = word >> 32 & 0xFFFF, word >> 48
        begin = at + _offset(word)
        self._check(segment, begin, data + pointers)
        return _Struct(self, segment, begin, data, pointers)

    def _word(self, segment: int, at: int) -> int:
        self._check(segment, at, 1)
        word: int = _U64.unpack_from(self._segments[segment], at * _WORD)[0]
        return word

    def _check(self, segment: int, at: int, words: int) -> None:
        if segment >= len(self._segments) or at < 0 or (at + words) * _WORD > len(self._segments[segment]):
            raise Unreadable("it points outside of itself")

    def _follow(self, segment: int, at: int) -> tuple[int, int, int | None]:
        """A pointer, by way of others: its segment, the word behind it, and itself (None: it points nowhere)."""
        for _ in range(_HOPS):
            word = self._word(segment, at)
            if word == 0:
                return segment, at + 1, None
            if word & 3 != _FAR:
                return segment, at + 1, word
            target, place = word >> 32, word >> 3 & 0x1FFF_FFFF
            if word & 4:  # of two words: where the object is, and what it is
                pad = self._word(target, place)
                tag = self._word(target, place + 1)
                if pad & 7 != _FAR:
                    raise Unreadable("it points in a way that is not known")
                return pad >> 32, pad >> 3 & 0x1FFF_FFFF, tag & ~0xFFFF_FFFC if tag & 3 == _STRUCT else tag
            segment, at = target, place
        raise Unreadable("it points in circles")

    def list_at(self, segment: int, at: int) -> tuple[int, int, int, int]:
        """Of a list: its segment, its first word, the size of its elements, and how many there are."""
        segment, behind, word = self._follow(segment, at)
        if word is None:
            return segment, behind, _BYTES, 0
        if word & 3 != _LIST:
            raise Unreadable("there is something else where a list should be")
        return segment, behind + _offset(word), word >> 32 & 7, word >> 35

    def bytes_of(self, segment: int, at: int) -> bytes:
        segment, begin, kind, count = self.list_at(segment, at)
        if not count:
            return b""
        if kind != _BYTES:
            raise Unreadable("there is something else where bytes should be")
        self._check(segment, begin, (count + _WORD - 1) // _WORD)
        return self._segments[segment][begin * _WORD : begin * _WORD + count]

    def number(self, segment: int, at: int) -> int:
        return self._word(segment, at)


class _Struct(NamedTuple):
    message: _Message
    segment: int
    begin: int
    data_words: int
    pointers: int

    def data(self, index: int) -> bytes:
        if index >= self.pointers:
            return b""
        return self.message.bytes_of(self.segment, self.begin + self.data_words + index)

    def number(self, index: int) -> int:
        return self.message.number(self.segment, self.begin + index) if index < self.data_words else 0

    def list_of_data(self, index: int) -> list[bytes]:
        if index >= self.pointers:
            return []
        segment, begin, kind, count = self.message.list_at(self.segment, self.begin + self.data_words + index)
        if not count:
            return []
        if kind != _POINTERS:
            raise Unreadable("there is something else where a list of keys should be")
        self.message._check(segment, begin, count)
        return [self.message.bytes_of(segment, begin + n) for n in range(count)]


def _offset(word: int) -> int:
    """Of an object behind its pointer, in words; it may lie before it."""
    offset = word >> 2 & 0x3FFF_FFFF
    return offset - (1 << 30) if offset >> 29 else offset
