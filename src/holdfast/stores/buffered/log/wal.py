"""The local write-ahead log: what was answered for and may not be stored yet.

    wal_dir/LOCK                    held by the one process that has the log open
    wal_dir/0000000000000007.wal    segments, without a gap; the last is the one that is written
    wal_dir/next.tmp                the next one, before it is whole

- A record was answered for only after `append` returned, which is after its bytes were on disk.
- Each opening begins a segment of its own, under an epoch of its own. The one before is cut where it was torn, and
  sealed: so only the last can be torn, and damage anywhere else is refused by name.
- Room is set aside when a segment is made: a full disk is met there, before anything was promised.
- After a failed write or sync the log takes nothing more. `recover` seals the segment behind the last record that was
  synced, which cuts off what failed, and goes on in a new segment; the next opening does the same.
- A segment goes once all that stands in it has landed, the oldest first.

Plain blocking code. One thread at a time appends; `landed` and `trim` may be called beside it.
"""

import errno
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.buffered.log.log_disk import Disk
from holdfast.stores.buffered.log.records import (
    HEADER_BYTES,
    MAX_BODY,
    LogRecord,
    RecordKind,
    SegmentHeader,
    encode_header,
    encode_record,
    record_size,
)
from holdfast.stores.buffered.log.segments import (
    WalSegment,
    check_chain,
    file_name,
    list_segments,
    node_of,
    read_segment,
)
from holdfast.stores.disk.directory_lock import DirectoryLock, is_held_here
from holdfast.stores.disk.free_space import free_bytes

SEGMENT_BYTES = 16 << 20
_LOCK = "LOCK"
_NEXT = "next.tmp"
_SEAL_BYTES = record_size(b"")

_log = logging.getLogger("holdfast")

_encode_places = msgspec.msgpack.Encoder().encode
decode_places = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class LogInUse(StoreUnavailable):
    """Another process, or this one, has the log open."""


class LogStopped(StoreUnavailable):
    """A write or sync has failed, or the log was closed: it takes nothing more."""


class WalPosition(NamedTuple):
    """Where a record stands among all that any log ever had."""

    node: UUID
    epoch: int
    lane: int
    place: int


class Logged(NamedTuple):
    place: WalPosition
    segment: int
    body: bytes


