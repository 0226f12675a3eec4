"""The bytes of the log: a segment's header, and records one behind the other.

    header   magic 8 | format 2 | node 16 | epoch 8 | segment 8 | first sequence 8 | checksum 4          54 bytes
    record   length 4 | checksum 4 | sequence 8 | synced 8 | place 8 | lane 2 | kind 1 | body            35 bytes + body

`node` names the log for good, `epoch` one opening of it: drawn at random, so that nothing written by another opening,
or by a copy of the directory, passes for this one's. `sequence` counts an epoch's records, across segments. `synced` is
the sequence before which everything was on disk when this record was written: a bad record that a later one knows to
have been on disk was damaged, one that nobody knows of was torn. `lane` is the database the record is for, and `place`
counts the records of each lane: what has landed is written down in places.

A checksum covers where its record stands too, with the epoch: so no bytes inside a payload, and no old bytes of a disk,
are ever read as a record.
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

# No record is longer, so a damaged length is seen as such.
MAX_BODY = 64 << 20
MAX_LANE = 0xFFFF


class RecordKind(IntEnum):
    MESSAGES = 1
    # The places in its body are not to be stored: their callers were refused.
    VOID = 2
    # The segment's last record: nothing of it was torn off.
    SEAL = 3


class SegmentHeader(NamedTuple):
    node: UUID
    epoch: int
    segment: int
    first: int


class LogRecord(NamedTuple):
    sequence: int
    synced: int
    lane: int
    place: int
    kind: RecordKind
    body: bytes


class WrongFormat(ValueError):
    """A segment of ours, written by a newer Holdfast."""


def encode_header(header: SegmentHeader) -> bytes:
    raw = _HEADER.pack(MAGIC, FORMAT, header.node.bytes, header.epoch, header.segment, header.first)
    return raw + _CHECKSUM.pack(zlib.crc32(raw))


def decode_header(raw: bytes) -> SegmentHeader | None:
    """None: this is no header, or a damaged one."""
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
    facts = _FACTS.pack(record.sequence, record.synced, record.place, record.lane, record.kind)
    checksum = _sum(header, offset, len(record.body), facts, record.body)
    return b"".join((_LENGTHS.pack(len(record.body), checksum), facts, record.body))


def decode_record(header: SegmentHeader, raw: bytes | memoryview, offset: int) -> LogRecord | None:
    """The record that stands at `offset` of the segment `raw`; None: there is none, or not a whole one."""
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
    sequence, synced, place, lane, kind = _FACTS.unpack(facts)
    try:
        return LogRecord(sequence, synced, lane, place, RecordKind(kind), body)
    except ValueError:
        return None


def record_size(body: bytes) -> int:
    return RECORD_BYTES + len(body)


def could_be_record(raw: bytes | memoryview, offset: int) -> bool:
    """Cheap, for a search byte by byte: most offsets are dismissed without their checksum."""
    length, _ = _LENGTHS.unpack_from(raw, offset)
    if length > MAX_BODY or offset + RECORD_BYTES + length > len(raw):
        return False
    return 1 <= raw[offset + RECORD_BYTES - 1] <= max(RecordKind)


def _sum(header: SegmentHeader, offset: int, length: int, facts: bytes, body: bytes) -> int:
    salt = _SALT.pack(header.epoch, header.segment, offset, length)
    return zlib.crc32(body, zlib.crc32(facts, zlib.crc32(salt)))
