"""One open store directory: the commit log, RocksDB, and the layers of changes in between.

    write       the changes of a commit go to the log as one frame, and into the active layer
    sync        the log is on disk
    checkpoint  the active layer is frozen and written to RocksDB in small slices, with the log position that it
                covers; RocksDB is flushed; log segments before that position are released

RocksDB writes no log of its own. After a crash it has the state of its last flush, or parts of a later state. Frames
contain whole keys and values, so replaying them from RocksDB's position gives the same result, whatever RocksDB has
already.
"""

import logging
import os
import shutil
from pathlib import Path
from threading import Thread

from rocksdict import Checkpoint, Rdict

from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import make_directory, sync_directory
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.forks import never_free, note_rocksdb_starts
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.open_commit import OpenCommit
from holdfast.stores.rocks.engine.rocks_writes import FLUSH_PROOF, RocksWrites
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
    make_not_made_error,
    make_opening_error,
    open_rocksdb,
    read_covered_position,
)

_log = logging.getLogger("holdfast")

# Memory that a changed key takes in addition to its value. Measured: about two objects and their dictionary entries.
_KEY_OVERHEAD_BYTES = 300


class HandleNotClosed(StoreUnavailable):
    """RocksDB did not close in time, so this process cannot open the directory again."""


class Database(RocksWrites):
    """One open store directory. Every scan of it has a lower and an upper bound."""

    # The result of replaying the log at the opening.
    replayed: ReplayResult
    # The log that commits are written to. It does not exist before `begin`.
    log: CommitLog

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lock: DirectoryLock | None = None,
        has_lost_writes: bool = False,
        shard: int | None = None,
        role: Role = WHOLE_STORE,
    ) -> None:
        """Open the store in `path`, or make it if it does not exist.

        `lock` is the caller's lock on the directory, and remains the caller's. Without it, the database takes its own
        lock, and releases it once RocksDB has closed. `has_lost_writes`: a write or sync of this boot has failed, so
        the files are read as after a power cut. `shard`: the number of this shard. Its log is only read for now,
        because the caller checks all shards before it calls `begin`. `role`: that of a store without shards.

        Raise `StoreUnavailable` if the store is in use or damaged, and `InvalidArgument` if `path` is not a store's
        directory.
        """
        super().__init__()
        # RocksDB opens files by this path as long as it is open. A relative path would change its meaning with the
        # working directory, and a path over a symbolic link with the link.
        self.path = Path(os.path.realpath(path))
        self._has_lost_writes = has_lost_writes
        self.role = role if shard is None else Role(shard=shard)
        self._owns_lock = lock is None
        self._lock = lock or lock_directory(self.path)
        self._frozen: Layer | None = None
        # The value of `log.bytes_written` when the last checkpoint began.
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
                # Write the marker before RocksDB's first file: after a kill in between, the directory must still be
                # recognized as a store.
                write_marker(self.path, None, self.role)
        except OSError as error:
            raise make_not_made_error(self.path, error) from None
        marker = self._marker = read_marker(self.path)
        shutil.rmtree(self.path / FLUSH_PROOF, ignore_errors=True)
        repaired = check_files(self.path, marker, has_lost_writes=self._has_lost_writes)
        note_rocksdb_starts()
        try:
            database = open_rocksdb(self.path)
        except Exception as error:  # the binding raises nothing more precise
            for saved in repaired:
                restore_original(saved)
            raise make_opening_error(self.path, error) from None
        for saved in repaired:
            _log.warning("manifest_repaired file=%s: it was torn in a change that had not taken effect", saved.stem)
            saved.unlink()
        self._use(database)
        self.handles = [None, *map(database.get_column_family_handle, keys.FAMILY_NAMES[1:])]
        try:
            self._read_log()
        except Exception as error:
            self.abandon()
            raise self._make_opening_error(error) from None

    def begin(self) -> None:
        """Write everything in the log to RocksDB, and start a new log."""
        try:
            self.log = self._begin_log()
        except Exception as error:
            self.abandon()
            raise self._make_opening_error(error) from None
        try:
            # RocksDB has deleted files. That must be on disk before anything is written.
            sync_directory(self.path / DATABASE)
            write_marker(self.path, os.getpid(), self.role)
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
                f"{self.path} cannot be opened: {error}; remove the cause, then open it again", path=str(self.path)
            )
        return make_opening_error(self.path, error)

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
            # RocksDB has replayed its own log, which is not written any more.
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
        """Read the log again, up to the frame before this one."""
        self._read_log(before=frame)

    def _begin_log(self) -> CommitLog:
        """Write everything in the log to RocksDB, and return a new log."""
        directory, covered, replayed = self.path / LOG, self._covered, self.replayed
        begin = covered
        if replayed.was_cut or replayed.number != covered.number:
            generation = max([covered.generation, *list_segments(directory)]) + 1
            begin = LogPosition(replayed.number, generation)
        # Make the segment before RocksDB refers to it: an opening after a crash requires the segment.
        CommitLog.make_first(directory, begin)
        if begin != covered:
            self._write_active_layer(begin)
        delete_all_but(directory, begin.generation)
        return CommitLog(directory, begin)

    def _write_active_layer(self, position: LogPosition) -> None:
        """Write the active layer to RocksDB, flush it, and start a new layer."""
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
        """Close everything after a failed opening, and leave the files as a kill would."""
        if self._db is not None:
            if "log" in self.__dict__:
                self.log.close()
            self.abandon()

    def forked(self) -> None:
        """Drop RocksDB in a forked child without closing it.

        Closing would wait for threads that do not exist in the child, and flush into the parent's files.
        """
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
        generation, offset = self.log.append(frame.body, kind)
        if frame.large:
            self.commit.evict_to_log(frame, generation, offset)

    def sync(self, pending: PendingSync) -> None:
        """Carry out a sync of the log. May run on another thread."""
        self._opened()
        self.log.sync(pending)

    @property
    def unwritten_bytes(self) -> int:
        """Return about how much memory the changes in the active layer take."""
        payloads = self.log.bytes_written - self._checkpointed_bytes
        return payloads + _KEY_OVERHEAD_BYTES * len(self.commit.layer)

    # --- Checkpoints -------------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._frozen is not None

    def begin_checkpoint(self) -> tuple[Layer, LogPosition]:
        """Freeze the active layer, and return it with the log position that it covers.

        None of it may be written to RocksDB before the log is synced up to that position.
        """
        assert self._frozen is None
        assert self.commit.is_empty
        frozen = self._frozen = self.commit.frozen = self.commit.layer
        self.commit.layer = Layer()
        self._layers = (self.commit.layer, frozen)
        self._checkpointed_bytes = self.log.bytes_written
        return frozen, self.log.position

    def end_checkpoint(self) -> None:
        """Drop the frozen layer. RocksDB has all of it in memory, and the log keeps it until RocksDB is flushed."""
        self._frozen = self.commit.frozen = None
        self._layers = (self.commit.layer,)

    def copy_to(self, target: str | os.PathLike[str]) -> None:
        """Copy RocksDB into a new directory. Files are linked where the file system allows it.

        The copy has everything that was written by a checkpoint before, and has no log. Raise `StoreUnavailable` if it
        fails.
        """
        directory = Path(target)
        check_target(directory)
        database = self._opened()
        try:
            make_directory(directory)
            Checkpoint(database).create_checkpoint(str(directory / DATABASE))
            write_marker(directory, None, self.role)
        except Exception as error:  # the binding raises nothing more precise
            raise StoreUnavailable(
                f"the backup to {directory} failed: {error}; remove {directory} and try again", path=str(directory)
            ) from None

    # --- Closing -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write all changes to RocksDB, close it, and delete the log.

        Raise `StoreUnavailable` if that fails. The log is kept then, and the next opening replays it.
        """
        if self._db is None:
            return
        failures: list[Exception] = []
        try:
            if self._frozen is not None or not self.commit.is_empty:
                raise RuntimeError("a checkpoint or a commit was under way")
            # The log stays in this segment: it must exist until the marker says that the store is closed.
            self._write_active_layer(self.log.position)
        except Exception as error:
            failures.append(error)
        _try_to_close(self._detach(), failures)
        if not failures:
            try:
                manifest = find_manifest(self.path / DATABASE)
                closed_state = ClosedState(*self.log.position, manifest.name, manifest.stat().st_size)
                write_marker(self.path, None, self.role, closed_state=closed_state)
                self.log.delete_all()
            except OSError as error:
                failures.append(error)
        self._release()
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed properly: {failures[0]}", path=str(self.path))

    def close_stopped(self, within_s: float) -> None:
        """Close RocksDB after an error, within `within_s` seconds, and keep the log for the next opening.

        RocksDB tries to recover from some errors by itself. Closing it in the middle of that may never end. Raise
        `HandleNotClosed` if it has not ended in time, and `StoreUnavailable` if RocksDB's last flush failed.
        """
        if self._db is None:
            return
        failures: list[Exception] = []
        parts = self._detach()
        closing = Thread(target=_try_to_close, args=(parts, failures), name="holdfast-closing", daemon=True)
        closing.start()
        closing.join(within_s)
        if closing.is_alive():
            # RocksDB still has the files open. It could write to them while the next opening reads them.
            self._lock.keep()
            raise HandleNotClosed(
                f"{self.path} is not closed after {within_s:.0f} s, because RocksDB waits for its own recovery. "
                "Acknowledged calls are safe, but this process cannot open the directory again: restart the program",
                path=str(self.path),
            )
        self._release()
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed properly: {failures[0]}", path=str(self.path))

    def _detach(self) -> list[Rdict]:
        """Refuse every later call, and return RocksDB's parts to be closed.

        RocksDB's own lock on the directory is held as long as any of them exists.
        """
        database, self._db = self._opened(), None
        self._layers, self._frozen = (), None
        self.handles.clear()
        families, self._families = self._families[1:], []
        self.log.close()
        return [*families, database]

    def _release(self) -> None:
        if self._owns_lock:
            self._lock.release()


def check_target(directory: Path) -> None:
    """Raise `InvalidArgument` if the directory for a backup exists and is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidArgument(f"{directory} is not an empty directory: give a new one", field="target")


def _try_to_close(parts: list[Rdict], failures: list[Exception]) -> None:
    """Close all parts, and collect the errors. Closing flushes, which may fail on a full disk; the other parts are
    closed anyway."""
    for part in parts:
        try:
            part.close()
        except Exception as error:
            failures.append(error)
