"""The records of RocksDB's own log.

block    32 KiB; a record lies in one block, and a longer batch is split into several records
record   checksum 4 | length 2 | type 1 | data, little-endian; the checksum covers type and data
type     1 whole, 2 first, 3 middle, 4 last part of a batch; no other, because logs are not recycled or compressed
"""

import struct

import google_crc32c

BLOCK = 32_768
HEADER_SIZE = 7
LENGTH_AND_TYPE = struct.Struct("<HB")
_CHECKSUM = struct.Struct("<I")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def find_chain_end(raw: bytes, offset: int, stop: int) -> int:
    """Return the offset in a block at which no further whole record begins."""
    unpack, last_header = LENGTH_AND_TYPE.unpack_from, stop - HEADER_SIZE
    while offset <= last_header:
        length, type = unpack(raw, offset + 4)
        after = offset + HEADER_SIZE + length
        if not WHOLE <= type <= LAST or after > stop:
            break
        offset = after
    return offset


def list_records(raw: bytes, offset: int, end: int) -> list[tuple[int, int, int]]:
    """Return start, end and type of each record up to the end of a chain (`find_chain_end`)."""
    found = []
    while offset + HEADER_SIZE <= end:
        length, type = LENGTH_AND_TYPE.unpack_from(raw, offset + 4)
        found.append((offset, offset + HEADER_SIZE + length, type))
        offset += HEADER_SIZE + length
    return found


def has_valid_checksum(raw: bytes, offset: int, after: int) -> bool:
    """Return whether the checksum of a record is correct."""
    checksum = google_crc32c.value(raw[offset + 6 : after])
    # RocksDB stores checksums rotated and offset, so that data which contains checksums still has a good checksum.
    masked = (checksum >> 15 | checksum << 17) + 0xA282EAD8 & 0xFFFFFFFF
    (kept,) = _CHECKSUM.unpack_from(raw, offset)
    return bool(kept == masked)
