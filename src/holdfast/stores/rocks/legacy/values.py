"""The values of the legacy layout (SPEC 4.7): Cap'n Proto messages, decoded without the Cap'n Proto library.

    stored_item   pointers: contents, id, visibility_ts_index_key, all Data; their order varies (field_order.py)
    lease_entry   pointers: keys 0, a list of Data;  data: expiry in seconds 8 (0 or missing: only the index has it)

A value is a stream of one message, plain or packed. A plain message begins with its number of segments minus one, which
is at most 511. A packed message, read as a plain one, begins with a far larger number. So no value can be read both
ways.

Values are not trusted. Any error in a value raises `Unreadable`, and no byte outside of it is read.
"""

import struct
from typing import NamedTuple

from holdfast.stores.rocks.legacy.field_order import FieldOrder, Fields

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_WORD = 8
_MAX_SEGMENTS = 512
# Maximum number of pointers followed to one object. A valid message needs at most two.
_MAX_HOPS = 4

_STRUCT, _LIST, _FAR = 0, 1, 2
_BYTES, _POINTERS = 2, 6


class Unreadable(Exception):
    """A value cannot be decoded. The text says why."""


class StoredItem(NamedTuple):
    """The fields of a message."""

    contents: bytes
    id: bytes
    index_key: bytes


class LeaseEntry(NamedTuple):
    """The fields of a lease."""

    # The ids of its messages, or their keys.
    keys: list[bytes]
    # The end of the lease in seconds since the Unix epoch; 0: only the index of expiries has it.
    expires_s: int


def decode_fields(raw: bytes) -> Fields:
    """Return the three Data fields of a stored_item in their stored order."""
    root = _root_of(raw)
    return root.data(0), root.data(1), root.data(2)


def decode_item(raw: bytes, id: bytes, order: FieldOrder) -> StoredItem:
    """Return the stored_item whose key has this id. Raise `Unreadable` if the value has another id; it may have
    none."""
    fields = decode_fields(raw)
    why = order.misfit(fields, id)
    if why is not None:
        raise Unreadable(why)
    return StoredItem(fields[order.contents], fields[order.id], fields[order.index_key])


def decode_lease(raw: bytes) -> LeaseEntry:
    """Return the lease_entry. Raise `Unreadable`."""
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
    """Return the plain form of a packed message. Raise `Unreadable` if it is cut short.

    Each word of 8 bytes is packed as a byte of flags and those of its bytes that are not zero. A flag byte of 0 is
    followed by the number of further words that are zero; one of 255 is followed by its word and the number of words
    that follow unpacked.
    """
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
    """A plain message, with checked access to its segments."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _WORD:
            raise Unreadable("it is too short to be a message")
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
            raise Unreadable("there are bytes after the end of the message")

    def root(self) -> "_Struct":
        segment, at, word = self._follow(0, 0)
        if word is None or word & 3 != _STRUCT:
            raise Unreadable("it has no root struct")
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
            raise Unreadable("a pointer leads outside of it")

    def _follow(self, segment: int, at: int) -> tuple[int, int, int | None]:
        """Follow far pointers to the final one. Return its segment, the index of the word behind it, and the pointer,
        or None for a null pointer."""
        for _ in range(_MAX_HOPS):
            word = self._word(segment, at)
            if word == 0:
                return segment, at + 1, None
            if word & 3 != _FAR:
                return segment, at + 1, word
            target, offset = word >> 32, word >> 3 & 0x1FFF_FFFF
            if word & 4:  # a landing pad of two words: the location of the object, and its type
                pad = self._word(target, offset)
                tag = self._word(target, offset + 1)
                if pad & 7 != _FAR:
                    raise Unreadable("it has a pointer of an unknown kind")
                return pad >> 32, pad >> 3 & 0x1FFF_FFFF, tag & ~0xFFFF_FFFC if tag & 3 == _STRUCT else tag
            segment, at = target, offset
        raise Unreadable("it has a chain of pointers that does not end")

    def list_at(self, segment: int, at: int) -> tuple[int, int, int, int]:
        """Return a list's segment, the index of its first word, the size code of its elements, and their number."""
        segment, behind, word = self._follow(segment, at)
        if word is None:
            return segment, behind, _BYTES, 0
        if word & 3 != _LIST:
            raise Unreadable("a field is not a list")
        return segment, behind + _offset(word), word >> 32 & 7, word >> 35

    def bytes_of(self, segment: int, at: int) -> bytes:
        segment, begin, kind, count = self.list_at(segment, at)
        if not count:
            return b""
        if kind != _BYTES:
            raise Unreadable("a field is not Data")
        self._check(segment, begin, (count + _WORD - 1) // _WORD)
        return self._segments[segment][begin * _WORD : begin * _WORD + count]

    def number(self, segment: int, at: int) -> int:
        return self._word(segment, at)


class _Struct(NamedTuple):
    """A struct in a message, with access to its fields by index. A missing field has its default."""

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
            raise Unreadable("the keys are not a list of Data")
        self.message._check(segment, begin, count)
        return [self.message.bytes_of(segment, begin + n) for n in range(count)]


def _offset(word: int) -> int:
    """Return the signed offset in a pointer, in words: the distance from the word behind the pointer to the object."""
    offset = word >> 2 & 0x3FFF_FFFF
    return offset - (1 << 30) if offset >> 29 else offset
