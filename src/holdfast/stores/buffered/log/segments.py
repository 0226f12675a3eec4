"""Read segments of the log: their records, a torn end, and damage."""

import itertools
import os
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.buffered.log.records import (
    HEADER_BYTES,
    RECORD_BYTES,
    LogRecord,
    RecordKind,
    SegmentHeader,
    WrongFormat,
    could_be_record,
    decode_header,
    decode_record,
    record_size,
)

SUFFIX = ".wal"


class LogDamaged(StoreUnavailable):
    """The log is not as it was written. Nothing is skipped, because the records after the damage were answered too."""


class WalSegment(NamedTuple):
    """A segment that was read."""

    path: Path
    header: SegmentHeader
    records: list[LogRecord]
    # The offset of the end of the last complete record.
    end: int
    is_sealed: bool

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return HEADER_BYTES


def file_name(segment: int) -> str:
    """Return the file name of a segment."""
    return f"{segment:016d}{SUFFIX}"


def list_segments(path: Path) -> list[Path]:
    """Return the paths of all segments in order of their numbers. Raise `LogDamaged` if one is missing between two
    others."""
    found = sorted(
        each for each in path.iterdir() if each.suffix == SUFFIX and len(each.stem) == 16 and each.stem.isdigit()
    )
    for before, after in itertools.pairwise(found):
        if int(after.stem) != int(before.stem) + 1:
            missing = path / file_name(int(before.stem) + 1)
            raise LogDamaged(
                f"{missing} is missing from the log; restore it, or move {path} away to give up the enqueues in it",
                path=str(missing),
            )
    return found


def read_segment(path: Path, *, may_be_torn: bool) -> WalSegment:
    """Read a segment. Raise `LogDamaged` if it is damaged.

    `may_be_torn` says that this is the last segment, whose end may have been in the middle of a write when the power
    failed.
    """
    raw = path.read_bytes()
    try:
        header = decode_header(raw)
    except WrongFormat as error:
        raise LogDamaged(f"{path} was written by another version: {error}", path=str(path)) from None
    if header is None or file_name(header.segment) != path.name:
        raise _damaged(path, 0)
    records: list[LogRecord] = []
    offset = HEADER_BYTES
    is_sealed = False
    while not is_sealed:
        record = decode_record(header, raw, offset)
        if record is None or record.sequence != header.first + len(records):
            break
        records.append(record)
        offset += record_size(record.body)
        is_sealed = record.kind is RecordKind.SEAL
    if is_sealed:
        records.pop()
        if len(raw) != offset and (not may_be_torn or raw[offset:].strip(b"\x00")):
            raise _damaged(path, offset)
        if len(raw) != offset:  # the reserved space after the seal was not cut off yet
            is_sealed, offset = False, offset - RECORD_BYTES
    elif not may_be_torn or _was_on_disk(header, raw, offset, header.first + len(records)):
        raise _damaged(path, offset)
    return WalSegment(path, header, records, offset, is_sealed)


def check_chain(segments: list[WalSegment]) -> None:
    """Check that the segments belong to one log, and that each epoch's records have no gap. Raise `LogDamaged`."""
    for before, after in itertools.pairwise(segments):
        if before.header.node != after.header.node:
            raise LogDamaged(
                f"{after.path} belongs to another log than {before.path}; restore the directory from one copy",
                path=str(after.path),
            )
        # The seal is a record too.
        ends = before.header.first + len(before.records) + 1
        if before.header.epoch == after.header.epoch and after.header.first != ends:
            raise _damaged(after.path, 0)


def node_of(segments: list[WalSegment]) -> UUID | None:
    """Return the name of the log, or None if it has no segment."""
    return segments[-1].header.node if segments else None


def _was_on_disk(header: SegmentHeader, raw: bytes, offset: int, sequence: int) -> bool:
    """Return whether a record after `offset` reports that the record with this sequence number had been synced
    before."""
    ends = len(raw.rstrip(b"\x00"))  # reserved space is filled with zeros
    for at in range(offset, ends - RECORD_BYTES + 1):
        if not could_be_record(raw, at):
            continue
        record = decode_record(header, raw, at)
        if record is not None and record.synced > sequence:
            return True
    return False


def _damaged(path: Path, offset: int) -> LogDamaged:
    return LogDamaged(
        f"{os.fspath(path)} is damaged at byte {offset}; restore it from a copy, or move the log's directory away to "
        "give up the enqueues that were not stored yet",
        path=str(path),
        offset=offset,
    )
