"""Making a directory of the legacy layout a store when it is first opened. No message is read.

    marker    HOLDFAST names format 7, which older versions of Holdfast refuse
    CURRENT   is copied to DIR/legacy; in DIR a text takes its place that RocksDB refuses, so that the programs of the
              legacy layout can neither open the rest of the database nor begin a new one
    files     all other files of the database are moved to DIR/legacy

A kill or a power cut leaves the old database as it was, or a directory with the marker. The next opening repeats the
steps, and skips what is done.
"""

import fcntl
import os
from pathlib import Path

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import make_directory, sync_directory, sync_file
from holdfast.stores.rocks.engine.forks import check_rocksdb_works
from holdfast.stores.rocks.legacy.files import is_database_file, is_legacy, lock_database, lock_legacy
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.recovery.layout import LEGACY, MAX_SHARDS, Layout
from holdfast.stores.rocks.recovery.marker import MARKER, Role, check_directory, read_marker, write_marker
from holdfast.stores.rocks.recovery.opening import lock_directory

# The folder of a copy that the offline migration has begun (`migration.py`).
_COPY = "holdfast-new"
_CURRENT = "CURRENT"
# RocksDB refuses a CURRENT file that does not end with a newline.
_GUARD = b"This directory is a Holdfast store: open it with Holdfast. The old database is being moved out of ./legacy."
# Files that stay: the guard, and files without data.
_LEFT = (_CURRENT, "LOCK", "LOG")


def is_moving(path: Path) -> bool:
    """Return whether the directory is a store with messages that are still in the legacy layout."""
    return (path / MARKER).exists() and read_marker(path).role.has_legacy


def adopt(path: Path, shards: int | None) -> None:
    """Make the directory a store of `shards` shards, 1 by default, that has its old database in the folder `legacy`.

    Does nothing but the missing steps if it is one already. Raise `InvalidArgument` if it is not of the legacy layout,
    cannot be written to, or is being migrated offline, and `StoreUnavailable` if another program uses it.
    """
    check_rocksdb_works()
    lock = lock_directory(path) if (path / MARKER).exists() else lock_legacy(path)
    try:
        if is_legacy(path):
            _check(path, shards, lock)
        elif not is_moving(path):
            return  # another process has moved the last message since
        file = lock_database(path)
        try:
            _take_over(path, shards)
        finally:
            # Closing the file does not release the lock while a forked child has a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)
    except OSError as error:
        raise InvalidArgument(
            f"{path} is of the legacy layout and cannot be written to: {error.strerror}; to read it only, open it with "
            "legacy_read_only",
            field="url",
        ) from None
    finally:
        lock.release()


def _check(path: Path, shards: int | None, lock: DirectoryLock) -> None:
    """Refuse a directory before anything in it is changed."""
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise InvalidArgument(f"shards is {shards}: give 1 to {MAX_SHARDS}", field="shards")
    if (path / _COPY).exists():
        raise InvalidArgument(
            f"a migration of {path} was begun: finish it with `holdfast db migrate {path}`, or delete {path / _COPY}",
            field="url",
        )
    LegacyDatabase(path, is_migrated=True, lock=lock).close()


def _take_over(path: Path, shards: int | None) -> None:
    if not (path / MARKER).exists():
        folder = None if shards in (None, 1) else Layout(path, Role()).next_folder()
        write_marker(path, None, Role(shards or 1, folder, has_legacy=True))
    check_directory(path)
    legacy, current = path / LEGACY, path / _CURRENT
    make_directory(legacy)
    content = current.read_bytes() if current.exists() else None
    if content != _GUARD:
        if content is not None:
            _copy_current(legacy, content)
        # From here on no other program takes the remaining files for a database.
        _write(path, _CURRENT, _GUARD)
    if not (legacy / _CURRENT).exists():
        raise StoreUnavailable(
            f"{legacy} has no database, though {path / MARKER} says so: restore a backup", path=str(path)
        )
    moved = [each for each in path.iterdir() if is_database_file(each) and not each.name.startswith(_LEFT)]
    for entry in moved:
        entry.rename(legacy / entry.name)
    if moved:
        sync_directory(legacy)
        sync_directory(path)


def _copy_current(legacy: Path, content: bytes) -> None:
    copy = legacy / _CURRENT
    if copy.exists() and copy.read_bytes() != content:
        raise StoreUnavailable(
            f"another database was begun in {legacy.parent} while its messages were being moved: move CURRENT and the "
            "files beside it to another directory",
            path=str(legacy.parent),
        )
    _write(legacy, _CURRENT, content)


def _write(directory: Path, name: str, content: bytes) -> None:
    """Write a small file by a rename, so that a crash leaves the old file or the new one."""
    fresh = directory / f"{name}.holdfast"
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())
    fresh.replace(directory / name)
    sync_directory(directory)


def remove_legacy_files(path: Path) -> None:
    """Remove the files that `adopt` leaves beside the store, once the old database has no messages."""
    for entry in path.iterdir():
        if is_database_file(entry):
            entry.unlink(missing_ok=True)
    sync_directory(path)
