"""Checks of a store's directory before it is opened, and the errors that refuse an opening."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, DBCompressionType, DBRecoveryMode, Options, Rdict

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock, is_held_here
from holdfast.stores.disk.file_sync import make_directory
from holdfast.stores.disk.processes import is_running
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.forks import check_rocksdb_works
from holdfast.stores.rocks.engine.log_position import POSITION_KEY, decode_position
from holdfast.stores.rocks.log.commit_log import START, LogPosition
from holdfast.stores.rocks.log.replay import Replay
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import segment_path
from holdfast.stores.rocks.recovery.manifest import (
    discard_unfinished_manifest,
    find_manifest,
    is_whole,
    repair_manifest,
    restore_original,
    restore_previous_manifest,
)
from holdfast.stores.rocks.recovery.marker import MARKER, WITH_LOG, Marker, check_directory, read_marker
from holdfast.stores.rocks.recovery.wal_check import find_damage, list_logs

DATABASE = "db"

_log = logging.getLogger("holdfast")

_WRITE_BUFFER = 32 << 20
# The number of buffers that may be filled while one is flushed. After that, a write waits for the flush. This limit
# must never be reached: if the flush fails for lack of space, RocksDB's own recovery and the write wait for each other
# forever.
_WRITE_BUFFERS = 4


def make_options(family: int | None = None) -> Options:
    """Return RocksDB's options, or those of one column family."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.create_missing_column_families(True)
    chosen.set_write_buffer_size(_WRITE_BUFFER)
    chosen.set_max_write_buffer_number(_WRITE_BUFFERS)
    chosen.set_max_background_jobs(2)
    # Flush all families together: a flush that RocksDB starts by itself must not separate the log position from the
    # data that it covers.
    chosen.set_atomic_flush(True)
    chosen.set_keep_log_file_num(2)
    chosen.set_compression_type(DBCompressionType.lz4())
    # Only stores of format 1 have data in RocksDB's own log. A crash leaves a torn tail, which is cut. Damage anywhere
    # else must stop the opening, because cutting there would lose the data behind it.
    chosen.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    if family in (keys.VISIBLE, keys.EXPIRIES, keys.LEASES, keys.INDEXES):
        # Queues delete everything they write. Files that contain mostly deletions are compacted early, so that a cold
        # start is fast.
        chosen.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return chosen


def open_rocksdb(path: Path, *, is_read_only: bool = False) -> Rdict:
    """Open RocksDB in a store's directory."""
    families = {name: make_options(number) for number, name in enumerate(keys.FAMILY_NAMES) if number != keys.DIRECTORY}
    if is_read_only:
        access = AccessType.read_only(False)
        return Rdict(str(path / DATABASE), make_options(), column_families=families, access_type=access)
    return Rdict(str(path / DATABASE), make_options(), column_families=families)


def read_covered_position(database: Rdict) -> LogPosition:
    """Return the log position up to which RocksDB has everything."""
    raw: bytes | None = database.get(POSITION_KEY)
    return START if raw is None else decode_position(raw)


# --- RocksDB's files -------------------------------------------------------------------------------------------------


def check_files(path: Path, marker: Marker, *, has_lost_writes: bool) -> list[Path]:
    """Check RocksDB's files before it reads them, and repair what a power cut has torn.

    Return the files that keep the originals of repaired files. Raise `StoreUnavailable` if data that was synced is
    missing.
    """
    database = path / DATABASE
    if not database.exists():
        return []
    was_opened = marker.pid is not None
    _check_manifest_size(path, marker)
    if marker.is_of_this_boot and not has_lost_writes:
        if marker.format < WITH_LOG:
            _check_rocksdb_logs(path, marker.pid, has_power_failed=False)
        repair_manifest(database, was_opened=was_opened, cuts=False)
        if marker.format >= WITH_LOG and not is_whole(database):
            _check_log_reaches(path, marker)
        return []
    # After a power cut, the remains of unsynced writes are cut off. So no other process may have the store open.
    with _lock_rocksdb(path):
        repaired: list[Path] = []
        try:
            if (named := restore_previous_manifest(database)) is not None:
                repaired.append(named)
            if marker.format < WITH_LOG:
                _check_rocksdb_logs(path, marker.pid, has_power_failed=True)
            if not was_opened:
                discard_unfinished_manifest(database, is_unmade=_is_unmade(path, marker))
            if (torn := repair_manifest(database, was_opened=was_opened, cuts=True)) is not None:
                repaired.append(torn)
            if repaired and marker.format >= WITH_LOG:
                _check_log_reaches(path, marker)
        except BaseException:
            for saved in repaired:
                restore_original(saved)
            raise
        return repaired


def _is_unmade(path: Path, marker: Marker) -> bool:
    """Return whether RocksDB has never been opened completely here. The log's directory is made right after its first
    opening."""
    return marker.was_never_opened and marker.format >= WITH_LOG and not (path / LOG).exists()


def _check_manifest_size(path: Path, marker: Marker) -> None:
    """Refuse a manifest that has become shorter since the store was closed, even if it can be read to its end."""
    if marker.closed_state is None:
        return
    manifest = path / DATABASE / marker.closed_state.manifest
    if manifest.exists() and manifest.stat().st_size < marker.closed_state.manifest_bytes:
        raise _manifest_error(path, "it has become shorter since the store was closed")