class Wal:
    def __init__(self, path: str | Path, *, segment_bytes: int = SEGMENT_BYTES, disk: Disk | None = None) -> None:
        # The real path: a relative one, or one over a symbolic link, could come to mean another directory.
        self.path = Path(os.path.realpath(path))
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._failure: LogStopped | None = None
        # The failure that `recover` can end; a log that was closed stays so.
        self._stopped_by: LogStopped | None = None
        # Of each segment how many records have not landed; the segments in order, the one that is written last.
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._guard = threading.Lock()
        self._lock = self._take_lock()
        try:
            old = self._read()
            self.node = node_of(old) or uuid4()
            self.epoch = secrets.randbits(63)
            self._sequence = 0
            self._places: dict[int, int] = {}
            self._replayed = _not_void(old)
            for segment in old:
                self._waiting[segment.header.segment] = 0
            for logged in self._replayed:
                self._waiting[logged.segment] += 1
            self._number = old[-1].header.segment if old else 0
            self._file = -1
            self._offset = self._ends = 0
            self._begin_segment()
            listen_for_forks(self)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"the log in {self.path} cannot be opened: {error.strerror}") from error
            raise

    # --- Opening -----------------------------------------------------------------------------------------------

    def _take_lock(self) -> DirectoryLock:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._disk.lock(self.path / _LOCK)
        except OSError as error:
            raise InvalidArgument(f"{self.path} cannot be written to: {error.strerror}", field="wal_dir") from error
        if lock is None:
            owner = (self.path / _LOCK).read_text(encoding="ascii", errors="replace")
            who = f"process {owner}" if owner else "another process"
            if is_held_here(self.path / _LOCK):
                who += ", this one"
            raise LogInUse(f"the log in {self.path} is in use by {who}: give each server a wal_dir of its own")
        return lock

    def _read(self) -> list[WalSegment]:
        (self.path / _NEXT).unlink(missing_ok=True)
        paths = list_segments(self.path)
        segments = [read_segment(path, may_be_torn=path is paths[-1]) for path in paths]
        check_chain(segments)
        if segments and not segments[-1].is_sealed:
            self._cut(segments[-1])
        return segments

    def _cut(self, segment: WalSegment) -> None:
        """What was torn goes, and a seal tells that the rest is whole."""
        header, sequence = segment.header, segment.header.first + len(segment.records)
        file = self._disk.open(segment.path)
        try:
            self._disk.truncate(file, segment.end)
            self._disk.sync_all(file)
            self._disk.write(file, _seal(header, segment.end, sequence), segment.end)
            self._disk.sync_all(file)
        finally:
            self._disk.close(file)

    def replay(self) -> list[Logged]:
        """What stood in the log at its opening, in order; given once, and counted as waiting until it has landed."""
        replayed, self._replayed = self._replayed, []
        return replayed

    # --- Appending ---------------------------------------------------------------------------------------------

    def places(self, lane: int, number: int) -> range:
        """The next places of a lane. One that is never appended is a gap, which means nothing."""
        first = self._places.get(lane, 0)
        self._places[lane] = first + number
        return range(first, first + number)

    def place(self, lane: int, place: int) -> WalPosition:
        return WalPosition(self.node, self.epoch, lane, place)

    def make_room(self, size: int) -> None:
        """For an append of `size` bytes. `StoreUnavailable` on a full disk: then nothing has changed."""
        self._check()
        if self._offset + size + _SEAL_BYTES <= self._ends:
            return
        try:
            self._begin_segment(size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreUnavailable(f"the disk of {self.path} is full: free some space") from error
            raise self._stop(error) from error

    def has_room(self, size: int) -> bool:
        return self._failure is None and self._offset + size + _SEAL_BYTES <= self._ends

    def append(self, bodies: Iterable[tuple[int, int, bytes]]) -> int:
        """Records of (lane, place, body), in one write and one sync; answers the segment. `make_room` came first."""
        return self._append([(lane, place, RecordKind.MESSAGES, body) for lane, place, body in bodies])

    def void(self, places: list[tuple[int, int]]) -> None:
        """These (lane, place) of the last append are not to be stored after all, whatever happens from now on; all
        others of it are: so with none at all, it tells readers that everything was kept."""
        body = _encode_places(places)
        self.make_room(record_size(body))
        self._append([(0, 0, RecordKind.VOID, body)])

    def _append(self, records: list[tuple[int, int, RecordKind, bytes]]) -> int:
        self._check()
        parts, offset, synced = [], self._offset, self._sequence
        for number, (lane, place, kind, body) in enumerate(records):
            if len(body) > MAX_BODY:
                raise ValueError("a record is longer than the log takes")
            record = LogRecord(synced + number, synced, lane, place, kind, body)
            parts.append(encode_record(self._header, offset, record))
            offset += len(parts[-1])
        if offset + _SEAL_BYTES > self._ends:
            raise ValueError("the log has no room for this: make_room was not called")
        try:
            self._disk.write(self._file, b"".join(parts), self._offset)
            self._disk.sync(self._file)
        except OSError as error:
            raise self._stop(error) from error
        self._offset, self._sequence = offset, synced + len(records)
        with self._guard:
            self._waiting[self._number] += sum(kind is RecordKind.MESSAGES for _, _, kind, _ in records)
        return self._number

    def _begin_segment(self, size: int = 0) -> None:
        """The next segment is on disk, under its name, before the first record of it."""
        # One record of its own is what the seal of the segment before takes.
        first = self._sequence + (self._file >= 0)
        header = SegmentHeader(self.node, self.epoch, self._number + 1, first)
        ends = max(self._segment_bytes, HEADER_BYTES + size + _SEAL_BYTES)
        fresh = self.path / _NEXT
        try:
            file = self._disk.create(fresh, ends)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        try:
            self._disk.write(file, encode_header(header), 0)
            self._disk.sync_all(file)
            # Sealed before the next has its name: so only the last is ever without a seal.
            if self._file >= 0:
                self._seal()
            self._disk.rename(fresh, self.path / file_name(header.segment))
            self._disk.sync_directory(self.path)
        except OSError as error:
            # Other than in `create`, the disk had room: whatever it is, what is on it is uncertain.
            self._disk.close(file)
            raise self._stop(error) from error
        self._file, self._header, self._number = file, header, header.segment
        self._offset, self._ends, self._sequence = HEADER_BYTES, ends, first
        with self._guard:
            self._waiting[header.segment] = 0

    def _seal(self) -> None:
        self._disk.write(self._file, _seal(self._header, self._offset, self._sequence), self._offset)
        self._disk.truncate(self._file, self._offset + _SEAL_BYTES)
        self._disk.sync_all(self._file)
        self._disk.close(self._file)
        self._file = -1
        self._sequence += 1  # the seal's own

    def recover(self) -> None:
        """Go on after a failed write or sync. Raise `LogStopped` if the disk still fails: nothing has changed then.

        Every record before `_offset` was synced. The seal is written behind them and synced, which also cuts off the
        bytes of the append that failed: its callers were told that its outcome is unknown.
        """
        if self._failure is None or self._failure is not self._stopped_by:
            return
        try:
            if self._file >= 0:
                self._seal()
            self._begin_segment()
        except LogStopped:
            raise
        except OSError as error:
            raise self._stop(error) from error
        self._failure = self._stopped_by = None
        _log.warning("write_ahead_log_recovered", extra={"path": str(self.path), "free_bytes": free_bytes(self.path)})

    # --- Landing -----------------------------------------------------------------------------------------------

    def landed(self, segments: Iterable[int]) -> None:
        """One record of each of these segments has been stored, or need not be."""
        with self._guard:
            for segment in segments:
                self._waiting[segment] -= 1

    def trim(self) -> int:
        """Remove what has landed whole; answers how many segments went."""
        gone = 0
        while (segment := self._landed_whole()) is not None:
            self._disk.remove(self.path / file_name(segment))
            # One by one: if a later one's end outlived an earlier one's, there would be a gap.
            self._disk.sync_directory(self.path)
            with self._guard:
                del self._waiting[segment]
            gone += 1
        return gone

    def can_trim(self) -> bool:
        return self._landed_whole() is not None

    def _landed_whole(self) -> int | None:
        with self._guard:
            oldest, waiting = next(iter(self._waiting.items()))
            return None if waiting or oldest == self._number else oldest

    @property
    def waiting(self) -> int:
        """Records that have not landed."""
        with self._guard:
            return sum(self._waiting.values())

    # --- The end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """What has not landed stays for the next opening."""
        if not self._lock.is_held:
            return
        try:
            if self._failure is None and self._file >= 0:
                self._seal()
        except OSError:
            pass  # the next opening seals it, where it ends
        finally:
            if self._file >= 0:
                self._disk.close(self._file)
                self._file = -1
            self._lock.release()
            self._failure = self._failure or LogStopped(f"the log in {self.path} was closed")
            self._stopped_by = None

    def forked(self) -> None:
        """The files are the parent's: nothing is written to them here, not even a seal."""
        self._failure = LogStopped(forked_error(f"the log in {self.path}").message)

    @property
    def failure(self) -> StoreUnavailable | None:
        return self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise LogStopped(self._failure.message)

    def _stop(self, error: OSError) -> LogStopped:
        if self._failure is None:
            facts = {"path": str(self.path), "free_bytes": free_bytes(self.path), "cause": str(error)}
            _log.error("write_ahead_log_stopped", extra=facts)
        self._failure = LogStopped(
            f"the log in {self.path} failed ({error.strerror}): fix the disk. It goes on by itself once the disk takes "
            "writes again; until then enqueues go to the database",
            path=str(self.path),
        )
        self._stopped_by = self._failure
        return self._failure


def _seal(header: SegmentHeader, offset: int, sequence: int) -> bytes:
    return encode_record(header, offset, LogRecord(sequence, sequence, 0, 0, RecordKind.SEAL, b""))


def _not_void(segments: list[WalSegment]) -> list[Logged]:
    void = {
        (segment.header.epoch, lane, place)
        for segment in segments
        for record in segment.records
        if record.kind is RecordKind.VOID
        for lane, place in decode_places(record.body)
    }
    return [
        Logged(WalPosition(segment.header.node, segment.header.epoch, record.lane, record.place), number, record.body)
        for segment in segments
        for number in [segment.header.segment]
        for record in segment.records
        if record.kind is RecordKind.MESSAGES and (segment.header.epoch, record.lane, record.place) not in void
    ]
