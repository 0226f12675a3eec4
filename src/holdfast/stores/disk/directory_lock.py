"""The lock on a directory that only one opening may write to."""

import errno
import fcntl
import os
from pathlib import Path

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable


class DirectoryLock:
    """An exclusive hold on a directory, whatever the spelling of its path.

    It is a `flock` of the open directory. So it goes by device and inode (relative paths, `..`, symbolic links and bind
    mounts make no difference), keeps out a second opening by the same process, leaves no file behind, and ends with
    the process. Nothing in the directory may be read or repaired before it is held.

    It has an owner of its own: a store that closes and reopens its database keeps it meanwhile.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over a descriptor that holds the lock; `take` is the usual way."""
        self._descriptor = descriptor
        self._identity = _identity(os.fstat(descriptor))
        self._is_kept = False
        _held_here.add(self._identity)
        listen_for_forks(self)

    @classmethod
    def take(cls, path: Path) -> "DirectoryLock | None":
        """Lock an existing directory. Return None if another opening holds it.

        Raises StoreUnavailable if it cannot be locked, OSError if it cannot be opened.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _try_flock(descriptor, path):
                return None
            # The path may lead elsewhere by now: a lock on the old directory would keep nobody out of the new one.
            if _identity(os.fstat(descriptor)) != _identity(os.stat(path)):
                raise StoreUnavailable(f"{path} was replaced while it was being opened: open it again", path=str(path))
            lock = cls(descriptor)
            descriptor = -1
            return lock
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def is_held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        """Let the next opening in. Does nothing the second time, or after `keep`."""
        if self._descriptor >= 0 and not self._is_kept:
            # To close the descriptor is not enough while a child that is about to start a program has a copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def keep(self) -> None:
        """Hold the lock until the process ends, whatever becomes of this object: its database could not be closed."""
        self._is_kept = True
        _kept.append(self)

    def forked(self) -> None:
        """Close the child's copy of the descriptor. The lock stays the parent's, also if the parent is killed later."""
        if self._descriptor >= 0:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _held_here.discard(self._identity)
        os.close(descriptor)

    def __del__(self) -> None:
        self.release()


# The directories this process has locked, so that an error can say that it is this process itself.
_held_here: set[tuple[int, int]] = set()
_kept: list[DirectoryLock] = []


def is_held_here(path: Path) -> bool:
    """Return whether this process itself has locked the directory."""
    try:
        return _identity(os.stat(path)) in _held_here
    except OSError:
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    """The directory itself, whichever path leads to it."""
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
