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


class Extent(Enum):
    ENDS = "all of it is there"
    RUNS_OUT = "the rest of it is not there"
    MALFORMED = "no batch of ours"


def extent(data: bytes) -> Extent:
    if len(data) < HEAD.size:
        return Extent.RUNS_OUT
    _, count = HEAD.unpack_from(data)
    at = HEAD.size
    for _ in range(count):
        if at >= len(data):
            return Extent.RUNS_OUT
        operation = _OPERATIONS.get(data[at])
        if operation is None:
            return Extent.MALFORMED
        at += 1
        names_family, strings = operation
        for number in range(names_family + strings):
            value, at = _varint(data, at)
            if at > len(data):
                return Extent.RUNS_OUT
            if value is None:
                return Extent.MALFORMED
            if number >= names_family:
                at += value
                if at > len(data):
                    return Extent.RUNS_OUT
    return Extent.ENDS


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
