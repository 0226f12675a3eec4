"""Parsing of one write batch of RocksDB's log, just far enough to decide whether it is complete.

batch       sequence 8 | count 4 | count operations; the next batch's sequence is sequence + count
operation   tag 1 [| family], key [, value], each as length and bytes; numbers as varints
"""

import struct
from enum import Enum

HEAD = struct.Struct("<QI")

# The operations that the engine writes: whether the tag is followed by a family, and by how many strings.
_OPERATIONS = {
    0x0: (False, 1),  # delete
    0x1: (False, 2),  # put
    0x4: (True, 1),  # delete in a family
    0x5: (True, 2),  # put in a family
    0xE: (True, 2),  # delete a range in a family
    0xF: (False, 2),  # delete a range
}
_MAX_VARINT = 5


# Each first batch after a sync puts this key into the directory: the sequence of the last operation that was synced.
SYNCED_KEY = b"m/synced"
SYNCED = struct.Struct(">Q")
_PUT = 0x1


class BatchExtent(Enum):
    """The extent of a batch in its log."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    MALFORMED = "malformed"


def find_extent(data: bytes) -> BatchExtent:
    """Return whether the batch is complete."""
    return _parse(data)[0]


def read_synced(data: bytes) -> int | None:
    """Return the sequence up to which everything was synced when this batch was written; None if the batch does not
    say."""
    extent, synced = _parse(data)
    if extent is not BatchExtent.COMPLETE or len(synced) != SYNCED.size:
        return None
    return int(SYNCED.unpack(synced)[0])


def _parse(data: bytes) -> tuple[BatchExtent, bytes]:
    """Return how far the batch reaches, and the value that it puts under `SYNCED_KEY`."""
    synced = b""
    if len(data) < HEAD.size:
        return BatchExtent.CUT_SHORT, synced
    _, count = HEAD.unpack_from(data)
    offset = HEAD.size
    for _ in range(count):
        if offset >= len(data):
            return BatchExtent.CUT_SHORT, synced
        tag = data[offset]
        operation = _OPERATIONS.get(tag)
        if operation is None:
            return BatchExtent.MALFORMED, synced
        offset += 1
        names_family, strings = operation
        ends = []
        for number in range(names_family + strings):
            value, offset = _parse_varint(data, offset)
            if offset > len(data):
                return BatchExtent.CUT_SHORT, synced
            if value is None:
                return BatchExtent.MALFORMED, synced
            if number >= names_family:
                ends.append((offset, offset + value))
                offset += value
                if offset > len(data):
                    return BatchExtent.CUT_SHORT, synced
        if tag == _PUT and data[slice(*ends[0])] == SYNCED_KEY:
            synced = data[slice(*ends[1])]
    return BatchExtent.COMPLETE, synced


def _parse_varint(data: bytes, offset: int) -> tuple[int | None, int]:
    """Return a number and the offset behind it. The offset is beyond the end if the number is cut short; the number is
    None if it is invalid."""
    value = 0
    for index in range(_MAX_VARINT):
        if offset + index >= len(data):
            return None, len(data) + 1
        byte = data[offset + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, offset + index + 1
    return None, offset
