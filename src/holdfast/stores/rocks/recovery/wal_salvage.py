"""Decide about damage in one of RocksDB's own logs: was it a power cut, or has the disk lost data that was synced?

Data written since the last sync reaches the disk in any order. So a power cut leaves holes near the end of the log,
with whole records behind them. None of this data was promised to be durable, and the log is cut at the first hole. But
the first batch after each sync records the sequence up to which the log was synced (`SYNCED_KEY`). If a batch behind
the damage shows that the damaged part was synced, then callers rely on it, and nothing is cut.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.stores.disk.file_sync import sync_file
from holdfast.stores.rocks.recovery.wal_batch import HEAD, read_synced
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


class Span(NamedTuple):
    """A range of sequences in a log: the first batch, and the batch that would come next."""

    first: int
    next: int


def read_span(log: Path, end: int | None = None) -> Span | None:
    """Return the sequences of a log, up to the offset `end` or as far as its chain of records goes; None if it has no
    batch.

    An incomplete batch counts as the next one.
    """
    first: int | None = None
    open_batch: Span | None = None
    following = 0
    with log.open("rb") as file:
        for block in range(0, os.fstat(file.fileno()).st_size if end is None else end, BLOCK):
            raw = file.read(BLOCK if end is None else min(BLOCK, end - block))
            stop = find_chain_end(raw, 0, len(raw))
            for offset, after, type in list_records(raw, 0, stop):
                if type in (WHOLE, FIRST):
                    if after - offset < HEADER_SIZE + HEAD.size:
                        return None
                    sequence, count = HEAD.unpack_from(raw, offset + HEADER_SIZE)
                    first = sequence if first is None else first
                    following, open_batch = sequence, Span(sequence, sequence + count)
                if type in (WHOLE, LAST) and open_batch is not None:
                    following, open_batch = open_batch.next, None
            if len(raw) - stop >= HEADER_SIZE:
                break
    return None if first is None else Span(first, following)


def has_gap(log: Path, later: Path) -> bool:
    """Return whether batches are missing between the end of a log and the beginning of a later one."""
    before, behind = read_span(log), read_span(later, BLOCK)
    return before is not None and behind is not None and behind.first > before.next


def was_synced(log: Path, offset: int, before: list[Path], later: list[Path]) -> bool:
    """Return whether a batch behind the damage shows that the damaged part had been synced."""
    expected = _find_sequence(log, offset, before)
    for file, start in [(log, offset), *((each, 0) for each in later)]:
        for sequence, synced in _read_synced_sequences(file, start):
            if expected is None:
                # No batch precedes the damage, so everything before the first remaining batch was lost.
                expected = sequence - 1
            if synced is not None and expected <= synced < sequence:
                return True
    return False


def cut_logs(log: Path, offset: int, later: list[Path]) -> None:
    """Cut the logs. The later logs are cut first: after a crash in between, the damage can still be found."""
    for each in reversed(later):
        _truncate(each, 0)
    _truncate(log, offset)


def _truncate(log: Path, size: int) -> None:
    with log.open("r+b") as file:
        file.truncate(size)
        sync_file(file.fileno())


def _find_sequence(log: Path, offset: int, before: list[Path]) -> int | None:
    """Return the sequence of the batch that begins or continues at an offset."""
    span = read_span(log, offset)
    for each in reversed(before):
        if span is not None:
            break
        span = read_span(each)
    return None if span is None else span.next


def _read_synced_sequences(log: Path, start: int) -> Iterator[tuple[int, int | None]]:
    """Yield, for each whole batch from an offset on, its sequence and the sequence up to which it says that the log was
    synced."""
    parts = b""
    with log.open("rb") as file:
        offset = start % BLOCK
        file.seek(start - offset)
        # In the damaged block a record may begin at any byte. In later blocks the chain of records begins at the start.
        searches = True
        while raw := file.read(BLOCK):
            for type, data in _read_whole_records(raw, offset, searches=searches):
                parts = data if type in (WHOLE, FIRST) else parts + data if parts else b""
                if type in (WHOLE, LAST) and len(parts) >= HEAD.size:
                    yield HEAD.unpack_from(parts)[0], read_synced(parts)
                    parts = b""
            offset, searches = 0, False


def _read_whole_records(raw: bytes, offset: int, *, searches: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the type and data of each whole record of a block. `searches`: after a bad record, try every following
    offset."""
    while offset + HEADER_SIZE <= len(raw):
        length, type = LENGTH_AND_TYPE.unpack_from(raw, offset + 4)
        after = offset + HEADER_SIZE + length
        if type in (WHOLE, FIRST, MIDDLE, LAST) and after <= len(raw) and has_valid_checksum(raw, offset, after):
            yield type, raw[offset + HEADER_SIZE : after]
            offset = after
        elif searches:
            offset += 1
        else:
            return
