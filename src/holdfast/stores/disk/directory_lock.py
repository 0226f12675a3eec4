"""The lock that lets only one opened store write to a directory."""

import errno
import fcntl
import os
from pathlib import Path

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable


class DirectoryLock:
    """An exclusive lock on a directory, by whatever path it is opened.

    It is a `flock` of the open directory. So it identifies the directory by device and inode (relative paths, `..`,
    symbolic links and bind mounts make no difference), also excludes a second opening by the same process, creates no
    file, and ends with the process. Take it before reading or repairing anything in the directory.

    The lock does not belong to the database: a store that closes and reopens its database holds it all the time.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over an open descriptor that holds the lock. Call `take` instead."""
        self._descriptor = descriptor
        self._identity = _identity(os.fstat(descriptor))
        self._is_kept = False
        _held_here.add(self._identity)
        listen_for_forks(self)

    @classmethod
    def take(cls, path: Path) -> "DirectoryLock | None":
        """Lock an existing directory. Return None if another opening holds it.

        Raise `StoreUnavailable` if it cannot be locked, `OSError` if it cannot be opened.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _try_flock(descriptor, path):
                return None
            # Another directory may have replaced this one at the path since it was opened. A lock on the old directory
            # would not protect the new one.
            if _identity(os.fstat(descriptor)) != _identity(os.stat(path)):
                raise StoreUnavailable(f"{path} was replaced while it was being opened: open it again", path=str(path))
            lock = cls(descriptor)
            descriptor = -1
            return lock
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @classmethod
    def inherit(cls, descriptor: int) -> "DirectoryLock":
        """Take over the lock of the parent process by a descriptor that it passed on.

        The lock ends with the last process that has the descriptor, or when the parent releases it.
        """
        lock = cls(descriptor)
        lock._is_kept = True
        return lock

    @property
    def descriptor(self) -> int:
        """Return the descriptor to pass on to a child process (`inherit`)."""
        return self._descriptor

    @property
    def is_held(self) -> bool:
        """Return whether this object still holds the lock."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Release the lock. Does nothing if it is released already, or after `keep`."""
        if self._descriptor >= 0 and not self._is_kept:
            # Closing the descriptor does not release the lock while a forked child, which has not yet started its
            # program, has a copy of the descriptor.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def keep(self) -> None:
        """Hold the lock until the process ends, because the database in the directory could not be closed."""
        self._is_kept = True
        _kept.append(self)

    def forked(self) -> None:
        """Close the forked child's copy of the descriptor. The parent keeps the lock; without this call the lock would
        outlive a parent that is killed."""
        if self._descriptor >= 0:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _held_here.discard(self._identity)
        os.close(descriptor)

    def __del__(self) -> None:
        self.release()


# The directories that this process has locked, so that an error can say that the directory is in use by this process.
_held_here: set[tuple[int, int]] = set()
_kept: list[DirectoryLock] = []


def is_held_here(path: Path) -> bool:
    """Return whether this process itself has locked the directory."""
    try:
        return _identity(os.stat(path)) in _held_here
    except OSError:
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return the device and inode, which identify a directory independently of its path."""
    return status.st_dev, status.st_ino


def _try_flock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StoreUnavailable(
            f"{path} cannot be locked ({error.strerror}), and a second program that opened it would destroy messages: "
            "put it on a local file system, where flock works",
            path=str(path),
        ) from None
    return True
