"""Behind a place where a log is damaged: was the power cut there, or has the disk lost what it had promised to keep?

What was written since the last sync goes to disk in any order, so a power cut leaves holes in the end of the log, with
whole records behind them. Nobody was promised any of it: the log is cut at the first hole. But the first batch after
each sync says up to where the log was certain (`SYNCED_KEY`). If one that still stands speaks for the damaged place,
what was there was on disk, and somebody relies on it: then nothing is cut.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.stores.disk.file_sync import sync_file
from holdfast.stores.rocks.recovery.wal_batch import HEAD, synced_by
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


class Span(NamedTuple):
    """Sequences of a log: of its first batch, and of the one that would come next."""

    first: int
    next: int


def span_of(log: Path, end: int | None = None) -> Span | None:
    """Up to a place, or as far as the chain of its records goes; None if there is no batch. A batch whose last part is
    not there is the next one."""
    first: int | None = None
    open_batch: Span | None = None
    following = 0
    with log.open("rb") as file:
        for block in range(0, os.fstat(file.fileno()).st_size if end is None else end, BLOCK):
            raw = file.read(BLOCK if end is None else min(BLOCK, end - block))
            stop = chain_end(raw, 0, len(raw))
            for at, after, type in records_of(raw, 0, stop):
                if type in (WHOLE, FIRST):
                    if after - at < HEADER_SIZE + HEAD.size:
                        return None
                    sequence, count = HEAD.unpack_from(raw, at + HEADER_SIZE)
                    first = sequence if first is None else first
                    following, open_batch = sequence, Span(sequence, sequence + count)
                if type in (WHOLE, LAST) and open_batch is not None:
                    following, open_batch = open_batch.next, None
            if len(raw) - stop >= HEADER_SIZE:
                break
    return None if first is None else Span(first, following)


def has_gap(log: Path, later: Path) -> bool:
    """Whether batches are missing between the end of a log and the beginning of a later one."""
    before, behind = span_of(log), span_of(later, BLOCK)
    return before is not None and behind is not None and behind.first > before.next


def was_synced(log: Path, at: int, before: list[Path], later: list[Path]) -> bool:
    """Whether the damaged place is known to have been on disk, by what still stands behind it."""
    expected = _sequence_at(log, at, before)
    for place, start in [(log, at), *((each, 0) for each in later)]:
        for sequence, synced in _sayings(place, start):
            if expected is None:
                # The first batch of all: it was lost, and those up to the first that stands.
                expected = sequence - 1
            if synced is not None and expected <= synced < sequence:
                return True
    return False


def cut(log: Path, at: int, later: list[Path]) -> None:
    """The later logs first: cut off between, the damage is still there to be found again."""
    for each in reversed(later):
        _truncate(each, 0)
    _truncate(log, at)


def _truncate(log: Path, size: int) -> None:
    with log.open("r+b") as file:
        file.truncate(size)
        sync_file(file.fileno())


def _sequence_at(log: Path, at: int, before: list[Path]) -> int | None:
    """Of the batch that begins at a place, or goes on there."""
    span = span_of(log, at)
    for each in reversed(before):
        if span is not None:
            break
        span = span_of(each)
    return None if span is None else span.next


def _sayings(log: Path, start: int) -> Iterator[tuple[int, int | None]]:
    """Of each whole batch from a place on: its sequence, and up to where it says that the log was certain."""
    parts = b""
    with log.open("rb") as file:
        at = start % BLOCK
        file.seek(start - at)
        # In the damaged block a record may begin anywhere; in later ones, where the chain leads from its start.
        searches = True
        while raw := file.read(BLOCK):
            for type, data in _whole_records(raw, at, searches=searches):
                parts = data if type in (WHOLE, FIRST) else parts + data if parts else b""
                if type in (WHOLE, LAST) and len(parts) >= HEAD.size:
                    yield HEAD.unpack_from(parts)[0], synced_by(parts)
                    parts = b""
            at, searches = 0, False


def _whole_records(raw: bytes, at: int, *, searches: bool) -> Iterator[tuple[int, bytes]]:
    while at + HEADER_SIZE <= len(raw):
        length, type = LENGTH_AND_TYPE.unpack_from(raw, at + 4)
        after = at + HEADER_SIZE + length
        if type in (WHOLE, FIRST, MIDDLE, LAST) and after <= len(raw) and checksum_holds(raw, at, after):
            yield type, raw[at + HEADER_SIZE : after]
            at = after
        elif searches:
            at += 1
        else:
            return
