"""Values of the legacy layout (SPEC 4.7): Cap'n Proto messages, read without its library.

    stored_item   pointers: contents, id, visibility_ts_index_key, all Data; their order varies (legacy_orders.py)
    lease_entry   pointers: keys 0, a list of Data;  data: expiry in seconds 8 (0 or missing: only the index has it)

A value is a stream of one message, plain or packed. A plain message begins with its number of segments less one, at
most 511; a packed one, read so, begins with a far larger number. So no value can be read both ways.

Values are not trusted: any fault raises `Unreadable`, and nothing outside of the value is read.
"""

import struct
from typing import NamedTuple

from holdfast.stores.rocks.legacy.field_order import FieldOrder, Fields

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
    id: bytes
    index_key: bytes


class LeaseEntry(NamedTuple):
    keys: list[bytes]
    # 0: the entry does not say.
    expires_s: int


def decode_fields(raw: bytes) -> Fields:
    """Return the Data fields of a stored_item by position."""
    root = _root_of(raw)
    return root.data(0), root.data(1), root.data(2)


def decode_item(raw: bytes, id: bytes, order: FieldOrder) -> StoredItem:
    """Return the stored_item of the key with this id. Its own id may be empty; another id is `Unreadable`."""
    fields = decode_fields(raw)
    why = order.misfit(fields, id)
    if why is not None:
        raise Unreadable(why)
    return StoredItem(fields[order.contents], fields[order.id], fields[order.index_key])


def decode_lease(raw: bytes) -> LeaseEntry:
    root = _root_of(raw)
    return LeaseEntry(root.list_of_data(0), root.number(0))


def _root_of(raw: bytes) -> "_Struct":
    try:
        message = _Message(raw)
    except Unreadable as error:
        try:
            message = _Message(unpack(raw))
        except Unreadable:
            raise error from None
    root = message.root()
    if not root.pointers:
        raise Unreadable("it has no fields")
    return root


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
