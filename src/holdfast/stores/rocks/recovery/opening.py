"""Checks of a store's directory before it is opened, and the errors that an opening is refused with."""

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
# How many buffers may fill up while one is flushed; then a write waits for the flush. It must not come to that: if the
# flush fails meanwhile for want of space, RocksDB's own recovery and the write wait for each other, for ever.
_WRITE_BUFFERS = 4


def options(family: int | None = None) -> Options:
    """Return RocksDB's options, or those of one column family."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.create_missing_column_families(True)
    chosen.set_write_buffer_size(_WRITE_BUFFER)
    chosen.set_max_write_buffer_number(_WRITE_BUFFERS)
    chosen.set_max_background_jobs(2)
    # All families at once: a flush that RocksDB begins by itself must keep the position of the log in step with them.
    chosen.set_atomic_flush(True)
    chosen.set_keep_log_file_num(2)
    chosen.set_compression_type(DBCompressionType.lz4())
    # RocksDB's own log holds something only in stores of format 1. A torn tail is what a crash leaves, and is cut.
    # Damage anywhere else must stop the start: cutting there would lose what lies behind it.
    chosen.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    if family in (keys.VISIBLE, keys.EXPIRIES, keys.LEASES, keys.INDEXES):
        # Queues delete what they write: files that are mostly deletions are compacted early, for cold starts.
        chosen.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return chosen


def open_rocksdb(path: Path, *, is_read_only: bool = False) -> Rdict:
    """Open RocksDB in a store's directory."""
    families = {name: options(number) for number, name in enumerate(keys.FAMILY_NAMES) if number != keys.DIRECTORY}
    if is_read_only:
        access = AccessType.read_only(False)
        return Rdict(str(path / DATABASE), options(), column_families=families, access_type=access)
    return Rdict(str(path / DATABASE), options(), column_families=families)


def read_covered_position(database: Rdict) -> LogPosition:
    """Return the position of the log up to which RocksDB has everything."""
    raw: bytes | None = database.get(POSITION_KEY)
    return START if raw is None else decode_position(raw)


# --- RocksDB's files -------------------------------------------------------------------------------------------------


def check_files(path: Path, marker: Marker, *, has_lost_writes: bool) -> list[Path]:
    """Look at RocksDB's files before it reads them. Return where the originals of mended files are kept."""
    database = path / DATABASE
    if not database.exists():
        return []
    was_opened = marker.pid is not None
    _check_rest(path, marker)
    if marker.is_of_this_boot and not has_lost_writes:
        if marker.format < WITH_LOG:
            _check_rocksdb_logs(path, marker.pid, has_power_failed=False)
        repair_manifest(database, was_opened=was_opened, cuts=False)
        if marker.format >= WITH_LOG and not is_whole(database):
            _check_reach(path, marker)
        return []
    # The remains of unsynced writes are cut off after a power cut, so nobody else may have the store open.
    with _held_alone(path):
        mended: list[Path] = []
        try:
            if (named := restore_previous_manifest(database)) is not None:
                mended.append(named)
            if marker.format < WITH_LOG:
                _check_rocksdb_logs(path, marker.pid, has_power_failed=True)
            if not was_opened:
                discard_unfinished_manifest(database, is_unmade=_is_unmade(path, marker))
            if (torn := repair_manifest(database, was_opened=was_opened, cuts=True)) is not None:
                mended.append(torn)
            if mended and marker.format >= WITH_LOG:
                _check_reach(path, marker)
        except BaseException:
            for saved in mended:
                restore_original(saved)
            raise
        return mended


def _is_unmade(path: Path, marker: Marker) -> bool:
    """Return whether RocksDB has never been opened here to the end: the log's directory is made right after that."""
    return marker.was_never_opened and marker.format >= WITH_LOG and not (path / LOG).exists()


def _check_rest(path: Path, marker: Marker) -> None:
    """Refuse a list of files that has become shorter since the store was closed, though it can be read to its end."""
    if marker.closed_state is None:
        return
    manifest = path / DATABASE / marker.closed_state.manifest
    if manifest.exists() and manifest.stat().st_size < marker.closed_state.manifest_bytes:
        raise _manifest_error(path, "it has become shorter since the store was closed")


def _check_reach(path: Path, marker: Marker) -> None:
    """Refuse a shortened list of files if the log does not reach back to it: the flush that the list no longer tells of
    had been completed then, and the frames that it covered were given up. A store that was closed has no log; its list
    must tell of the last checkpoint."""
    if marker.was_never_opened and not any((path / DATABASE).glob("*.sst")):
        return  # a crash ended the making of the store, and nothing was ever in it
    try:
        database = open_rocksdb(path, is_read_only=True)
    except Exception as error:  # the binding raises nothing more precise
        if "MANIFEST-" in str(error):
            raise _manifest_error(path, "RocksDB cannot read it") from None
        raise make_make_opening_error(path, error) from None
    try:
        covered = read_covered_position(database)
    finally:
        database.close()
    if marker.closed_state is not None and covered == (marker.closed_state.number, marker.closed_state.generation):
        return
    if not segment_path(path / LOG, covered.generation).exists():
        raise _manifest_error(path, "the newest files are missing from it")
    # Not one segment of those that it needs may be missing.
    after_power_cut = not marker.is_of_this_boot
    Replay(path, path / LOG, covered, was_closed=False, after_power_cut=after_power_cut).run(lambda *_: None)


def _manifest_error(path: Path, what: str) -> StoreUnavailable:
    manifest = find_manifest(path / DATABASE)
    return StoreUnavailable(f"{manifest} is damaged: {what}; restore a backup", path=str(path), file=str(manifest))


def _check_rocksdb_logs(path: Path, owner: int | None, *, has_power_failed: bool) -> None:
    """Check RocksDB's own logs, which stores of format 1 have. There is one from before the marker names an owner until
    long after it names none again."""
    database = path / DATABASE
    if owner is not None and not list_logs(database):
        raise StoreUnavailable(
            f"{database} has no log (*.log), though the store was not closed in order: the last writes are missing; "
            "put the log back, or restore a backup",
            path=str(path),
        )
    # Checksums too, where the log may have been cut by more than a kill: RocksDB would refuse all of it.
    damage = find_damage(database, verifies_all=has_power_failed)
    if damage is None:
        return
    if not has_power_failed or damage.was_synced():
        raise damage.as_error(path)
    damage.cut()
    _log.warning(
        "%s is cut at byte %d: a power cut took what was written there, and had not been synced",
        damage.log,
        damage.offset,
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
            raise make_in_use_error(path, by_another=True) from None
        yield
    finally:
        os.close(lock)


# --- The directory ---------------------------------------------------------------------------------------------------


def lock_directory(path: Path) -> DirectoryLock:
    """Make the directory of a store if it is missing, and lock it. Nothing in it is read or changed before."""
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
    return InvalidArgument(
        f"{path} cannot be made: {error.strerror}; give a directory that can be written to", field="url"
    )


def make_in_use_error(path: Path, *, by_another: bool = False) -> StoreUnavailable:
    """Return the error for a store that another opening holds, with its owner if that is known. `by_another`: this
    process has locked the directory, and another one has RocksDB's own lock."""
    owner = read_marker(path).pid
    do = "to share it, let that program serve it to the others (`holdfast serve`)"
    if not by_another and is_held_here(path):
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


def make_make_opening_error(path: Path, error: Exception) -> Exception:
    """Return the named error for an error of RocksDB's while it opened a store."""
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
