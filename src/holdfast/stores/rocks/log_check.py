"""The log that a killed store is recovered from, looked at before RocksDB replays it.

RocksDB refuses a record whose checksum is wrong. But it takes a length that points past the end of the file for a torn
tail, skips to the next block from a header of zeros, and may never return from a type that belongs to logs written over
old ones: it would open shorter than it was, or not at all. So the chain of records is followed here first.

    block    32 KiB; a record lies in one block, a longer batch is split into several records
    record   checksum 4 | length 2 | type 1 | data, little-endian; the checksum is over type and data
    type     1 whole, 2 first, 3 middle, 4 last part of a batch; nothing else, for we recycle and compress no log

A crash leaves a chain that stops short: an incomplete record at the end of the last log, or zeros where space was set
aside. If a whole record follows the stop, or its header is none that was ever written, the file was damaged.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log_batch import HEAD, Extent, extent

_BLOCK = 32_768
# Read at once: whole blocks, so that a long log costs time but no memory.
_PIECE = 128 * _BLOCK
_HEADER_SIZE = 7
_LENGTH_AND_TYPE = struct.Struct("<HB")
_CHECKSUM = struct.Struct("<I")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Damage(NamedTuple):
    log: Path
    at: int
    """Where the damage was seen: everything before it can be read."""
    what: str
    later: list[Path]
    """The logs after it, which go on from what it held."""

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
    logs = logs_of(directory)
    torn: tuple[int, _End] | None = None
    for number, log in enumerate(logs):
        try:
            with log.open("rb") as file:
                end = _end_of(file, verifies_all)
        except FileNotFoundError:
            continue  # another process has the store open, as RocksDB is about to find out
        if torn is not None and not end.is_empty:
            # A crash tears the last log alone: what the next one holds was written after the whole of this one.
            return Damage(
                logs[torn[0]], torn[1].at, "its last record is incomplete, but a later log goes on", logs[torn[0] + 1 :]
            )
        if end.damage is not None:
            return Damage(log, end.at, end.damage, logs[number + 1 :])
        if end.is_torn and torn is None:
            torn = number, end
    return None


def logs_of(directory: Path) -> list[Path]:
    """In the order they were written."""
    return sorted((log for log in directory.glob("*.log") if log.stem.isdigit()), key=lambda log: int(log.stem))


def _end_of(file: BinaryIO, verifies_all: bool) -> _End:
    size = os.fstat(file.fileno()).st_size
    base = start = stop = 0
    raw, at = b"", 0
    while piece := file.read(_PIECE):
        raw = piece
        for start in range(0, len(raw), _BLOCK):
            stop = min(start + _BLOCK, len(raw))
            at = _chain_end(raw, start, stop)
            if verifies_all and (wrong := _wrong_checksum(raw, start, at)) is not None:
                return _wrong(base + wrong)
            if stop - at >= _HEADER_SIZE:
                return _judge_stop(file, base, raw, start, at, stop)
        base += len(raw)
    if not size:
        return _End(0, is_torn=False, is_empty=True)
    # The chain reaches the end of the file, or the rest is too short for a header.
    base -= len(raw)
    if (wrong := _wrong_checksum(raw, start, at)) is not None:
        return _wrong(base + wrong)
    is_cut = at < stop and stop - start < _BLOCK
    return _End(base + at, is_torn=is_cut or _is_open(raw, start, at), is_empty=base + at == 0)


def _chain_end(raw: bytes, at: int, stop: int) -> int:
    """The first place in a block where no record begins that lies in the block as a whole."""
    unpack, last_header = _LENGTH_AND_TYPE.unpack_from, stop - _HEADER_SIZE
    while at <= last_header:
        length, type = unpack(raw, at + 4)
        after = at + _HEADER_SIZE + length
        if not _WHOLE <= type <= _LAST or after > stop:
            break
        at = after
    return at


def _judge_stop(file: BinaryIO, base: int, raw: bytes, start: int, at: int, stop: int) -> _End:
    """The chain stopped at a header that leads nowhere: was it cut short, or was it damaged?"""
    if (wrong := _wrong_checksum(raw, start, at)) is not None:
        # A wrong length leads astray: the place is where it stands, not where that was noticed.
        return _wrong(base + wrong)
    length, type = _LENGTH_AND_TYPE.unpack_from(raw, at + 4)
    here, is_unwritten = base + at, not any(raw[at : at + _HEADER_SIZE])
    if not (is_unwritten or _WHOLE <= type <= _LAST):
        return _damaged(here, f"no record has the type {type}")
    if at - start + _HEADER_SIZE + length > _BLOCK:
        return _damaged(here, f"a record of {length} bytes does not fit its block")
    if not is_unwritten:
        reach = _extent_of(file, base, raw, start, at, stop)
        if reach is Extent.RUNS_OUT:
            # All that follows is part of it, even if it looks like records: a payload may hold another log.
            return _End(here, is_torn=True, is_empty=here == 0)
        if reach is Extent.ENDS or _checksum_holds(raw, at, stop):
            return _damaged(here, "the length of the record there is wrong")
    if _holds_later_batch(raw, start, at, stop) or _is_followed(file, raw, stop):
        return _damaged(here, "the record there is destroyed, but whole ones follow it")
    return _End(here, is_torn=not is_unwritten or _is_open(raw, start, at), is_empty=here == 0)


def _extent_of(file: BinaryIO, base: int, raw: bytes, start: int, at: int, stop: int) -> Extent:
    """Whether the batch goes on to the end of the file and beyond, as that of a torn record does."""
    _, type = _LENGTH_AND_TYPE.unpack_from(raw, at + 4)
    data = raw[at + _HEADER_SIZE : stop]
    if type in (_WHOLE, _FIRST):
        expected = _next_sequence(raw, start, at)
        if expected is not None and len(data) >= HEAD.size and HEAD.unpack_from(data)[0] != expected:
            return Extent.MALFORMED
        return extent(data)
    # The beginning lies in earlier blocks, each of which it fills up.
    block = base + start
    while type != _FIRST:
        block -= _BLOCK
        if block < 0:
            return Extent.MALFORMED
        file.seek(block)
        earlier = file.read(_BLOCK)
        records = _records(earlier, 0, _chain_end(earlier, 0, _BLOCK))
        if not records or records[-1][2] not in (_FIRST, _MIDDLE):
            return Extent.MALFORMED
        place, after, type = records[-1]
        data = earlier[place + _HEADER_SIZE : after] + data
    return extent(data)


def _holds_later_batch(raw: bytes, start: int, at: int, stop: int) -> bool:
    """Whether a batch that was written later begins anywhere in the rest of this block: its sequence goes beyond what
    comes before the stop, by no more than the bytes between have room for."""
    if not any(raw[at:stop]):
        return False
    expected = _next_sequence(raw, start, at)
    for place in range(at + 1, stop - _HEADER_SIZE - HEAD.size + 1):
        length, type = _LENGTH_AND_TYPE.unpack_from(raw, place + 4)
        if type not in (_WHOLE, _FIRST) or not HEAD.size <= length <= stop - place - _HEADER_SIZE:
            continue
        sequence, _ = HEAD.unpack_from(raw, place + _HEADER_SIZE)
        if expected is not None and not expected <= sequence <= expected + place - at:
            continue
        if _checksum_holds(raw, place, place + _HEADER_SIZE + length):
            return True
    return False


def _is_followed(file: BinaryIO, raw: bytes, stop: int) -> bool:
    """Whether a later block begins with a record: each does, unless it was never written."""
    while raw:
        for start in range(stop, len(raw) - _HEADER_SIZE + 1, _BLOCK):
            length, type = _LENGTH_AND_TYPE.unpack_from(raw, start + 4)
            after = start + _HEADER_SIZE + length
            is_whole = _WHOLE <= type <= _LAST and after <= min(start + _BLOCK, len(raw))
            if is_whole and _checksum_holds(raw, start, after):
                return True
        raw, stop = file.read(_PIECE), 0
    return False


def _records(raw: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """Start, end and type of each record of a chain that was followed before."""
    found = []
    while at + _HEADER_SIZE <= end:
        length, type = _LENGTH_AND_TYPE.unpack_from(raw, at + 4)
        found.append((at, at + _HEADER_SIZE + length, type))
        at += _HEADER_SIZE + length
    return found


def _wrong_checksum(raw: bytes, start: int, end: int) -> int | None:
    return next((at for at, after, _ in _records(raw, start, end) if not _checksum_holds(raw, at, after)), None)


def _checksum_holds(raw: bytes, at: int, after: int) -> bool:
    checksum = google_crc32c.value(raw[at + 6 : after])
    # Kept turned and shifted, so that a checksum of data that holds checksums is still a good one.
    masked = (checksum >> 15 | checksum << 17) + 0xA282EAD8 & 0xFFFFFFFF
    (kept,) = _CHECKSUM.unpack_from(raw, at)
    return bool(kept == masked)


def _next_sequence(raw: bytes, start: int, end: int) -> int | None:
    for at, after, type in reversed(_records(raw, start, end)):
        if type in (_WHOLE, _FIRST) and after - at >= _HEADER_SIZE + HEAD.size:
            sequence, count = HEAD.unpack_from(raw, at + _HEADER_SIZE)
            return int(sequence) + int(count)
    return None


def _is_open(raw: bytes, start: int, end: int) -> bool:
    """Whether the last record begins a batch whose rest is not there."""
    records = _records(raw, start, end)
    return bool(records) and records[-1][2] in (_FIRST, _MIDDLE)


def _damaged(at: int, what: str) -> _End:
    return _End(at, is_torn=False, is_empty=False, damage=what)


def _wrong(at: int) -> _End:
    return _damaged(at, "the checksum of the record there is wrong")