def _check_log_reaches(path: Path, marker: Marker) -> None:
    """Refuse a shortened manifest if the log does not continue where it ends.

    The missing changes then describe a flush that was completed, after which the log's older segments were released. A
    closed store has no log, so its manifest must describe the last checkpoint.
    """
    if marker.was_never_opened and not any((path / DATABASE).glob("*.sst")):
        return  # a crash ended the creation of the store, and it never contained anything
    try:
        database = open_rocksdb(path, is_read_only=True)
    except Exception as error:  # the binding raises nothing more precise
        if "MANIFEST-" in str(error):
            raise _manifest_error(path, "RocksDB cannot read it") from None
        raise make_opening_error(path, error) from None
    try:
        covered = read_covered_position(database)
    finally:
        database.close()
    if marker.closed_state is not None and covered == (marker.closed_state.number, marker.closed_state.generation):
        return
    if not segment_path(path / LOG, covered.generation).exists():
        raise _manifest_error(path, "the newest files are missing from it")
    # Every segment that the manifest's state needs must exist.
    after_power_cut = not marker.is_of_this_boot
    Replay(path, path / LOG, covered, was_closed=False, after_power_cut=after_power_cut).run(lambda *_: None)


def _manifest_error(path: Path, cause: str) -> StoreUnavailable:
    manifest = find_manifest(path / DATABASE)
    return StoreUnavailable(f"{manifest} is damaged: {cause}; restore a backup", path=str(path), file=str(manifest))


def _check_rocksdb_logs(path: Path, owner: int | None, *, has_power_failed: bool) -> None:
    """Check RocksDB's own logs, which stores of format 1 have.

    Such a log exists from before the marker names an owner until long after it names none again.
    """
    database = path / DATABASE
    if owner is not None and not list_logs(database):
        raise StoreUnavailable(
            f"{database} has no log (*.log), though the store was not closed properly: the last writes are missing; "
            "put the log back, or restore a backup",
            path=str(path),
        )
    # Verify all checksums after a power cut. RocksDB would refuse the whole log for a single wrong one.
    damage = find_damage(database, verifies_all=has_power_failed)
    if damage is None:
        return
    if not has_power_failed or damage.was_synced():
        raise damage.as_error(path)
    damage.cut()
    _log.warning(
        "rocksdb_log_cut path=%s at=%d: a power cut has lost writes there that had not been synced",
        damage.log,
        damage.offset,
    )


@contextmanager
def _lock_rocksdb(path: Path) -> Iterator[None]:
    """Hold RocksDB's own lock, which keeps out older versions of Holdfast that know no other lock.

    Closing the lock file releases the lock for the whole process. That is safe here: the caller has locked the
    directory, so this process has not opened the store.
    """
    lock = os.open(path / DATABASE / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise make_in_use_error(path, by_another=True) from None
        yield
    finally:
        os.close(lock)


# --- The directory ---------------------------------------------------------------------------------------------------


def lock_directory(path: Path) -> DirectoryLock:
    """Lock the directory of a store, and make it if it does not exist. Nothing in it is read or changed before.

    Raise `StoreUnavailable` if the store is in use, and `InvalidArgument` if the directory cannot be made or is not a
    store.
    """
    check_rocksdb_works()
    check_directory(path)
    try:
        if not (path / MARKER).exists():
            make_directory(path)
        lock = DirectoryLock.take(path)
    except OSError as error:
        raise make_not_made_error(path, error) from None
    if lock is None:
        raise make_in_use_error(path)
    return lock


def make_not_made_error(path: Path, error: OSError) -> InvalidArgument:
    """Return the error for a directory that cannot be made."""
    return InvalidArgument(
        f"{path} cannot be made: {error.strerror}; give a directory that can be written to", field="url"
    )


def make_in_use_error(path: Path, *, by_another: bool = False) -> StoreUnavailable:
    """Return the error for a store that is already open, with the process that has it open if that is known.

    `by_another`: this process has locked the directory, but another one has RocksDB's own lock.
    """
    owner = read_marker(path).pid
    do = "to share it, let that program serve it to the others (`holdfast serve`)"
    if not by_another and is_held_here(path):
        owner = os.getpid()
        who, do = f"process {owner}, this one", "use the object that `holdfast.open` returned first, or close it first"
    elif owner is not None and owner != os.getpid() and is_running(owner):
        who = f"process {owner}"
    else:
        # The marker names the owner only while the store is open, and a process id means nothing in another container.
        owner = None
        who = "another process, which may be opening or closing it right now"
    return StoreUnavailable(
        f"{path} is in use by {who}: only one program opens a store at a time, and only once; {do}",
        path=str(path),
        pid=owner,
    )


def make_opening_error(path: Path, error: Exception) -> Exception:
    """Return the error for an exception that RocksDB raised while it opened a store."""
    text = str(error)
    if "/LOCK" in text:
        return make_in_use_error(path, by_another=True)
    if "no space" in text.lower():
        return StoreUnavailable(f"{path} cannot be opened, the disk is full: free some space", path=str(path))
    if "corruption" in text.lower() and (damage := find_damage(path / DATABASE, verifies_all=True)) is not None:
        return damage.as_error(path)
    return StoreUnavailable(
        f"{path} cannot be opened: {text}; run `holdfast verify` on a copy, or restore a backup", path=str(path)
    )
