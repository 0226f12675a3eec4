"""The RocksDB directory: opening it with a named error for each way it can be wrong, and reading it within bounds."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from rocksdict import (
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.directory_lock import DirectoryLock, is_held_here
from holdfast.stores.processes import is_running
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.forks import check_rocksdb_works, never_free, note_rocksdb_starts
from holdfast.stores.rocks.log_check import find_damage, logs_of
from holdfast.stores.rocks.manifest import mend_manifest, put_back, return_to_list_before
from holdfast.stores.rocks.marker import (
    MARKER,
    check_directory,
    read_marker,
    write_marker,
)
from holdfast.stores.syncing import make_directory, sync_directory
from holdfast.telemetry.figures import FamilyFigures

DATABASE = "db"

_log = logging.getLogger("holdfast")

_WRITE_BUFFER = 32 << 20
# So many may fill up while one is flushed; then a write waits for the flush. It must not come to that: if the flush
# fails meanwhile for want of space, RocksDB's own recovery and the write that waits wait for each other, for ever.
_WRITE_BUFFERS = 4
# Bounds the log that a restart replays, while flushing cannot keep up.
_MAX_WAL = 256 << 20


class HandleNotClosed(StoreUnavailable):
    """RocksDB did not close in time: this process cannot open the directory again."""


class Handles:
    """RocksDB's handles of the column families, in one place: the directory stays locked while one lives, and whoever
    still holds a part of a closed store, if only in a traceback, must not keep it so."""

    __slots__ = ("ix", "jr", "le", "li", "m", "vi")

    def __init__(self, handles: dict[str, Any]) -> None:
        self.m = handles[keys.MESSAGES]
        self.vi = handles[keys.VISIBLE]
        self.li = handles[keys.EXPIRIES]
        self.le = handles[keys.LEASES]
        self.jr = handles[keys.JOURNAL]
        self.ix = handles[keys.INDEXES]

    def let_go(self) -> None:
        self.m = self.vi = self.li = self.le = self.jr = self.ix = None


class Database:
    """One open store directory. Every read is bounded below and above."""

    def __init__(
        self, path: str | os.PathLike[str], *, lock: DirectoryLock | None = None, has_lost_writes: bool = False
    ) -> None:
        """Open the store in `path`, and make one if there is none.

        `lock`: the caller's hold on the directory, which stays the caller's. Without it, the database takes one of its
        own and releases it once RocksDB has closed. `has_lost_writes`: a write or sync of this boot failed, so the
        files are read as after a power cut.
        """
        # RocksDB opens files by this path for as long as it lives. A relative path would change its meaning with the
        # working directory, one over a symbolic link with the link.
        self.path = Path(os.path.realpath(path))
        self._gone = StoreUnavailable("this store was closed: open it again")
        self._has_lost_writes = has_lost_writes
        self._owns_lock = lock is None
        self._lock = lock or lock_directory(self.path)
        try:
            self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        check_directory(self.path)
        try:
            if not (self.path / MARKER).exists():
                # Before RocksDB's first file: killed in between, the directory must still be known for what it is.
                write_marker(self.path, None)
        except OSError as error:
            raise _not_made(self.path, error) from None
        mended = self._check_files()
        note_rocksdb_starts()
        try:
            self._db: Rdict | None = Rdict(
                str(self.path / DATABASE),
                _options(),
                column_families={name: _options(name) for name in keys.FAMILIES},
            )
        except Exception as error:  # the binding raises nothing more precise
            for saved in mended:
                put_back(saved)
            raise _opening_error(self.path, error) from None
        for saved in mended:
            _log.warning("%s was torn in a change that had not been carried out", saved.stem)
            saved.unlink()
        try:
            # What RocksDB has just tidied away must be gone before its new log says anything: after a power cut, an old
            # log beside it would look like one that the new log goes on from.
            sync_directory(self.path / DATABASE)
            write_marker(self.path, os.getpid())
        except OSError as error:
            self._db.close()
            raise StoreUnavailable(
                f"{self.path} cannot be opened: {error}; open it again once the cause is mended", path=str(self.path)
            ) from None
        self._families = {name: self._db.get_column_family(name) for name in keys.FAMILIES}
        self._families[keys.DIRECTORY] = self._db
        self.handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in keys.FAMILIES}
        self.handles[keys.DIRECTORY] = None
        self.families = Handles(self.handles)
        listen_for_forks(self)

    def forked(self) -> None:
        """Give RocksDB up in the child without closing it, which would wait for its threads and flush into the
        parent's files."""
        self._gone = forked_error(f"the store in {self.path}")
        for each in (self._db, *self._families.values(), *self.handles.values()):
            never_free(each)
        self._db, self._families = None, {}
        self.handles.clear()
        self.families.let_go()

    def _check_files(self) -> list[Path]:
        """Before RocksDB reads them. Answers where what had to be mended is kept as it was."""
        database, marker = self.path / DATABASE, read_marker(self.path)
        if not database.exists():
            return []
        was_opened = marker.pid is not None
        if marker.is_of_this_boot and not self._has_lost_writes:
            self._check_logs(marker.pid, has_power_failed=False)
            mend_manifest(database, was_opened=was_opened, cuts=False)
            return []
        # What a power cut left is cut off, so nobody else may have the store open.
        with _held_alone(self.path):
            named = return_to_list_before(database)
            try:
                self._check_logs(marker.pid, has_power_failed=True)
                torn = mend_manifest(database, was_opened=was_opened, cuts=True)
            except BaseException:
                if named is not None:
                    put_back(named)
                raise
            return [saved for saved in (torn, named) if saved is not None]

    def _check_logs(self, owner: int | None, *, has_power_failed: bool) -> None:
        """RocksDB has a log from before the marker names an owner until long after it names none again."""
        database = self.path / DATABASE
        if owner is not None and not logs_of(database):
            raise StoreUnavailable(
                f"{database} has no log (*.log), though the store was not closed in order: what was written last is "
                "missing; put the log back, or restore a backup",
                path=str(self.path),
            )
        # Checksums too, where the log may have been cut by more than a kill: RocksDB would refuse all of it.
        damage = find_damage(database, verifies_all=has_power_failed)
        if damage is None:
            return
        if not has_power_failed or damage.was_synced():
            raise damage.as_error(self.path)
        damage.cut()
        _log.warning(
            "%s is cut at byte %d: a power cut took what was written there, and had not been synced",
            damage.log,
            damage.at,
        )

    def write(self, batch: WriteBatch) -> None:
        self._opened().write(batch)

    def sync(self) -> None:
        """Everything written so far is on disk. Releases the interpreter lock, unlike a synchronous write."""
        self._opened().flush_wal(True)

    def flush(self) -> None:
        """Write everything into tables, synced: nothing is left that only the log has."""
        for family in self._families.values():
            family.flush(True)

    def latest_sequence(self) -> int:
        """Of the last operation of the last batch that was written."""
        return self._opened().latest_sequence_number()

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._family(family).get(key)
        except Exception as error:
            raise self._unreadable(error) from None
        return value

    def get_many(self, family: str, wanted: list[bytes]) -> list[bytes | None]:
        family_of_keys: Any = self._family(family)  # the stub's list is invariant
        try:
            values: list[bytes | None] = family_of_keys.get(wanted)
        except Exception as error:
            raise self._unreadable(error) from None
        return values

    def get_passing(self, family: str, key: bytes) -> bytes | None:
        """As `get`, for what is large and read once: it takes no place from what is read often."""
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # the stub leaves its argument out
        try:
            value: bytes | None = self._family(family).get(key, read_opt=options)
        except Exception as error:
            raise self._unreadable(error) from None
        return value

    def floor(self, family: str, key: bytes) -> bytes | None:
        """The last key at or before this one."""
        cursor = self._family(family).iter()
        cursor.seek_for_prev(key)
        found: bytes | None = cursor.key() if cursor.valid() else None
        error = self._error_of(cursor)
        del cursor  # held by a traceback it would keep the directory locked
        if error is not None:
            raise error
        return found

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `lower` to before `upper`, with their values.

        By hand over the raw iterator: only that tells the end of a range from a damaged block.
        """
        options = ReadOptions()
        # The binding's lower bound sets the upper one; seeking does what it should.
        options.set_iterate_upper_bound(upper)
        cursor = self._family(family).iter(options)
        cursor.seek(lower)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        error = self._error_of(cursor)
        del cursor
        if error is not None:
            raise error

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[bytes]:
        """As `items`, the keys alone."""
        options = ReadOptions()
        options.set_iterate_upper_bound(upper)
        cursor = self._family(family).iter(options)
        cursor.seek(lower)
        while cursor.valid():
            yield cursor.key()
            cursor.next()
        error = self._error_of(cursor)
        del cursor
        if error is not None:
            raise error

    def _error_of(self, cursor: RdictIter) -> StoreUnavailable | None:
        """A cursor that ended early says so only when it is asked."""
        try:
            cursor.status()
        except Exception as error:
            return self._unreadable(error)
        return None

    def _unreadable(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return error
        return StoreUnavailable(
            f"{self.path} cannot be read: {error}; run `holdfast verify` on a copy, or restore a backup",
            path=str(self.path),
        )

    def checkpoint(self, target: str | os.PathLike[str]) -> None:
        """A consistent copy, made while the store is in use; files are linked where the file system allows."""
        place = Path(target)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise InvalidArgument(f"{place} is not an empty directory: give a new one", field="target")
        database = self._opened()
        try:
            make_directory(place)
            Checkpoint(database).create_checkpoint(str(place / DATABASE))
            write_marker(place, None)
        except Exception as error:  # the binding raises nothing more precise
            raise StoreUnavailable(
                f"the backup to {place} broke off: {error}; remove {place} and try again", path=str(place)
            ) from None

    def figures(self) -> dict[str, FamilyFigures]:
        """Estimates that RocksDB has at hand: all families together take a fraction of a millisecond."""
        return {name: _figures_of(family) for name, family in self._families.items()}

    def close(self, *, within_s: float | None = None) -> None:
        """`within_s`: for one that an error has stopped. RocksDB tries to recover from some errors by itself, and a
        closing that comes in the middle of that may never end."""
        # The lock on the directory is held while any of these lives.
        self.handles.clear()
        self.families.let_go()
        families, self._families = self._families, {}
        if self._db is None:
            return
        database, self._db = self._db, None
        families.pop(keys.DIRECTORY)
        failures: list[Exception] = []
        parts = [*families.values(), database]
        closing = Thread(target=_try_to_close, args=(parts, failures), name="holdfast-closing", daemon=True)
        if within_s is None:
            closing.run()
        else:
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
        if not failures:
            try:
                write_marker(self.path, None)
            except OSError as error:
                failures = [error]
        self._release()
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed in order: {failures[0]}", path=str(self.path))

    def _release(self) -> None:
        if self._owns_lock:
            self._lock.release()

    def _opened(self) -> Rdict:
        if self._db is None:
            raise self._gone.with_traceback(None)
        return self._db

    def _family(self, name: str) -> Rdict:
        self._opened()
        return self._families[name]


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


def _try_to_close(parts: list[Rdict], failures: list[Exception]) -> None:
    """Closing flushes, which may fail on a full disk; the other parts are to be closed all the same."""
    for part in parts:
        try:
            part.close()
        except Exception as error:
            failures.append(error)


def _options(family: str | None = None) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(_MAX_WAL)
    # All families at once, so that no idle one keeps an old log alive: nothing tells that one of several is missing.
    options.set_atomic_flush(True)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    # A torn tail is what a crash leaves, and is cut. Damage anywhere else must stop the start: cutting there would lose
    # what lies behind it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    if family in (keys.VISIBLE, keys.EXPIRIES, keys.LEASES, keys.INDEXES):
        # Queues delete what they write: files that are mostly deletions are compacted early, for cold starts.
        options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return options


def lock_directory(path: Path) -> DirectoryLock:
    """Make the directory of a store if it is missing, and lock it. Nothing in it is read or changed before."""
    check_rocksdb_works()
    check_directory(path)
    try:
        if not (path / MARKER).exists():
            make_directory(path)
        lock = DirectoryLock.take(path)
    except OSError as error:
        raise _not_made(path, error) from None
    if lock is None:
        raise _in_use(path)
    return lock


def _not_made(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"{path} cannot be made: {error.strerror}; give a directory that can be written to", field="url"
    )


@contextmanager
def _held_alone(path: Path) -> Iterator[None]:
    """Hold RocksDB's own lock, which keeps out versions of Holdfast that know no other.

    To close the file frees the lock of the whole process. That is safe here: the caller has locked the directory, so
    this process has not opened the store.
    """
    lock = os.open(path / DATABASE / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _in_use(path) from None
        yield
    finally:
        os.close(lock)


def _in_use(path: Path) -> StoreUnavailable:
    owner = read_marker(path).pid
    do = "to share it, let that program serve it to the others (`holdfast serve`)"
    if is_held_here(path):
        owner = os.getpid()
        who, do = f"process {owner}, this one", "use what `holdfast.open` returned the first time, or close it first"
    elif owner is not None and owner != os.getpid() and is_running(owner):
        who = f"process {owner}"
    else:
        # The marker names the owner only while the store is open, and by a number that means nothing in another
        # container.
        owner = None
        who = "another process, which may be opening or closing it just now"
    return StoreUnavailable(
        f"{path} is in use by {who}: only one program opens a store at a time, and only once; {do}",
        path=str(path),
        pid=owner,
    )


def _opening_error(path: Path, error: Exception) -> Exception:
    text = str(error)
    if "/LOCK" in text:
        return _in_use(path)
    if "no space" in text.lower():
        return StoreUnavailable(f"{path} cannot be opened, the disk is full: free some space", path=str(path))
    if "corruption" in text.lower() and (damage := find_damage(path / DATABASE, verifies_all=True)) is not None:
        return damage.as_error(path)
    return StoreUnavailable(
        f"{path} cannot be opened: {text}; run `holdfast verify` on a copy, or restore a backup", path=str(path)
    )
