"""The log that a killed store is recovered from, looked at before RocksDB replays it.

RocksDB refuses a record whose checksum is wrong. But it takes a length that points past the end of the file for a torn
tail, skips to the next block from a header of zeros, and may never return from a type that belongs to logs written over
old ones: it would open shorter than it was, or not at all. So the chain of records is followed here first.

A kill leaves a chain that stops short: an incomplete record at the end of the last log, or zeros where space was set
aside. If a whole record follows the stop, or its header is none that was ever written, the file was damaged; or the
power went, and took what was not synced (log_salvage.py).
"""

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.recovery.manifest import oldest_needed_log
from holdfast.stores.rocks.recovery.wal_batch import HEAD, BatchExtent, extent
from holdfast.stores.rocks.recovery.wal_records import (
    BLOCK,
    FIRST,
    HEADER_SIZE,
    LAST,
    LENGTH_AND_TYPE,
    MIDDLE,
    WHOLE,
    chain_end,
    checksum_holds,
    records_of,
)
from holdfast.stores.rocks.recovery.wal_salvage import cut, has_gap, was_synced

# Read at once: whole blocks, so that a long log costs time but no memory.
_PIECE = 128 * BLOCK


class Damage(NamedTuple):
    log: Path
    at: int
    """Where the damage was seen: everything before it can be read."""
    what: str
    later: list[Path]
    """The logs after it, which go on from what it held."""
    earlier: list[Path]

    def as_error(self, store: Path) -> StoreUnavailable:
        """To cut the log by hand is left to whoever has no backup: it loses what lies behind, and they must know."""
        also = "".join(f" and move {log.name} away" for log in self.later)
        return StoreUnavailable(
            f"{self.log} is damaged at byte {self.at}: {self.what}; restore a backup. Without one, "
            f"`truncate -s {self.at} {self.log}`{also}: the store then opens without what was written from there on",
            path=str(store),
            file=str(self.log),
            at=self.at,
        )

    def was_synced(self) -> bool:
        """Whether what was there is known to have been on disk: then no power cut explains that it is gone."""
        return was_synced(self.log, self.at, self.earlier, self.later)

    def cut(self) -> None:
        """Leave what stands before it."""
        cut(self.log, self.at, self.later)


class _End(NamedTuple):
    """How one log ends."""

    at: int
    is_torn: bool
    """Its last record or batch is incomplete."""
    is_empty: bool
    """It has not one whole record."""
    damage: str | None = None


def find_damage(directory: Path, *, verifies_all: bool = False) -> Damage | None:
    """The first damage in the logs of a RocksDB directory that nobody writes to.

    Checksums are compared where the chain ends: RocksDB compares them all when it replays the log, and sooner than we
    could. `verifies_all` compares them here, to say where the one is that RocksDB refused.
    """
    oldest = oldest_needed_log(directory) or 0
    logs = [log for log in logs_of(directory) if int(log.stem) >= oldest]
    # The last log that a later one may go on from, and how it ends.
    before: tuple[int, _End] | None = None
    for number, log in enumerate(logs):
        try:
            with log.open("rb") as file:
                end = _end_of(file, verifies_all)
        except FileNotFoundError:
            continue  # another process has the store open, as RocksDB is about to find out
        if before is not None and not end.is_empty and (what := _broken_off(logs[before[0]], before[1], log)):
            return _damage(logs, before[0], before[1].at, what)
        if end.damage is not None:
            return _damage(logs, number, end.at, end.damage)
        # A kill while opening leaves empty logs behind one that is torn.
        if before is None or not end.is_empty:
            before = number, end
    return None


def _broken_off(log: Path, end: _End, later: Path) -> str | None:
    """A crash tears the last log alone: what the next one holds was written after the whole of this one."""
    if end.is_torn:
        return "its last record is incomplete, but a later log goes on"
    if end.is_empty:
        return "it is empty, but a later log goes on"
    if has_gap(log, later):
        return "whole records are missing there, for a later log goes on further"
    return None


