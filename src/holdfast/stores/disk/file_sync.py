"""Durable writes of files and directories, on Linux and on macOS.

On macOS, `fsync` leaves the bytes in the drive's own cache, which a power cut empties; `F_FULLFSYNC` does the work of
`fsync` on Linux. macOS also has neither `fdatasync` nor `posix_fallocate`.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

# The errors of file systems that do not support F_FULLFSYNC: network file systems and some external drives.
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
_ZEROS = bytes(1 << 20)


def sync_file(descriptor: int) -> None:
    """Return once the file's content and length are on disk."""
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Return once the file's content, and its length if that changed, are on disk.

    Its times may be written later.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Return once the directory's entries are on disk: new, renamed and deleted files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and return once their entries are on disk."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        # An existing path is synced too, because it may have been created without a sync. A parent directory of another
        # user may be unreadable; syncing it is then left to its owner.
        with suppress(PermissionError):
            sync_directory(each.parent)


def reserve(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for an empty file, so that no later write within them fails because the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # Extending the file's length alone would allocate no blocks, so zeros are written.
    offset = 0
    while offset < size:
        offset += os.pwrite(descriptor, _ZEROS[: size - offset], offset)
