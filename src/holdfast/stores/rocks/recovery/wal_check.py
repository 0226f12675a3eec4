"""Checks of RocksDB's own log before RocksDB replays it. Only stores of format 1 use that log.

RocksDB refuses a record with a wrong checksum. But it takes a length that points past the end of the file for a torn
tail, it skips to the next block when a header is all zeros, and it may never return from a record type that belongs to
recycled logs. Such a store would open with missing data, or not at all. So the chain of records is checked here first.

After a kill, the chain stops early: with an incomplete record at the end of the last log, or with zeros where space was
preallocated. If a whole record follows the stop, or if its header was never written like this, then either the file is
damaged, or a power cut has lost unsynced writes (`wal_salvage.py`).
"""

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.recovery.manifest import find_oldest_needed_log
from holdfast.stores.rocks.recovery.wal_batch import HEAD, BatchExtent, find_extent
from holdfast.stores.rocks.recovery.wal_records import (
    BLOCK,
    FIRST,
    HEADER_SIZE,
    LAST,
    LENGTH_AND_TYPE,
    MIDDLE,
    WHOLE,
    find_chain_end,
    has_valid_checksum,
    list_records,
)
from holdfast.stores.rocks.recovery.wal_salvage import cut_logs, has_gap, was_synced

# Bytes read at once: whole blocks, so that a long log does not need much memory.
_PIECE = 128 * BLOCK


class Damage(NamedTuple):
    """The first damage in the logs of a store, at a byte offset of one of them. Everything before it can be read.

    `earlier` and `later` are the logs before and after the damaged one.
    """

    log: Path
    offset: int
    cause: str
    later: list[Path]
    earlier: list[Path]

    def as_error(self, store: Path) -> StoreUnavailable:
        """Return the error that refuses to open the store.

        It describes how to cut the log by hand, for users without a backup. The store never does so by itself, because
        that loses all writes behind the damage, and the user must know.
        """
        also = "".join(f" and move {log.name} away" for log in self.later)
        return StoreUnavailable(
            f"{self.log} is damaged at byte {self.offset}: {self.cause}; restore a backup. Without a backup, "
            f"run `truncate -s {self.offset} {self.log}`{also}: the store then opens without all later writes",
            path=str(store),
            file=str(self.log),
            at=self.offset,
        )

    def was_synced(self) -> bool:
        """Return whether the damaged part is known to have been on disk. If it was, no power cut explains its loss."""
        return was_synced(self.log, self.offset, self.earlier, self.later)

    def cut(self) -> None:
        """Cut the logs at the damage."""
        cut_logs(self.log, self.offset, self.later)


class _End(NamedTuple):
    """The end of one log."""

    offset: int
    is_torn: bool
    """The last record or batch is incomplete."""
    is_empty: bool
    """The log has no whole record."""
    damage: str | None = None


def find_damage(directory: Path, *, verifies_all: bool = False) -> Damage | None:
    """Return the first damage in the logs of a RocksDB directory that no process writes to; None if there is none.

    By default, checksums are compared only at the end of each log: RocksDB compares all of them when it replays the
    logs, and faster. `verifies_all` compares all of them here too, to locate the one that RocksDB refused.
    """
    oldest = find_oldest_needed_log(directory) or 0
    logs = [log for log in list_logs(directory) if int(log.stem) >= oldest]
    # The last log that a later one may continue, and its end.
    before: tuple[int, _End] | None = None
    for number, log in enumerate(logs):
        try:
            with log.open("rb") as file:
                end = _find_end(file, verifies_all)
        except FileNotFoundError:
            continue  # another process has the store open; RocksDB will report that
        if before is not None and not end.is_empty and (cause := _check_continuation(logs[before[0]], before[1], log)):
            return _damage(logs, before[0], before[1].offset, cause)
        if end.damage is not None:
            return _damage(logs, number, end.offset, end.damage)
        # A kill during an opening leaves empty logs behind a torn one.
        if before is None or not end.is_empty:
            before = number, end
    return None


