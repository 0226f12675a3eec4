"""What the log asks of the operating system: one place, so that tests can make each call fail."""

import fcntl
import os
from pathlib import Path


class Disk:
    def create(self, path: Path, size: int) -> int:
        """A new file with room for `size` bytes, so that no later write in it finds the disk full."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(descriptor, left, offset)
            left = left[written:]
            offset += written

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_all(self, descriptor: int) -> None:
        """The file's length too."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> int | None:
        """Held until the descriptor is closed, or its process ends; None: somebody else has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor
