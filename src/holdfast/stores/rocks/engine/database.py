"""One open store directory: the commit log, RocksDB behind it, and the layers of changes in between.

    write       the changes of a commit go to the log as one frame, and into the active layer
    sync        the log is on disk
    checkpoint  the active layer is frozen and written to RocksDB in small slices, with the position of the log that it
                covers; RocksDB is flushed; segments of the log before that position are used again

RocksDB writes no log of its own. After a crash it has the state of its last flush, or a later one in part: frames hold
whole keys and values, so that replaying them from its position gives the same result whatever it has already.
"""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

from holdfast.clock import rest_s
from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import make_directory, sync_directory
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.forks import never_free, note_rocksdb_starts
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.log_position import POSITION_KEY, encode_position
from holdfast.stores.rocks.engine.open_commit import OpenCommit
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.log.commit_log import CommitLog, LogPosition, PendingSync
from holdfast.stores.rocks.log.frames import LogPartKind
from holdfast.stores.rocks.log.replay import Replay, ReplayResult
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import delete_all_but, list_segments
from holdfast.stores.rocks.recovery.manifest import find_manifest, restore_original
from holdfast.stores.rocks.recovery.marker import (
    MARKER,
    WHOLE_STORE,
    WITH_LOG,
    ClosedState,
    Role,
    check_directory,
    read_marker,
    write_marker,
)
from holdfast.stores.rocks.recovery.opening import (
    DATABASE,
    check_files,
    lock_directory,
    make_make_opening_error,
    make_not_made_error,
    open_rocksdb,
    read_covered_position,
)
from holdfast.telemetry.figures import FamilyFigures

_log = logging.getLogger("holdfast")

# A directory of links to RocksDB's files: that it could be made proves that everything was flushed.
_FLUSHED = "flushed.tmp"
# Keys written to RocksDB at once; about a fifth of a millisecond, in which nothing else runs.
_SLICE_KEYS = 100
# Messages that get their keys at once before that; about as long.
_SLICE_MESSAGES = 50
_SLICE_BYTES = 128 << 10
# Keys written to RocksDB at once while nobody waits.
_LOADED_KEYS = 2_000
# Values written to RocksDB between two flushes: pieces of large payloads must not gather in its memory instead of ours.
_UNFLUSHED_BYTES = 16 << 20
# Between two looks whether RocksDB has flushed what it has begun to flush.
_FLUSH_PAUSE_S = 0.001
# The part of a changed key in memory that is not its value: measured, about two objects and their places in a
# dictionary.
_KEY_OVERHEAD_BYTES = 300


class HandleNotClosed(StoreUnavailable):
    """RocksDB did not close in time: this process cannot open the directory again."""