def _damage(logs: list[Path], number: int, at: int, what: str) -> Damage:
    return Damage(logs[number], at, what, later=logs[number + 1 :], earlier=logs[:number])


def logs_of(directory: Path) -> list[Path]:
    """In the order they were written."""
    return sorted((log for log in directory.glob("*.log") if log.stem.isdigit()), key=lambda log: int(log.stem))


def _end_of(file: BinaryIO, verifies_all: bool) -> _End:
    size = os.fstat(file.fileno()).st_size
    base = start = stop = 0
    raw, at = b"", 0
    while piece := file.read(_PIECE):
        raw = piece
        for start in range(0, len(raw), BLOCK):
            stop = min(start + BLOCK, len(raw))
            at = chain_end(raw, start, stop)
            if verifies_all and (wrong := _wrong_checksum(raw, start, at)) is not None:
                return _wrong(base + wrong)
            if stop - at >= HEADER_SIZE:
                return _judge_stop(file, base, raw, start, at, stop)
        base += len(raw)
    if not size:
        return _End(0, is_torn=False, is_empty=True)
    # The chain reaches the end of the file, or the rest is too short for a header.
    base -= len(raw)
    if (wrong := _wrong_checksum(raw, start, at)) is not None:
        return _wrong(base + wrong)
    is_cut = at < stop and stop - start < BLOCK
    return _End(base + at, is_torn=is_cut or _is_open(raw, start, at), is_empty=base + at == 0)


def _judge_stop(file: BinaryIO, base: int, raw: bytes, start: int, at: int, stop: int) -> _End:
    """The chain stopped at a header that leads nowhere: was it cut short, or was it damaged?"""
    if (wrong := _wrong_checksum(raw, start, at)) is not None:
        # A wrong length leads astray: the place is where it stands, not where that was noticed.
        return _wrong(base + wrong)
    length, type = LENGTH_AND_TYPE.unpack_from(raw, at + 4)
    here, is_unwritten = base + at, not any(raw[at : at + HEADER_SIZE])
    if not (is_unwritten or WHOLE <= type <= LAST):
        return _damaged(here, f"no record has the type {type}")
    if at - start + HEADER_SIZE + length > BLOCK:
        return _damaged(here, f"a record of {length} bytes does not fit its block")
    if not is_unwritten:
        reach = _extent_of(file, base, raw, start, at, stop)
        if reach is BatchExtent.RUNS_OUT:
            # All that follows is part of it, even if it looks like records: a payload may hold another log.
            return _End(here, is_torn=True, is_empty=here == 0)
        if reach is BatchExtent.ENDS or checksum_holds(raw, at, stop):
            return _damaged(here, "the length of the record there is wrong")
    if _holds_later_batch(raw, start, at, stop) or _is_followed(file, raw, stop):
        return _damaged(here, "the record there is destroyed, but whole ones follow it")
    if is_unwritten and _has_bytes(file, base, at):
        # No kill leaves that. RocksDB goes on with the next block, and may refuse what it finds there.
        return _damaged(here, "zeros are there, but other bytes follow them")
    if is_unwritten and at == start and _is_open_before(file, here):
        # Nor that: a kill leaves what was written, and no zeros behind the half of a batch. RocksDB refuses them.
        return _damaged(here, "zeros are there, where a batch goes on")
    return _End(here, is_torn=not is_unwritten or _is_open(raw, start, at), is_empty=here == 0)


