"""One write batch as a log holds it, followed only as far as to say whether all of it is there.

batch       sequence 8 | count 4 | count operations; the next batch's sequence is sequence + count
operation   tag 1 [| family], key [, value], each as length and bytes; numbers as varints
"""

import struct
from enum import Enum

HEAD = struct.Struct("<QI")

# What the engine writes: per tag, whether it names a family, and how many strings follow.
_OPERATIONS = {
    0x0: (False, 1),  # delete
    0x1: (False, 2),  # put
    0x4: (True, 1),  # delete in a family
    0x5: (True, 2),  # put in a family
    0xE: (True, 2),  # delete a range in a family
    0xF: (False, 2),  # delete a range
}
_MAX_VARINT = 5


# Put into the directory by the first batch after each sync: the sequence of the last operation it made certain.
SYNCED_KEY = b"m/synced"
SYNCED = struct.Struct(">Q")
_PUT = 0x1


class BatchExtent(Enum):
    ENDS = "all of it is there"
    RUNS_OUT = "the rest of it is not there"
    MALFORMED = "no batch of ours"


def extent(data: bytes) -> BatchExtent:
    return _follow(data)[0]


def synced_by(data: bytes) -> int | None:
    """Up to which sequence everything was on disk when this batch was written; None if it does not say."""
    reach, synced = _follow(data)
    if reach is not BatchExtent.ENDS or len(synced) != SYNCED.size:
        return None
    return int(SYNCED.unpack(synced)[0])


def _follow(data: bytes) -> tuple[BatchExtent, bytes]:
    """How far it goes, and what it puts under `SYNCED_KEY`."""
    synced = b""
    if len(data) < HEAD.size:
        return BatchExtent.RUNS_OUT, synced
    _, count = HEAD.unpack_from(data)
    at = HEAD.size
    for _ in range(count):
        if at >= len(data):
            return BatchExtent.RUNS_OUT, synced
        tag = data[at]
        operation = _OPERATIONS.get(tag)
        if operation is None:
            return BatchExtent.MALFORMED, synced
        at += 1
        names_family, strings = operation
        ends = []
        for number in range(names_family + strings):
            value, at = _varint(data, at)
            if at > len(data):
                return BatchExtent.RUNS_OUT, synced
            if value is None:
                return BatchExtent.MALFORMED, synced
            if number >= names_family:
                ends.append((at, at + value))
                at += value
                if at > len(data):
                    return BatchExtent.RUNS_OUT, synced
        if tag == _PUT and data[slice(*ends[0])] == SYNCED_KEY:
            synced = data[slice(*ends[1])]
    return BatchExtent.ENDS, synced


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """The number and the place behind it; a place beyond the end if it is cut, no number if it is none."""
    value = 0
    for place in range(_MAX_VARINT):
        if at + place >= len(data):
            return None, len(data) + 1
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return None, at