class Database(MergedReads):
    """One open store directory. Every read is bounded below and above."""

    # The result of replaying the log.
    replayed: ReplayResult
    # Continues the log; there is none before `begin`.
    log: CommitLog

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lock: DirectoryLock | None = None,
        has_lost_writes: bool = False,
        shard: int | None = None,
    ) -> None:
        """Open the store in `path`, and make one if there is none.

        `lock`: the caller's hold on the directory, which stays the caller's. Without it, the database takes one of its
        own and releases it once RocksDB has closed. `has_lost_writes`: a write or sync of this boot failed, so the
        files are read as after a power cut. `shard`: it is the shard of this number, and its log is only read for now:
        the caller looks at all shards before it calls `begin`.
        """
        super().__init__()
        # RocksDB opens files by this path for as long as it lives. A relative path would change its meaning with the
        # working directory, one over a symbolic link with the link.
        self.path = Path(os.path.realpath(path))
        self._has_lost_writes = has_lost_writes
        self._role = WHOLE_STORE if shard is None else Role(shard=shard)
        self._owns_lock = lock is None
        self._lock = lock or lock_directory(self.path)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub says method
        self._frozen: Layer | None = None
        # How much had been written to the log when the last checkpoint began.
        self._checkpointed_bytes = 0
        try:
            self._open()
            if shard is None:
                self.begin()
        except BaseException:
            self._release()
            raise

    # --- Opening -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        check_directory(self.path)
        try:
            if not (self.path / MARKER).exists():
                # Before RocksDB's first file: killed in between, the directory must still be known for what it is.
                write_marker(self.path, None, self._role)
        except OSError as error:
            raise make_not_made_error(self.path, error) from None
        marker = self._marker = read_marker(self.path)
        shutil.rmtree(self.path / _FLUSHED, ignore_errors=True)
        mended = check_files(self.path, marker, has_lost_writes=self._has_lost_writes)
        note_rocksdb_starts()
        try:
            database = open_rocksdb(self.path)
        except Exception as error:  # the binding raises nothing more precise
            for saved in mended:
                restore_original(saved)
            raise make_make_opening_error(self.path, error) from None
        for saved in mended:
            _log.warning("%s was torn in a change that had not been carried out", saved.stem)
            saved.unlink()
        self._use(database)
        self.handles: list[Any] = [None, *map(database.get_column_family_handle, keys.FAMILY_NAMES[1:])]
        try:
            self._read_log()
        except Exception as error:
            self.abandon()
            raise self._make_opening_error(error) from None

    def begin(self) -> None:
        """Bring everything in the log to rest in RocksDB, and begin a new log."""
        try:
            self.log = self._begin_log()
        except Exception as error:
            self.abandon()
            raise self._make_opening_error(error) from None
        try:
            # RocksDB has tidied away files: that must be on disk before anything is written.
            sync_directory(self.path / DATABASE)
            write_marker(self.path, os.getpid(), self._role)
        except OSError as error:
            self.log.close()
            self.abandon()
            raise self._make_opening_error(error) from None
        listen_for_forks(self)

    def _make_opening_error(self, error: Exception) -> Exception:
        if isinstance(error, HoldfastError):
            return error
        if isinstance(error, OSError):
            return StoreUnavailable(
                f"{self.path} cannot be opened: {error}; open it again once the cause is mended", path=str(self.path)
            )
        return make_make_opening_error(self.path, error)

    def _read_log(self, *, before: int | None = None) -> None:
        """Replay the log over RocksDB, in memory."""
        marker = self._marker
        directory = self.path / LOG
        if not directory.is_dir():
            make_directory(directory)
        self._covered = read_covered_position(self._opened())
        # The open commit. Its layer is the active one.
        self.commit = OpenCommit(Layer())
        self._layers = (self.commit.layer,)
        if marker.format < WITH_LOG:
            # RocksDB has read its own log, which is not written any more.
            self.flush()
        replay = Replay(
            self.path,
            directory,
            self._covered,
            was_closed=marker.pid is None or marker.format < WITH_LOG,
            after_power_cut=self._has_lost_writes or not marker.is_of_this_boot,
            before=before,
        )
        self.replayed = replay.run(self.commit.layer.replay)

    def replay_before(self, frame: int) -> None:
        """Read the log again, up to before this frame."""
        self._read_log(before=frame)

    def _begin_log(self) -> CommitLog:
        """Bring everything in the log to rest in RocksDB, and return a new log."""
        directory, covered, replayed = self.path / LOG, self._covered, self.replayed
        begin = covered
        if replayed.was_cut or replayed.number != covered.number:
            generation = max([covered.generation, *list_segments(directory)]) + 1
            begin = LogPosition(replayed.number, generation)
        # Made before RocksDB names it: a store that is not closed in order must have it.
        CommitLog.make_first(directory, begin)
        if begin != covered:
            self._rest(begin)
        delete_all_but(directory, begin.generation)
        return CommitLog(directory, begin)

    def _rest(self, position: LogPosition) -> None:
        """Write the active layer to RocksDB, flush it, and begin a new layer."""
        for is_full in self.write_slices(self.commit.layer, position):
            if is_full:
                self.flush_families()
        self.flush()
        self.commit.layer = Layer()
        self._layers = (self.commit.layer,)

    def abandon(self) -> None:
        """Close RocksDB after a failed opening."""
        database, self._db = self._opened(), None
        self.handles.clear()
        families, self._families = self._families[1:], []
        _try_to_close([*families, database], [])

    def discard(self) -> None:
        """Close everything after a failed opening, and leave the files as after a kill."""
        if self._db is not None:
            if "log" in self.__dict__:
                self.log.close()
            self.abandon()

    def forked(self) -> None:
        """Give RocksDB up in the child without closing it, which would wait for its threads and flush into the
        parent's files."""
        self._closed_error = forked_error(f"the store in {self.path}")
        for each in (self._db, *self._families, *self.handles):
            never_free(each)
        self._db, self._families = None, []
        self.handles.clear()

    # --- Commits -----------------------------------------------------------------------------------------------

    def write(self, kind: LogPartKind = LogPartKind.CHANGES) -> None:
        """Write the changes of the open commit to the log, as one frame."""
        self._opened()
        frame = self.commit.take()
        place = self.log.append(frame.body, kind)
        if frame.large:
            self.commit.evict_to_log(frame, *place)

    def sync(self, pending: PendingSync) -> None:
        """Carry out a sync of the log. It may run on another thread."""
        self._opened()
        self.log.sync(pending)

    @property
    def unwritten_bytes(self) -> int:
        """Return about how much memory the changes take that are not yet in RocksDB, the frozen ones left out."""
        payloads = self.log.bytes_written - self._checkpointed_bytes
        return payloads + _KEY_OVERHEAD_BYTES * len(self.commit.layer)

    def load(self, items: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Write keys and values of families straight to RocksDB, for a store that is being made: nothing of it is safe
        before `close` has returned."""
        batch, size = WriteBatch(raw_mode=True), 0
        for family, key, value in items:
            batch.put(key, value, self.handles[family])
            size += len(value)
            if len(batch) >= _LOADED_KEYS or size > _UNFLUSHED_BYTES:
                self._opened().write(batch, self._unlogged)
                batch, size = WriteBatch(raw_mode=True), 0
        self._opened().write(batch, self._unlogged)

    # --- Checkpoints -------------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._frozen is not None

    def freeze(self) -> tuple[Layer, LogPosition]:
        """Begin a checkpoint: return the changes it has to write, and the position of the log that it covers. Nothing
        of it may be written before the log is synced up to there."""
        assert self._frozen is None
        assert self.commit.is_empty
        frozen = self._frozen = self.commit.frozen = self.commit.layer
        self.commit.layer = Layer()
        self._layers = (self.commit.layer, frozen)
        self._checkpointed_bytes = self.log.bytes_written
        return frozen, self.log.position

    def write_slices(self, layer: Layer, position: LogPosition) -> Iterator[bool]:
        """Write a layer to RocksDB, and yield after each small part. The last one carries the position.

        Yield True if RocksDB has so much in memory that its families should be flushed before the next part."""
        while layer.keyless:
            # All of them first: from then on the layer stays as it is.
            layer.make_some_keys(_SLICE_MESSAGES)
            yield False
        batch, count, size, unflushed = WriteBatch(raw_mode=True), 0, 0, 0
        for number, family in enumerate(layer.families):
            handle = self.handles[number]
            for lower, upper in family.ranges:
                batch.delete_range(lower, upper, handle)
            for changed in (family.fresh, family.overrides):
                for key, value in changed.items():
                    if value is None:
                        batch.delete(key, handle)
                    else:
                        value = self._in_memory(value)
                        batch.put(key, value, handle)
                        size += len(value)
                    count += 1
                    if count == _SLICE_KEYS or size > _SLICE_BYTES:
                        self._opened().write(batch, self._unlogged)
                        unflushed += size
                        is_full = unflushed > _UNFLUSHED_BYTES
                        if is_full:
                            unflushed = 0
                        yield is_full
                        batch, count, size = WriteBatch(raw_mode=True), 0, 0
                        handle = self.handles[number]
        batch.put(POSITION_KEY, encode_position(position), None)
        self._opened().write(batch, self._unlogged)
        yield False

    def end_checkpoint(self) -> None:
        """End a checkpoint: RocksDB has all of it in memory, and the log has it until it is flushed."""
        self._frozen = self.commit.frozen = None
        self._layers = (self.commit.layer,)

    def flush_families(self) -> None:
        """Flush RocksDB's families one after the other, without holding the interpreter lock. It may run on another
        thread. The directory comes last: it has the position of the log, which must not be on disk before what it
        covers."""
        for family in (*self._families[1:], self._families[0]):
            family.flush(True)

    def flush(self) -> None:
        """Return once everything that RocksDB has is on disk. It may run on another thread.

        RocksDB flushes all families before it makes a checkpoint; `flush` of a family answers for that family alone. If
        its buffers are so full that another flush would stall writes, it makes the checkpoint without waiting for the
        flush that is under way. So the proof is that a checkpoint could be made, and no buffer holds anything after it.
        It holds the interpreter lock for as long as there is much to flush."""
        proof = self.path / _FLUSHED
        while True:
            try:
                Checkpoint(self._opened()).create_checkpoint(str(proof))
            finally:
                shutil.rmtree(proof, ignore_errors=True)
            if not any(map(_has_unflushed, self._families)):
                return
            rest_s(_FLUSH_PAUSE_S)

    def checkpoint(self, target: str | os.PathLike[str]) -> None:
        """Copy RocksDB into a new directory; files are linked where the file system allows. The copy has everything
        that a checkpoint has written before, and has no log."""
        place = Path(target)
        check_target(place)
        database = self._opened()
        try:
            make_directory(place)
            Checkpoint(database).create_checkpoint(str(place / DATABASE))
            write_marker(place, None, self._role)
        except Exception as error:  # the binding raises nothing more precise
            raise StoreUnavailable(
                f"the backup to {place} broke off: {error}; remove {place} and try again", path=str(place)
            ) from None

    def figures(self) -> dict[str, FamilyFigures]:
        """Return estimates that RocksDB has at hand: all families together take a fraction of a millisecond."""
        return {name: _figures_of(each) for name, each in zip(keys.FAMILY_NAMES, self._families, strict=False)}

    # --- Closing -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Bring everything to rest in RocksDB, close it, and delete the log. Raise `StoreUnavailable` if that fails;
        the log stays then, and the next opening replays it."""
        if self._db is None:
            return
        failures: list[Exception] = []
        try:
            if self._frozen is not None or not self.commit.is_empty:
                raise RuntimeError("a checkpoint or a commit was under way")
            # The segment stays the one to continue in: it must be there until the marker says that the store is closed.
            self._rest(self.log.position)
        except Exception as error:
            failures.append(error)
        _try_to_close(self._let_go(), failures)
        if not failures:
            try:
                manifest = find_manifest(self.path / DATABASE)
                closed_state = ClosedState(*self.log.position, manifest.name, manifest.stat().st_size)
                write_marker(self.path, None, self._role, closed_state=closed_state)
                self.log.delete_all()
            except OSError as error:
                failures.append(error)
        self._release()
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed in order: {failures[0]}", path=str(self.path))

    def close_stopped(self, within_s: float) -> None:
        """Close RocksDB after an error, and leave the log for the next opening.

        RocksDB tries to recover from some errors by itself, and a closing that comes in the middle of that may never
        end. Raise `HandleNotClosed` if it has not ended in time, `StoreUnavailable` if RocksDB's last flush failed."""
        if self._db is None:
            return
        failures: list[Exception] = []
        parts = self._let_go()
        closing = Thread(target=_try_to_close, args=(parts, failures), name="holdfast-closing", daemon=True)
        closing.start()
        closing.join(within_s)
        if closing.is_alive():
            # RocksDB has the files open, and would write to them under the next opening.
            self._lock.keep()
            raise HandleNotClosed(
                f"{self.path} is not closed after {within_s:.0f} s, because RocksDB waits for its own recovery. "
                "Answered calls are safe, but this process cannot open the directory again: restart the program",
                path=str(self.path),
            )
        self._release()
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed in order: {failures[0]}", path=str(self.path))

    def _let_go(self) -> list[Rdict]:
        """Refuse every call from now on, and return RocksDB's parts to be closed: the lock on the directory is held
        while any of them lives."""
        database, self._db = self._opened(), None
        self._layers, self._frozen = (), None
        self.handles.clear()
        families, self._families = self._families[1:], []
        self.log.close()
        return [*families, database]

    def _release(self) -> None:
        if self._owns_lock:
            self._lock.release()


def check_target(place: Path) -> None:
    """Refuse a directory for a backup that exists and is not empty."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidArgument(f"{place} is not an empty directory: give a new one", field="target")


def _figures_of(family: Rdict) -> FamilyFigures:
    def whole(name: str) -> int:
        return int(family.property_value(f"rocksdb.{name}") or 0)

    return FamilyFigures(
        keys=whole("estimate-num-keys"),
        live_bytes=whole("estimate-live-data-size"),
        files_bytes=whole("total-sst-files-size"),
        memtable_bytes=whole("cur-size-all-mem-tables"),
        pending_compaction_bytes=whole("estimate-pending-compaction-bytes"),
        level0_files=whole("num-files-at-level0"),
        block_cache_bytes=whole("block-cache-usage"),
    )


def _has_unflushed(family: Rdict) -> bool:
    """Return whether anything of a family is in RocksDB's memory alone."""
    names = ("num-entries-active-mem-table", "num-immutable-mem-table")
    return any(int(family.property_value(f"rocksdb.{name}") or 0) for name in names)


def _try_to_close(parts: list[Rdict], failures: list[Exception]) -> None:
    """Closing flushes, which may fail on a full disk; the other parts are to be closed all the same."""
    for part in parts:
        try:
            part.close()
        except Exception as error:
            failures.append(error)
