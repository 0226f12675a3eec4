"""The binary format of the log: a segment's header, followed by its records without a gap.

    header   magic 8 | format 2 | node 16 | epoch 8 | segment 8 | first sequence 8 | checksum 4          54 bytes
    record   length 4 | checksum 4 | sequence 8 | synced 8 | number 8 | shard 2 | kind 1 | body          35 bytes + body

`node` names the log for good. `epoch` names one opening of it; it is random, so that no record of another opening, or
of a copy of the directory, is taken for one of this opening. `sequence` counts the records of an epoch, across
segments. `synced` is the sequence number up to which everything was on disk when this record was written: an unreadable
record that a later record reports as synced was damaged; otherwise it was torn. `shard` is the number of the database
that the record is for, and `number` counts the records of each shard: landed records are noted by these numbers.

A checksum also covers the record's offset and epoch. So no bytes inside a payload, and no old bytes of the disk, are
ever read as a record.

How to change this format: raise `FORMAT`, and let `decode_header` and `decode_record` read the old format too: even a
log that has landed completely keeps its last segment.
"""

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

FORMAT = 1
MAGIC = b"HFLOG\r\n\x00"

_HEADER = struct.Struct(">8sH16sQQQ")
_CHECKSUM = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size

_LENGTHS = struct.Struct(">II")
_FACTS = struct.Struct(">QQQHB")
RECORD_BYTES = _LENGTHS.size + _FACTS.size
_SALT = struct.Struct(">QQQI")

# No record is longer, so that most damaged lengths are recognised.
MAX_BODY = 64 << 20
MAX_SHARD = 0xFFFF


class RecordKind(IntEnum):
    """The kind of a record."""

    MESSAGES = 1
    # The records listed in its body must not be stored: their callers were refused.
    VOID = 2
    # The last record of a complete segment: nothing was torn off.
    SEAL = 3


class SegmentHeader(NamedTuple):
    """The header of a segment."""

    node: UUID
    epoch: int
    segment: int
    first: int


class LogRecord(NamedTuple):
    """A record of a segment."""

    sequence: int
    synced: int
    shard: int
    number: int
    kind: RecordKind
    body: bytes


class WrongFormat(ValueError):
    """A segment that a newer Holdfast has written."""


def encode_header(header: SegmentHeader) -> bytes:
    """Encode a segment's header."""
    raw = _HEADER.pack(MAGIC, FORMAT, header.node.bytes, header.epoch, header.segment, header.first)
    return raw + _CHECKSUM.pack(zlib.crc32(raw))


def decode_header(raw: bytes) -> SegmentHeader | None:
    """Decode a segment's header. Return None if it is damaged or not a header; raise `WrongFormat` for another
    format."""
    if len(raw) < HEADER_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    if zlib.crc32(raw[: _HEADER.size]) != checksum:
        return None
    magic, version, node, epoch, segment, first = _HEADER.unpack_from(raw)
    if magic != MAGIC:
        return None
    if version != FORMAT:
        raise WrongFormat(f"format {version}, this Holdfast reads {FORMAT}")
    return SegmentHeader(UUID(bytes=node), epoch, segment, first)


def encode_record(header: SegmentHeader, offset: int, record: LogRecord) -> bytes:
    """Encode a record for the given offset of its segment."""
    facts = _FACTS.pack(record.sequence, record.synced, record.number, record.shard, record.kind)
    checksum = _sum(header, offset, len(record.body), facts, record.body)
    return b"".join((_LENGTHS.pack(len(record.body), checksum), facts, record.body))


def decode_record(header: SegmentHeader, raw: bytes | memoryview, offset: int) -> LogRecord | None:
    """Decode the record at `offset` of the segment `raw`. Return None if there is no complete record."""
    if offset + RECORD_BYTES > len(raw):
        return None
    length, checksum = _LENGTHS.unpack_from(raw, offset)
    end = offset + RECORD_BYTES + length
    if length > MAX_BODY or end > len(raw):
        return None
    facts = bytes(raw[offset + _LENGTHS.size : offset + RECORD_BYTES])
    body = bytes(raw[offset + RECORD_BYTES : end])
    if _sum(header, offset, length, facts, body) != checksum:
        return None
    sequence, synced, number, shard, kind = _FACTS.unpack(facts)
    try:
        return LogRecord(sequence, synced, shard, number, RecordKind(kind), body)
    except ValueError:
        return None


def record_size(body: bytes) -> int:
    """Return the size of a record with this body, in bytes."""
    return RECORD_BYTES + len(body)


def could_be_record(raw: bytes | memoryview, offset: int) -> bool:
    """Return whether a record may begin at `offset`. This cheap test spares most checksums of a search byte by byte."""
    length, _ = _LENGTHS.unpack_from(raw, offset)
    if length > MAX_BODY or offset + RECORD_BYTES + length > len(raw):
        return False
    return 1 <= raw[offset + RECORD_BYTES - 1] <= max(RecordKind)


def _sum(header: SegmentHeader, offset: int, length: int, facts: bytes, body: bytes) -> int:
    salt = _SALT.pack(header.epoch, header.segment, offset, length)
    return zlib.crc32(body, zlib.crc32(facts, zlib.crc32(salt)))