def _extent_of(file: BinaryIO, base: int, raw: bytes, start: int, at: int, stop: int) -> BatchExtent:
    """Whether the batch goes on to the end of the file and beyond, as that of a torn record does."""
    _, type = LENGTH_AND_TYPE.unpack_from(raw, at + 4)
    data = raw[at + HEADER_SIZE : stop]
    if type in (WHOLE, FIRST):
        expected = _next_sequence(raw, start, at)
        if expected is not None and len(data) >= HEAD.size and HEAD.unpack_from(data)[0] != expected:
            return BatchExtent.MALFORMED
        return extent(data)
    # The beginning lies in earlier blocks, each of which it fills up.
    block = base + start
    while type != FIRST:
        block -= BLOCK
        if block < 0:
            return BatchExtent.MALFORMED
        file.seek(block)
        earlier = file.read(BLOCK)
        records = records_of(earlier, 0, chain_end(earlier, 0, BLOCK))
        if not records or records[-1][2] not in (FIRST, MIDDLE):
            return BatchExtent.MALFORMED
        place, after, type = records[-1]
        data = earlier[place + HEADER_SIZE : after] + data
    return extent(data)


def _holds_later_batch(raw: bytes, start: int, at: int, stop: int) -> bool:
    """Whether a batch that was written later begins anywhere in the rest of this block: its sequence goes beyond what
    comes before the stop, by no more than the bytes between have room for."""
    if not any(raw[at:stop]):
        return False
    expected = _next_sequence(raw, start, at)
    for place in range(at + 1, stop - HEADER_SIZE - HEAD.size + 1):
        length, type = LENGTH_AND_TYPE.unpack_from(raw, place + 4)
        if type not in (WHOLE, FIRST) or not HEAD.size <= length <= stop - place - HEADER_SIZE:
            continue
        sequence, _ = HEAD.unpack_from(raw, place + HEADER_SIZE)
        if expected is not None and not expected <= sequence <= expected + place - at:
            continue
        if checksum_holds(raw, place, place + HEADER_SIZE + length):
            return True
    return False


def _is_followed(file: BinaryIO, raw: bytes, stop: int) -> bool:
    """Whether a later block begins with a record: each does, unless it was never written."""
    while raw:
        for start in range(stop, len(raw) - HEADER_SIZE + 1, BLOCK):
            length, type = LENGTH_AND_TYPE.unpack_from(raw, start + 4)
            after = start + HEADER_SIZE + length
            is_whole = WHOLE <= type <= LAST and after <= min(start + BLOCK, len(raw))
            if is_whole and checksum_holds(raw, start, after):
                return True
        raw, stop = file.read(_PIECE), 0
    return False


def _has_bytes(file: BinaryIO, base: int, at: int) -> bool:
    """Whether there is anything but zeros from a place to the end of the file."""
    file.seek(base + at)
    return any(piece.count(0) < len(piece) for piece in iter(lambda: file.read(_PIECE), b""))


def _wrong_checksum(raw: bytes, start: int, end: int) -> int | None:
    return next((at for at, after, _ in records_of(raw, start, end) if not checksum_holds(raw, at, after)), None)


def _next_sequence(raw: bytes, start: int, end: int) -> int | None:
    for at, after, type in reversed(records_of(raw, start, end)):
        if type in (WHOLE, FIRST) and after - at >= HEADER_SIZE + HEAD.size:
            sequence, count = HEAD.unpack_from(raw, at + HEADER_SIZE)
            return int(sequence) + int(count)
    return None


def _is_open(raw: bytes, start: int, end: int) -> bool:
    """Whether the last record begins a batch whose rest is not there."""
    records = records_of(raw, start, end)
    return bool(records) and records[-1][2] in (FIRST, MIDDLE)


def _is_open_before(file: BinaryIO, block: int) -> bool:
    """Whether the block before the one at this place ends with a batch whose rest is not there."""
    if not block:
        return False
    file.seek(block - BLOCK)
    before = file.read(BLOCK)
    return _is_open(before, 0, chain_end(before, 0, BLOCK))


def _damaged(at: int, what: str) -> _End:
    return _End(at, is_torn=False, is_empty=False, damage=what)


def _wrong(at: int) -> _End:
    return _damaged(at, "the checksum of the record there is wrong")
