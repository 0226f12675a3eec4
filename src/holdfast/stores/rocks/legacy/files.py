"""The files of a legacy database, made accessible to RocksDB without writing into their directory.

rocksdict writes `rocksdict-config.json` into every directory that it opens, even for reading. So it opens a temporary
directory with a symbolic link to each file of the database, and the database's own directory does not change.
"""

import errno
import fcntl
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock, is_held_here

_LOCK = "LOCK"
# RocksDB does not need these files for reading.
_NOT_LINKED = (_LOCK, "LOG", "LOG.old.", "rocksdict-config")


def is_legacy(path: Path) -> bool:
    """Return whether the directory itself is a RocksDB database. Stores of this version have it in a subfolder."""
    return (path / "CURRENT").is_file() and not (path / "HOLDFAST").exists()


def is_database_file(entry: Path) -> bool:
    """Return whether a file of the directory belongs to the legacy database."""
    name = entry.name
    return entry.is_file() and (
        name in ("CURRENT", "IDENTITY", _LOCK, "LOG")
        or name.startswith(("LOG.old.", "MANIFEST-", "OPTIONS-", "rocksdict-config"))
        or (entry.suffix in (".sst", ".log", ".blob", ".dbtmp") and entry.stem.isdigit())
    )


def lock_legacy(path: Path) -> DirectoryLock:
    """Lock the directory, so that this version cannot open it a second time, in this or another process.

    Writes nothing. Raise `StoreUnavailable` if it is locked already, or cannot be locked.
    """
    try:
        lock = DirectoryLock.take(path)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be locked: {error.strerror}", path=str(path)) from None
    if lock is None:
        raise _in_use(path)
    return lock


def _in_use(path: Path) -> StoreUnavailable:
    if is_held_here(path):
        who = f"process {os.getpid()}, this one: close it first"
    else:
        who = "another program: stop that one first"
    return StoreUnavailable(f"{path} is in use by {who}", path=str(path))


class LegacyFiles:
    """A locked legacy directory, and `view`, a temporary directory with links to its files.

    Pass `is_migrated` if the directory is about to be rewritten. It must then be possible to lock it for writing.
    """

    def __init__(self, path: Path, *, is_migrated: bool) -> None:
        self._lock = _lock(path, is_migrated=is_migrated)
        self._view: Path | None = None
        listen_for_forks(self)
        try:
            self.view = self._view = Path(tempfile.mkdtemp(prefix="holdfast-legacy-"))
            for entry in path.resolve().iterdir():
                if is_database_file(entry) and not entry.name.startswith(_NOT_LINKED):
                    (self.view / entry.name).symlink_to(entry)
        except OSError as error:
            self.close()
            raise StoreUnavailable(
                f"{path} is read through a temporary directory of links, which cannot be created: {error}",
                path=str(path),
            ) from None

    def forked(self) -> None:
        """Close the forked child's copy of the lock, which would outlive the parent's lock, and leave the links to the
        parent."""
        self._view = None
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)  # unlocking it would release the parent's lock

    def close(self) -> None:
        """Remove the links and release the lock. Idempotent."""
        view, self._view = self._view, None
        if view is not None:
            shutil.rmtree(view, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            # Closing the file does not release the lock while a forked child has a copy of the descriptor.
            _lock_file(lock, fcntl.LOCK_UN)
            os.close(lock)


def lock_database(path: Path) -> int:
    """Lock the database against programs that write to it, and return the descriptor of its lock file.

    Raise `StoreUnavailable` if a program has it open.
    """
    file = _lock(path, is_migrated=True)
    assert file is not None  # the lock file is created
    return file


def _lock(path: Path, *, is_migrated: bool) -> int | None:
    """Lock the database against programs that write to it. Raise `StoreUnavailable` if a program has it open.

    Return None if there is no lock file: then no program has the database open. A reader does not create the file, and
    needs no permission to write it: without that permission the lock is shared, which also excludes RocksDB.
    """
    file: int | None = None
    try:
        kind = fcntl.LOCK_EX
        try:
            file = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_migrated else 0), 0o644)
        except OSError as error:
            if is_migrated or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            kind = fcntl.LOCK_SH
            file = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
        _lock_file(file, kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        if file is None:
            raise StoreUnavailable(f"{path} cannot be locked: {error.strerror}", path=str(path)) from None
        os.close(file)
        # The caller has locked the directory, so the other program uses only RocksDB's own lock.
        raise StoreUnavailable(f"{path} is in use by another program: stop that one first", path=str(path)) from None
    return file


def _lock_file(file: int, kind: int) -> None:
    """Lock or unlock the file. Raise `OSError` if a conflicting lock is held, by RocksDB or by this code."""
    if sys.platform != "linux":
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
        return
    # This lock belongs to the open file. A lock of the process would not exclude a second reader in the same process,
    # and would end when that reader closed its file. struct flock: kind, whence, start, length (0: whole file),
    # process.
    wanted = {fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}[kind]
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", wanted, os.SEEK_SET, 0, 0, 0))
