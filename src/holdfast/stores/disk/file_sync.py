"""Getting files onto the disk for good, on Linux and on macOS.

macOS has no `fdatasync`, and its `fsync` leaves the bytes in the drive's own cache, which a power cut empties:
`F_FULLFSYNC` is what `fsync` is on Linux. Nor has it `posix_fallocate`.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

# File systems without F_FULLFSYNC (network ones, some external drives) say so by one of these.
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
    """Return once the file's content is on disk, with its length if that changed. Its times may follow later."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory, with every missing one above it, and return once their names are on disk."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        # Also for a path that exists: it may have been made without a sync. A directory that belongs to others may not
        # be readable; syncing it is their task.
        with suppress(PermissionError):
            sync_directory(each.parent)


def reserve(descriptor: int, size: int) -> None:
    """Give an empty file `size` bytes of room, so that no later write within them finds the disk full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # A longer file without blocks would be no room at all: the blocks are written.
    offset = 0
    while offset < size:
        offset += os.pwrite(descriptor, _ZEROS[: size - offset], offset)
