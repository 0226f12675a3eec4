"""Read a server's log from another process: a flush job, while the server goes on writing or after it has died.

All calls block. Reading takes no lock and changes nothing, so it never blocks the log's owner. It returns only decided
records: the owner has kept them, or no longer runs. An undecided call, which the owner may still void to refuse its
caller, is returned by a later reading. Segments that the owner removes meanwhile have landed.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.stores.buffered.log.records import LogRecord, RecordKind, SegmentHeader, record_size
from holdfast.stores.buffered.log.replay import decode_numbers
from holdfast.stores.buffered.log.segments import LogDamaged, WalSegment, list_segments, read_segment
from holdfast.stores.formats.logged_enqueue import LoggedBatch, LoggedCall, decode_call

# Limits of one transaction.
_MESSAGES = 5_000
_BYTES = 8 << 20
# The owner writes while this reads, so a segment that looks damaged is read again before it is reported.
_TRIES = 5


class SegmentFile(NamedTuple):
    """A segment by its path."""

    path: Path
    number: int


class SegmentContents(NamedTuple):
    """The decided calls of a segment from a start offset on."""

    batches: list[LoggedBatch]
    # The offset where the next reading begins.
    end: int
    # Whether the segment is complete.
    is_whole: bool


def segment_files(wal_dir: str | Path) -> list[SegmentFile]:
    """Return the segments, oldest first. Raise `LogDamaged` if one is missing between two others."""
    for tries_left in range(_TRIES, -1, -1):
        try:
            return [SegmentFile(path, int(path.stem)) for path in list_segments(Path(wal_dir))]
        except LogDamaged:  # or segments were removed one by one during the listing
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def read_calls(file: SegmentFile, start: int = 0, *, is_over: bool = False) -> SegmentContents:
    """Return the decided calls of this segment from byte `start` on, in order, without voided calls and without a torn
    end.

    `is_over` says that no process has the log open, nor will have before this has landed; then the end of the log is
    decided too. Raise `LogDamaged`.
    """
    try:
        segment, successor = _read(file)
    except FileNotFoundError:
        return SegmentContents([], start, is_whole=True)
    decided = _decided(segment, successor, is_over=is_over)
    void = _void(segment, successor)
    batches, end = _batches(segment, decided, start, void)
    is_whole = decided == len(segment.records) and (segment.is_sealed or is_over)
    return SegmentContents(batches, end, is_whole)


def _read(file: SegmentFile) -> tuple[WalSegment, WalSegment | None]:
    """Return the segment and its successor, or None for the successor if there is none; the successor may decide this
    segment's end."""
    next_path = file.path.with_name(f"{file.number + 1:016d}{file.path.suffix}")
    for tries_left in range(_TRIES, -1, -1):
        try:
            # The successor is read first: if it exists, this segment is sealed.
            successor = read_segment(next_path, may_be_torn=True) if next_path.exists() else None
            return read_segment(file.path, may_be_torn=successor is None), successor
        except LogDamaged:
            if not tries_left:
                raise
        except FileNotFoundError:
            if not file.path.exists():
                raise  # the owner removed it because it has landed
    raise AssertionError("unreachable")


def _decided(segment: WalSegment, successor: WalSegment | None, *, is_over: bool) -> int:
    """Return how many of the segment's records, from the first on, are decided.

    Groups of calls are written one after the other, and the first record after a group decides it: that record voids
    some of its calls, or shows that all were kept.
    """
    records = segment.records
    if is_over or (successor is not None and (successor.records or not _is_same(segment.header, successor.header))):
        return len(records)
    last = records[-1].synced if records else 0
    return sum(record.sequence < last or record.kind is not RecordKind.MESSAGES for record in records)


def _is_same(one: SegmentHeader, other: SegmentHeader) -> bool:
    return one.epoch == other.epoch


def _void(segment: WalSegment, successor: WalSegment | None) -> set[tuple[int, int]]:
    """Return (shard, number) of the voided records."""
    records = list(segment.records)
    if successor is not None and _is_same(segment.header, successor.header):
        records += successor.records[:1]
    return {listed for record in records if record.kind is RecordKind.VOID for listed in decode_numbers(record.body)}


def _batches(
    segment: WalSegment, decided: int, start: int, void: set[tuple[int, int]]
) -> tuple[list[LoggedBatch], int]:
    """Return the decided calls in batches that each fit one transaction, and the offset where they end."""
    batches: list[LoggedBatch] = []
    shards: dict[int, list[LogRecord]] = {}
    messages = size = 0

    def close() -> None:
        for shard, records in shards.items():
            calls = [
                (record.number, _call(segment, record))
                for record in records
                if (record.shard, record.number) not in void
            ]
            span = range(records[0].number, records[-1].number + 1)
            batches.append(LoggedBatch(segment.header.node, segment.header.epoch, shard, calls, span))
        shards.clear()

    offset = end = segment.first
    for record in segment.records[:decided]:
        begins, offset = offset, offset + record_size(record.body)
        end = offset
        if begins < start or record.kind is not RecordKind.MESSAGES:
            continue
        if size and (messages >= _MESSAGES or size + len(record.body) > _BYTES):
            close()
            messages = size = 0
        shards.setdefault(record.shard, []).append(record)
        messages += 1
        size += len(record.body)
    close()
    return batches, max(start, end)


def _call(segment: WalSegment, record: LogRecord) -> LoggedCall:
    try:
        return decode_call(record.body)
    except msgspec.MsgspecError as error:
        raise LogDamaged(
            f"{segment.path} has a call that this version of Holdfast cannot read: {error}", path=str(segment.path)
        ) from error
