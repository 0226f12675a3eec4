"""The RocksDB directory: opening it with a named error for each way it can be wrong, and reading it within bounds."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
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

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.log_check import find_damage, logs_of
from holdfast.telemetry.figures import FamilyFigures

# The layout of keys and values. A store of a higher number was written by a newer Holdfast.
FORMAT = 1

# Stands beside RocksDB's own files: says that this is a store of ours, of which format, and who has it open.
MARKER = "HOLDFAST"
_FRESH_MARKER = "HOLDFAST.new"
DATABASE = "db"

_WRITE_BUFFER = 32 << 20
# Bounds the log that a restart replays, while flushing cannot keep up.
_MAX_WAL = 256 << 20


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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_directory(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / MARKER).exists():
                # Before RocksDB's first file: killed in between, the directory must still be known for what it is.
                write_marker(self.path, None)
        except OSError as error:
            raise InvalidArgument(
                f"{self.path} cannot be made: {error.strerror}; give a directory that can be written to", field="url"
            ) from None
        self._check_logs()
        try:
            self._db: Rdict | None = Rdict(
                str(self.path / DATABASE),
                _options(),
                column_families={name: _options(name) for name in keys.FAMILIES},
            )
        except Exception as error:  # the binding raises nothing more precise
            raise _opening_error(self.path, error) from None
        # What RocksDB has just tidied away must be gone before its new log says anything: after a power cut, an old log
        # beside it would look like one that the new log goes on from.
        _sync_directory(self.path / DATABASE)
        write_marker(self.path, os.getpid())
        self._families = {name: self._db.get_column_family(name) for name in keys.FAMILIES}
        self._families[keys.DIRECTORY] = self._db
        self.handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in keys.FAMILIES}
        self.handles[keys.DIRECTORY] = None
        self.families = Handles(self.handles)

    def _check_logs(self) -> None:
        """RocksDB has a log from before the marker names an owner until long after it names none again."""
        database = self.path / DATABASE
        if _owner_of(self.path) is not None and not logs_of(database):
            raise StoreUnavailable(
                f"{database} has no log (*.log), though the store was not closed in order: what was written last is "
                "missing; put the log back, or restore a backup",
                path=str(self.path),
            )
        if (damage := find_damage(database)) is not None:
            raise damage.as_error(self.path)

    def write(self, batch: WriteBatch) -> None:
        self._opened().write(batch)

    def sync(self) -> None:
        """Everything written so far is on disk. Releases the interpreter lock, unlike a synchronous write."""
        self._opened().flush_wal(True)

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
        place.mkdir(parents=True, exist_ok=True)
        Checkpoint(self._opened()).create_checkpoint(str(place / DATABASE))
        write_marker(place, None)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def figures(self) -> dict[str, FamilyFigures]:
        """Estimates that RocksDB has at hand: all families together take a fraction of a millisecond."""
        return {name: _figures_of(family) for name, family in self._families.items()}

    def close(self) -> None:
        # The lock on the directory is held while any of these lives.
        self.handles.clear()
        self.families.let_go()
        families, self._families = self._families, {}
        if self._db is None:
            return
        database, self._db = self._db, None
        families.pop(keys.DIRECTORY)
        failures = [failure for part in (*families.values(), database) if (failure := _try_to_close(part)) is not None]
        if failures:
            raise StoreUnavailable(f"{self.path} was not closed in order: {failures[0]}", path=str(self.path))
        write_marker(self.path, None)

    def _opened(self) -> Rdict:
        if self._db is None:
            raise StoreUnavailable("this store was closed: open it again")
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


def _try_to_close(part: Rdict) -> Exception | None:
    """Closing flushes, which may fail on a full disk; the other parts are to be closed all the same."""
    try:
        part.close()
    except Exception as error:
        return error
    return None


def _options(family: str | None = None) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(_WRITE_BUFFER)
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


def check_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path} is a file: give a directory for the store", field="url")
    marker = path / MARKER
    if marker.exists():
        try:
            format = int(json.loads(marker.read_text())["format"])
        except (ValueError, KeyError, TypeError):
            raise StoreUnavailable(f"{marker} is damaged: restore the store from a backup", path=str(path)) from None
        if format > FORMAT:
            raise StoreUnavailable(
                f"{path} is a store of format {format}, this version reads up to {FORMAT}: upgrade Holdfast",
                path=str(path),
                format=format,
            )
    elif path.is_dir() and any(file.name != _FRESH_MARKER for file in path.iterdir()):
        raise InvalidArgument(
            f"{path} is not a store and not empty: give a store's directory, or a new one", field="url"
        )


def _opening_error(path: Path, error: Exception) -> Exception:
    text = str(error)
    if "/LOCK" in text:
        owner = _owner_of(path)
        who = f"process {owner}" if owner else "another process"
        return StoreUnavailable(
            f"{path} is in use by {who}: only one program opens a store at a time; to share it, let that program "
            "serve it to the others",
            path=str(path),
            pid=owner,
        )
    if "no space" in text.lower():
        return StoreUnavailable(f"{path} cannot be opened, the disk is full: free some space", path=str(path))
    if "corruption" in text.lower() and (damage := find_damage(path / DATABASE, verifies_all=True)) is not None:
        return damage.as_error(path)
    return StoreUnavailable(
        f"{path} cannot be opened: {text}; run `holdfast verify` on a copy, or restore a backup", path=str(path)
    )


def _owner_of(path: Path) -> int | None:
    try:
        owner = json.loads((path / MARKER).read_text()).get("pid")
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, int) else None


def write_marker(path: Path, pid: int | None) -> None:
    """By a rename, so that a crash leaves the old marker or the new one."""
    fresh = path / _FRESH_MARKER
    with fresh.open("w") as file:
        json.dump({"format": FORMAT, "pid": pid}, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path / MARKER)
    _sync_directory(path)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
