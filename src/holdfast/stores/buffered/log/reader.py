"""The log of a server, read by somebody else: a flush job, while the server goes on writing, or after it has died.

Plain blocking code. It takes no lock and changes nothing, so it never stands in the way of the log's owner. What it
gives is decided: the owner has kept it, or is gone. A call whose fate is open (the owner may still void it, and refuse
its caller) is given by a later reading. Segments that the owner removes meanwhile have landed.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.stores.buffered.log.records import LogRecord, RecordKind, SegmentHeader, record_size
from holdfast.stores.buffered.log.segments import LogDamaged, WalSegment, list_segments, read_segment
from holdfast.stores.buffered.log.wal import decode_places
from holdfast.stores.formats.logged_enqueue import LoggedBatch, LoggedCall, decode_call

# One transaction's worth.
_MESSAGES = 5_000
_BYTES = 8 << 20
# The owner writes while this reads: what looks damaged is looked at again before it is said.
_TRIES = 5


class SegmentFile(NamedTuple):
    path: Path
    number: int


class SegmentContents(NamedTuple):
    """What a segment gave from `start` on."""

    batches: list[LoggedBatch]
    # Where the next reading of it begins.
    end: int
    # Nothing more will come of it.
    is_whole: bool


def segment_files(wal_dir: str | Path) -> list[SegmentFile]:
    """Oldest first. `LogDamaged` if one is missing between two others."""
    for tries_left in range(_TRIES, -1, -1):
        try:
            return [SegmentFile(path, int(path.stem)) for path in list_segments(Path(wal_dir))]
        except LogDamaged:  # or they were removed one by one while this looked
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def read_calls(file: SegmentFile, start: int = 0, *, is_over: bool = False) -> SegmentContents:
    """What is decided of this segment from byte `start` on, in order; voids are left out, a torn end is not given.

    `is_over`: nobody has the log open, nor will before this has landed; so its very end is decided too. `LogDamaged`.
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
    """The segment, with the one behind it, if there is one: it may tell what became of this one's end."""
    behind = file.path.with_name(f"{file.number + 1:016d}{file.path.suffix}")
    for tries_left in range(_TRIES, -1, -1):
        try:
            # First the one behind: if it is there, this one is sealed.
            successor = read_segment(behind, may_be_torn=True) if behind.exists() else None
            return read_segment(file.path, may_be_torn=successor is None), successor
        except LogDamaged:
            if not tries_left:
                raise
        except FileNotFoundError:
            if not file.path.exists():
                raise  # it has landed, and so has what stood behind it
    raise AssertionError("unreachable")


def _decided(segment: WalSegment, successor: WalSegment | None, *, is_over: bool) -> int:
    """How many of its records, from the first on.

    One group of calls is written after the other, and the next record tells of the last: it voids some of them, or
    they were kept.
    """
    records = segment.records
    if is_over or (successor is not None and (successor.records or not _is_same(segment.header, successor.header))):
        return len(records)
    last = records[-1].synced if records else 0
    return sum(record.sequence < last or record.kind is not RecordKind.MESSAGES for record in records)


def _is_same(one: SegmentHeader, other: SegmentHeader) -> bool:
    return one.epoch == other.epoch


def _void(segment: WalSegment, successor: WalSegment | None) -> set[tuple[int, int]]:
    records = list(segment.records)
    if successor is not None and _is_same(segment.header, successor.header):
        records += successor.records[:1]
    return {place for record in records if record.kind is RecordKind.VOID for place in decode_places(record.body)}


def _batches(
    segment: WalSegment, decided: int, start: int, void: set[tuple[int, int]]
) -> tuple[list[LoggedBatch], int]:
    batches: list[LoggedBatch] = []
    lanes: dict[int, list[LogRecord]] = {}
    messages = size = 0

    def close() -> None:
        for lane, records in lanes.items():
            calls = [
                (record.place, _call(segment, record)) for record in records if (record.lane, record.place) not in void
            ]
            span = range(records[0].place, records[-1].place + 1)
            batches.append(LoggedBatch(segment.header.node, segment.header.epoch, lane, calls, span))
        lanes.clear()

    offset = end = segment.first
    for record in segment.records[:decided]:
        begins, offset = offset, offset + record_size(record.body)
        end = offset
        if begins < start or record.kind is not RecordKind.MESSAGES:
            continue
        if size and (messages >= _MESSAGES or size + len(record.body) > _BYTES):
            close()
            messages = size = 0
        lanes.setdefault(record.lane, []).append(record)
        messages += 1
        size += len(record.body)
    close()
    return batches, max(start, end)


def _call(segment: WalSegment, record: LogRecord) -> LoggedCall:
    try:
        return decode_call(record.body)
    except msgspec.MsgspecError as error:
        raise LogDamaged(
            f"{segment.path} has a call that this Holdfast cannot read: {error}", path=str(segment.path)
        ) from error