def _check_continuation(log: Path, end: _End, later: Path) -> str | None:
    """Return the damage at the end of a log that a later one continues, or None.

    A crash tears only the last log: the next log was begun after all of this one had been written.
    """
    if end.is_torn:
        return "its last record is incomplete, but a later log exists"
    if end.is_empty:
        return "it is empty, but a later log exists"
    if has_gap(log, later):
        return "records are missing between its end and the start of the next log"
    return None


def _damage(logs: list[Path], number: int, offset: int, cause: str) -> Damage:
    return Damage(logs[number], offset, cause, later=logs[number + 1 :], earlier=logs[:number])


def list_logs(directory: Path) -> list[Path]:
    """Return the logs of a RocksDB directory in the order they were written."""
    return sorted((log for log in directory.glob("*.log") if log.stem.isdigit()), key=lambda log: int(log.stem))


def _find_end(file: BinaryIO, verifies_all: bool) -> _End:
    """Return how a log ends."""
    size = os.fstat(file.fileno()).st_size
    base = start = stop = 0
    raw, offset = b"", 0
    while piece := file.read(_PIECE):
        raw = piece
        for start in range(0, len(raw), BLOCK):
            stop = min(start + BLOCK, len(raw))
            offset = find_chain_end(raw, start, stop)
            if verifies_all and (wrong := _find_wrong_checksum(raw, start, offset)) is not None:
                return _wrong_checksum(base + wrong)
            if stop - offset >= HEADER_SIZE:
                return _classify_stop(file, base, raw, start, offset, stop)
        base += len(raw)
    if not size:
        return _End(0, is_torn=False, is_empty=True)
    # The chain reaches the end of the file, or the remaining bytes are too few for a header.
    base -= len(raw)
    if (wrong := _find_wrong_checksum(raw, start, offset)) is not None:
        return _wrong_checksum(base + wrong)
    is_cut = offset < stop and stop - start < BLOCK
    return _End(base + offset, is_torn=is_cut or _is_open(raw, start, offset), is_empty=base + offset == 0)


def _classify_stop(file: BinaryIO, base: int, raw: bytes, start: int, offset: int, stop: int) -> _End:
    """Decide whether the chain stopped at a header because the log was cut short or because it was damaged."""
    if (wrong := _find_wrong_checksum(raw, start, offset)) is not None:
        # A wrong length leads to a wrong next record. The damage is at the record with that length, not where the chain
        # stopped.
        return _wrong_checksum(base + wrong)
    length, type = LENGTH_AND_TYPE.unpack_from(raw, offset + 4)
    here, is_unwritten = base + offset, not any(raw[offset : offset + HEADER_SIZE])
    if not (is_unwritten or WHOLE <= type <= LAST):
        return _damaged(here, f"the record there has the unknown type {type}")
    if offset - start + HEADER_SIZE + length > BLOCK:
        return _damaged(here, f"the record there has {length} bytes and does not fit its block")
    if not is_unwritten:
        extent = _find_extent(file, base, raw, start, offset, stop)
        if extent is BatchExtent.CUT_SHORT:
            # All following bytes belong to this record, even if they look like records: a payload may contain another
            # log.
            return _End(here, is_torn=True, is_empty=here == 0)
        if extent is BatchExtent.COMPLETE or has_valid_checksum(raw, offset, stop):
            return _damaged(here, "the length of the record there is wrong")
    if _holds_later_batch(raw, start, offset, stop) or _is_followed(file, raw, stop):
        return _damaged(here, "the record there is damaged, but whole records follow it")
    if is_unwritten and _has_data(file, base, offset):
        # A kill never leaves this. RocksDB would continue with the next block, and might refuse its content.
        return _damaged(here, "zeros are there, but other data follows them")
    if is_unwritten and offset == start and _is_open_before(file, here):
        # A kill keeps all written bytes and leaves no zeros behind half a batch. RocksDB refuses them.
        return _damaged(here, "zeros are there in the middle of a batch")
    return _End(here, is_torn=not is_unwritten or _is_open(raw, start, offset), is_empty=here == 0)


