"""The records of a log, one by one.

block    32 KiB; a record lies in one block, a longer batch is split into several records
record   checksum 4 | length 2 | type 1 | data, little-endian; the checksum is over type and data
type     1 whole, 2 first, 3 middle, 4 last part of a batch; nothing else, for we recycle and compress no log
"""

import struct

import google_crc32c

BLOCK = 32_768
HEADER_SIZE = 7
LENGTH_AND_TYPE = struct.Struct("<HB")
_CHECKSUM = struct.Struct("<I")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chain_end(raw: bytes, at: int, stop: int) -> int:
    """The first place in a block where no record begins that lies in the block as a whole."""
    unpack, last_header = LENGTH_AND_TYPE.unpack_from, stop - HEADER_SIZE
    while at <= last_header:
        length, type = unpack(raw, at + 4)
        after = at + HEADER_SIZE + length
        if not WHOLE <= type <= LAST or after > stop:
            break
        at = after
    return at


def records_of(raw: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """Start, end and type of each record of a chain that was followed before."""
    found = []
    while at + HEADER_SIZE <= end:
        length, type = LENGTH_AND_TYPE.unpack_from(raw, at + 4)
        found.append((at, at + HEADER_SIZE + length, type))
        at += HEADER_SIZE + length
    return found


def checksum_holds(raw: bytes, at: int, after: int) -> bool:
    checksum = google_crc32c.value(raw[at + 6 : after])
    # Kept turned and shifted, so that a checksum of data that holds checksums is still a good one.
    masked = (checksum >> 15 | checksum << 17) + 0xA282EAD8 & 0xFFFFFFFF
    (kept,) = _CHECKSUM.unpack_from(raw, at)
    return bool(kept == masked)
