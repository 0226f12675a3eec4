"""The operating system calls of the log, in one class, so that tests can make each of them fail."""

import fcntl
import os
from pathlib import Path

from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import reserve, sync_data, sync_directory, sync_file


class Disk:
    """The disk of a log. Methods raise `OSError`."""

    def create(self, path: Path, size: int) -> int:
        """Create a file with room for `size` bytes, so that no later write to it fails for lack of space. Return its
        descriptor."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            reserve(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        left = memoryview(data)
        while left:
            written = os.pwrite(descriptor, left, offset)
            left = left[written:]
            offset += written

    def sync(self, descriptor: int) -> None:
        """Sync the file's data."""
        sync_data(descriptor)

    def sync_all(self, descriptor: int) -> None:
        """Sync the file's data and its length."""
        sync_file(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut off the file at `size` bytes."""
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Sync the entries of a directory."""
        sync_directory(path)

    def lock(self, path: Path) -> DirectoryLock | None:
        """Lock a directory by a file in it that names the owner. Return None if another opening holds the lock."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return DirectoryLock(descriptor)