def _find_extent(file: BinaryIO, base: int, raw: bytes, start: int, offset: int, stop: int) -> BatchExtent:
    """Return whether the batch extends beyond the end of the file, as that of a torn record does."""
    _, type = LENGTH_AND_TYPE.unpack_from(raw, offset + 4)
    data = raw[offset + HEADER_SIZE : stop]
    if type in (WHOLE, FIRST):
        expected = _next_sequence(raw, start, offset)
        if expected is not None and len(data) >= HEAD.size and HEAD.unpack_from(data)[0] != expected:
            return BatchExtent.MALFORMED
        return find_extent(data)
    # The batch begins in earlier blocks, each of which it fills up.
    block = base + start
    while type != FIRST:
        block -= BLOCK
        if block < 0:
            return BatchExtent.MALFORMED
        file.seek(block)
        earlier = file.read(BLOCK)
        records = list_records(earlier, 0, find_chain_end(earlier, 0, BLOCK))
        if not records or records[-1][2] not in (FIRST, MIDDLE):
            return BatchExtent.MALFORMED
        start_of_last, after, type = records[-1]
        data = earlier[start_of_last + HEADER_SIZE : after] + data
    return find_extent(data)


def _holds_later_batch(raw: bytes, start: int, offset: int, stop: int) -> bool:
    """Return whether a batch that was written later begins anywhere in the remaining part of this block.

    Its sequence must be higher than that of the batches before the stop, by at most the number of bytes in between.
    """
    if not any(raw[offset:stop]):
        return False
    expected = _next_sequence(raw, start, offset)
    for candidate in range(offset + 1, stop - HEADER_SIZE - HEAD.size + 1):
        length, type = LENGTH_AND_TYPE.unpack_from(raw, candidate + 4)
        if type not in (WHOLE, FIRST) or not HEAD.size <= length <= stop - candidate - HEADER_SIZE:
            continue
        sequence, _ = HEAD.unpack_from(raw, candidate + HEADER_SIZE)
        if expected is not None and not expected <= sequence <= expected + candidate - offset:
            continue
        if has_valid_checksum(raw, candidate, candidate + HEADER_SIZE + length):
            return True
    return False


def _is_followed(file: BinaryIO, raw: bytes, stop: int) -> bool:
    """Return whether any later block begins with a whole record. Every written block does."""
    while raw:
        for start in range(stop, len(raw) - HEADER_SIZE + 1, BLOCK):
            length, type = LENGTH_AND_TYPE.unpack_from(raw, start + 4)
            after = start + HEADER_SIZE + length
            is_whole = WHOLE <= type <= LAST and after <= min(start + BLOCK, len(raw))
            if is_whole and has_valid_checksum(raw, start, after):
                return True
        raw, stop = file.read(_PIECE), 0
    return False


def _has_data(file: BinaryIO, base: int, offset: int) -> bool:
    """Return whether any byte from an offset to the end of the file is not zero."""
    file.seek(base + offset)
    return any(piece.count(0) < len(piece) for piece in iter(lambda: file.read(_PIECE), b""))


def _find_wrong_checksum(raw: bytes, start: int, end: int) -> int | None:
    """Return the offset of the first record with a wrong checksum."""
    return next(
        (offset for offset, after, _ in list_records(raw, start, end) if not has_valid_checksum(raw, offset, after)),
        None,
    )


def _next_sequence(raw: bytes, start: int, end: int) -> int | None:
    """Return the sequence of the batch that follows the last one in this part."""
    for offset, after, type in reversed(list_records(raw, start, end)):
        if type in (WHOLE, FIRST) and after - offset >= HEADER_SIZE + HEAD.size:
            sequence, count = HEAD.unpack_from(raw, offset + HEADER_SIZE)
            return int(sequence) + int(count)
    return None


def _is_open(raw: bytes, start: int, end: int) -> bool:
    """Return whether the last record belongs to a batch that is not complete."""
    records = list_records(raw, start, end)
    return bool(records) and records[-1][2] in (FIRST, MIDDLE)


def _is_open_before(file: BinaryIO, block: int) -> bool:
    """Return whether the block before this one ends in the middle of a batch."""
    if not block:
        return False
    file.seek(block - BLOCK)
    before = file.read(BLOCK)
    return _is_open(before, 0, find_chain_end(before, 0, BLOCK))


def _damaged(offset: int, cause: str) -> _End:
    return _End(offset, is_torn=False, is_empty=False, damage=cause)


def _wrong_checksum(offset: int) -> _End:
    return _damaged(offset, "the checksum of the record there is wrong")
