"""The local write-ahead log: enqueues that were answered and may not be stored yet.

    wal_dir/LOCK                    held by the one process that has the log open
    wal_dir/0000000000000007.wal    segments, numbered without a gap; only the last one is written
    wal_dir/next.tmp                the next segment, before it is complete

- An enqueue is answered only after `append` returned, which is after its bytes were synced to disk.
- Each opening begins a segment of its own, under a random epoch of its own. It cuts the previous segment where it was
  torn, and seals it. So only the last segment can be torn, and damage anywhere else is refused with the file's name.
- Space is reserved when a segment is created: a full disk shows there, before any call was answered.
- After a failed write or sync the log takes nothing more. `recover` seals the segment after the last synced record,
  which cuts off the failed bytes, and goes on in a new segment; the next opening does the same.
- A segment is removed once all its records have landed, the oldest segment first.

All calls block. One thread at a time may append; `landed` and `trim` may be called at the same time.
"""

import errno
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

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
from holdfast.stores.buffered.log.replay import Logged, WalPosition, encode_numbers, records_to_land
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


class LogInUse(StoreUnavailable):
    """Another process, or this one, has the log open."""


class LogStopped(StoreUnavailable):
    """A write or sync has failed, or the log was closed: it takes nothing more."""


class Wal:
    """The write-ahead log of one server."""

    def __init__(self, path: str | Path, *, segment_bytes: int = SEGMENT_BYTES, disk: Disk | None = None) -> None:
        """Open the log, creating the directory if needed. `replay` returns the records that earlier runs left.

        Raise `LogInUse` if the log is open already, `LogDamaged` if it was damaged, and `InvalidArgument` or
        `StoreUnavailable` if the directory cannot be used.
        """
        # The real path, because a relative one or a symbolic link could later lead to another directory.
        self.path = Path(os.path.realpath(path))
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._failure: LogStopped | None = None
        # The failure that `recover` can end; a closed log stays closed.
        self._stopped_by: LogStopped | None = None
        # Segment number to the number of its records that have not landed, in order; the last one is being written.
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._guard = threading.Lock()
        self._lock = self._take_lock()
        try:
            old = self._read()
            self.node = node_of(old) or uuid4()
            self.epoch = secrets.randbits(63)
            self._sequence = 0
            self._next_numbers: dict[int, int] = {}
            self._replayed = records_to_land(old)
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
            raise LogInUse(f"the log in {self.path} is in use by {who}; give each server its own wal_dir")
        return lock

    def _read(self) -> list[WalSegment]:
        """Read all segments, and seal the last one if it is not sealed."""
        (self.path / _NEXT).unlink(missing_ok=True)
        paths = list_segments(self.path)
        segments = [read_segment(path, may_be_torn=path is paths[-1]) for path in paths]
        check_chain(segments)
        if segments and not segments[-1].is_sealed:
            self._cut(segments[-1])
        return segments

    def _cut(self, segment: WalSegment) -> None:
        """Cut off a torn end, and seal the rest."""
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
        """Return the records that the log had when it was opened, in order. They are returned once, and count as
        waiting until they have landed."""
        replayed, self._replayed = self._replayed, []
        return replayed

    # --- Appending ---------------------------------------------------------------------------------------------

    def take_numbers(self, shard: int, number: int) -> range:
        """Return the next record numbers of a shard. A number that is never appended leaves a gap, which has no
        meaning."""
        first = self._next_numbers.get(shard, 0)
        self._next_numbers[shard] = first + number
        return range(first, first + number)

    def position(self, shard: int, number: int) -> WalPosition:
        """Return the position of a record of this opening."""
        return WalPosition(self.node, self.epoch, shard, number)

    def make_room(self, size: int) -> None:
        """Make room for an append of `size` bytes. Raise `StoreUnavailable` if the disk is full; nothing has changed
        then."""
        self._check()
        if self._offset + size + _SEAL_BYTES <= self._ends:
            return
        try:
            self._begin_segment(size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreUnavailable(f"the disk of {self.path} is full; free some space") from error
            raise self._stop(error) from error

    def has_room(self, size: int) -> bool:
        """Return whether an append of `size` bytes fits into the current segment."""
        return self._failure is None and self._offset + size + _SEAL_BYTES <= self._ends

    def append(self, bodies: Iterable[tuple[int, int, bytes]]) -> int:
        """Append records of (shard, number, body) with one write and one sync, and return the segment's number.
        `make_room` must have been called."""
        return self._append([(shard, number, RecordKind.MESSAGES, body) for shard, number, body in bodies])

    def void(self, numbers: list[tuple[int, int]]) -> None:
        """Record that these (shard, number) of the last append must never be stored, and that all its other records
        must be. With an empty list it tells readers that the whole append was kept."""
        body = encode_numbers(numbers)
        self.make_room(record_size(body))
        self._append([(0, 0, RecordKind.VOID, body)])

    def _append(self, records: list[tuple[int, int, RecordKind, bytes]]) -> int:
        self._check()
        parts, offset, synced = [], self._offset, self._sequence
        for index, (shard, number, kind, body) in enumerate(records):
            if len(body) > MAX_BODY:
                raise ValueError(f"a record has {len(body)} bytes, the log takes at most {MAX_BODY}")
            record = LogRecord(synced + index, synced, shard, number, kind, body)
            parts.append(encode_record(self._header, offset, record))
            offset += len(parts[-1])
        if offset + _SEAL_BYTES > self._ends:
            raise ValueError("the segment has no room for these records; call make_room first")
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
        """Create the next segment. It is on disk under its name before its first record is written."""
        # The seal of the previous segment takes one sequence number.
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
            # Sealed before the next segment gets its name, so only the last segment is ever without a seal.
            if self._file >= 0:
                self._seal()
            self._disk.rename(fresh, self.path / file_name(header.segment))
            self._disk.sync_directory(self.path)
        except OSError as error:
            # The disk had room, unlike in `create`: after any error its contents are uncertain.
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
        self._sequence += 1  # the seal's own number

    def recover(self) -> None:
        """Go on after a failed write or sync. Raise `LogStopped` if the disk still fails; nothing has changed then.

        Every record before `_offset` was synced. The seal is written after them and synced, which also cuts off the
        bytes of the failed append: its callers were told that the outcome is unknown.
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
        """Note that one record of each of these segments was stored, or need not be stored."""
        with self._guard:
            for segment in segments:
                self._waiting[segment] -= 1

    def trim(self) -> int:
        """Remove segments whose records have all landed, the oldest first. Return how many were removed."""
        gone = 0
        while (segment := self._oldest_landed()) is not None:
            self._disk.remove(self.path / file_name(segment))
            # Synced one by one: if a later removal reached the disk before an earlier one, there would be a gap.
            self._disk.sync_directory(self.path)
            with self._guard:
                del self._waiting[segment]
            gone += 1
        return gone

    def can_trim(self) -> bool:
        """Return whether `trim` would remove a segment."""
        return self._oldest_landed() is not None

    def _oldest_landed(self) -> int | None:
        with self._guard:
            oldest, waiting = next(iter(self._waiting.items()))
            return None if waiting or oldest == self._number else oldest

    @property
    def waiting(self) -> int:
        """The number of records that have not landed."""
        with self._guard:
            return sum(self._waiting.values())

    # --- The end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Seal and close the log. Records that have not landed stay for the next opening."""
        if not self._lock.is_held:
            return
        try:
            if self._failure is None and self._file >= 0:
                self._seal()
        except OSError:
            pass  # the next opening seals it
        finally:
            if self._file >= 0:
                self._disk.close(self._file)
                self._file = -1
            self._lock.release()
            self._failure = self._failure or LogStopped(f"the log in {self.path} was closed")
            self._stopped_by = None

    def forked(self) -> None:
        """Stop the log in a forked child: the files are the parent's, and nothing may be written to them, not even a
        seal."""
        self._failure = LogStopped(forked_error(f"the log in {self.path}").message)

    @property
    def failure(self) -> StoreUnavailable | None:
        """The error that stopped the log, or None."""
        return self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise LogStopped(self._failure.message)

    def _stop(self, error: OSError) -> LogStopped:
        if self._failure is None:
            facts = {"path": str(self.path), "free_bytes": free_bytes(self.path), "cause": str(error)}
            _log.error("write_ahead_log_stopped", extra=facts)
        self._failure = LogStopped(
            f"the log in {self.path} failed ({error.strerror}); fix the disk. The log recovers by itself once writes "
            "succeed again; until then enqueues go to the database",
            path=str(self.path),
        )
        self._stopped_by = self._failure
        return self._failure


def _seal(header: SegmentHeader, offset: int, sequence: int) -> bytes:
    return encode_record(header, offset, LogRecord(sequence, sequence, 0, 0, RecordKind.SEAL, b""))
