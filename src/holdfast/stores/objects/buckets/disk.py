"""A directory as a bucket.

    <dir>/<key>                     an object: its content, nothing else
    <dir>/.holdfast/lock/<n>        lock files; a conditional write holds the lock of its key
    <dir>/.holdfast/new/…           files being written

A file is written in `new`, synced, and renamed to its key: readers see it completely or not at all. Only conditional
writers take the lock; the kernel releases it when a process dies.

An ETag is a hash of the content. No two writes of a document have the same content (because of its nonce), so comparing
hashes under the lock compares writes. A mark consists of inode, size and modification time.

Calls that wait for the disk run on threads. Without syncs a call takes less time than handing it to a thread, so it
runs directly, except for long listings and uploads.

How to change this format: objects are plain files, so only the two folders below `.holdfast` can change. Processes of
two versions must agree on the lock of a key: keep `_LOCKS` and the hash in `_lock`, or introduce another lock folder
and take both locks for one release. Files in `new` belong to running processes and may change at any time.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import accumulate, count
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from holdfast.forking import listen_for_forks
from holdfast.stores.disk.file_sync import make_directory, sync_file
from holdfast.stores.disk.processes import is_running
from holdfast.stores.objects.buckets.bucket import (
    PAGE,
    ListedObject,
    ObjectMissing,
    ObjectUpload,
    ObjectVersion,
    PreconditionFailed,
    StoredObject,
    Unanswered,
)
from holdfast.stores.objects.buckets.directory_syncs import DirectorySyncs

T = TypeVar("T")

_LOCKS = 256
_THREADS = 8
_STREAM_BYTES = 1 << 20
# An upload is synced each time that it has written this much.
_SYNC_EVERY_BYTES = 64 << 20
# Internal folders; listings leave them out.
_INTERNAL_FOLDERS = (".holdfast/lock", ".holdfast/new")


class DiskBucket:
    """A bucket in a local directory, shared by the processes of one machine or over a network file system with
    locks."""

    deletes_exactly = True
    step_timeout_ms = 5_000
    outbox_scan_ms = 1_000
    # The kernel stamps files with the time of its last tick, which is up to ten milliseconds old.
    time_resolution_ms = 10

    def __init__(self, directory: str | Path, *, syncs: bool = True) -> None:
        """Use a directory, which `open` creates. With `syncs` False a write returns once the operating system has
        it."""
        # The resolved path: a relative path, or one through a symbolic link, could come to mean another directory.
        self.root = Path(os.path.realpath(directory))
        self._root = str(self.root)
        self.url = self.root.as_uri()
        self._directory_syncs = DirectorySyncs()
        self._syncs = syncs
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-disk")
        self._numbers = count()
        # Directories known to exist, and the number of names that the last listing of a folder returned.
        self._known_folders: set[str] = set()
        self._listed_counts: dict[str, int] = {}
        # File descriptors of locks that are held.
        self._locks: set[int] = set()
        listen_for_forks(self)

    async def open(self) -> None:
        def make() -> None:
            if self._syncs:
                make_directory(self.root)
            for name in _INTERNAL_FOLDERS:
                (self.root / name).mkdir(parents=True, exist_ok=True)
            # Remove unfinished files of processes that died. Another process may be writing its own.
            for path in (self.root / ".holdfast/new").iterdir():
                with suppress(OSError):
                    if not _is_alive(path.name):
                        path.unlink()

        await self._run(make)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        try:
            if not self._syncs and not is_long:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except FileNotFoundError as error:
            raise ObjectMissing(str(error)) from None
        except OSError as error:
            raise Unanswered(f"{error.strerror}: {error.filename}") from None

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread."""
        return await self._run(work, is_long=True)

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, key: str) -> StoredObject:
        return await self._run(lambda: self._read(key))

    def _read(self, key: str) -> StoredObject:
        # Paths are joined as text here and below: with objects of a kilobyte, `Path` took a third of the time.
        with open(f"{self._root}/{key}", "rb", buffering=0) as file:
            content = file.readall()
            return StoredObject(content, ObjectVersion(_etag(content), _mark(os.fstat(file.fileno()))))

    async def written_at(self, key: str) -> int:
        return await self._run(lambda: os.stat(self.root / key).st_mtime_ns // 1_000_000)

    async def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        file = await self._run(lambda: (self.root / key).open("rb", buffering=0))
        try:
            file.seek(start)
            while part := await self.run(lambda: file.read(_STREAM_BYTES)):
                yield part
        finally:
            file.close()

    # --- Writing ---------------------------------------------------------------------------------------------

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        def create() -> ObjectVersion:
            with self._temporary_file(content) as new:
                mark = _mark(os.stat(new))
                self._make_parent(key)
                try:
                    # A link fails if the key exists. No lock is needed: nothing is compared.
                    os.link(new, f"{self._root}/{key}")
                except FileExistsError:
                    raise PreconditionFailed(f"{key} already exists") from None
                self._sync_parent(key)
                return ObjectVersion(_etag(content), mark)

        return await self._run(create)

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        def replace() -> ObjectVersion:
            with self._temporary_file(content) as new, self._lock(key):
                try:
                    there = self._read(key).version.etag
                except FileNotFoundError:
                    raise PreconditionFailed(f"{key} does not exist") from None
                if there != etag:
                    raise PreconditionFailed(f"{key} has changed")
                return self._rename(new, key, content)

        return await self._run(replace)

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        def put() -> ObjectVersion:
            # No lock is needed: no key is written conditionally and unconditionally at the same time.
            with self._temporary_file(content) as new:
                self._make_parent(key)
                return self._rename(new, key, content)

        return await self._run(put)

    def _rename(self, new: str, key: str, content: bytes) -> ObjectVersion:
        mark = _mark(os.stat(new))
        os.rename(new, f"{self._root}/{key}")
        self._sync_parent(key)
        return ObjectVersion(_etag(content), mark)

    async def copy(self, source: str, target: str) -> None:
        def copy() -> None:
            # A second link to the same file: payloads and states are replaced as a whole, never modified in place.
            new = self._new_path()
            os.link(f"{self._root}/{source}", new)
            # A copy has the current time. Sweeps would delete an old file without a message as an orphan.
            os.utime(new)
            self._make_parent(target)
            try:
                os.rename(new, f"{self._root}/{target}")
            finally:
                # rename() keeps both names if they are links to one file.
                with suppress(FileNotFoundError):
                    os.unlink(new)
            self._sync_parent(target)

        await self._run(copy)

    async def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._root}/{key}")

        await self._run(delete)

    async def delete_exactly(self, key: str, etag: str) -> None:
        def delete() -> None:
            with self._lock(key), suppress(FileNotFoundError):
                if self._read(key).version.etag == etag:
                    (self.root / key).unlink()

        await self._run(delete)

    async def upload(self, key: str) -> ObjectUpload:
        path = Path(self._new_path())
        file = await self._run(lambda: path.open("wb", buffering=0))
        return _DiskUpload(self, key, path, file.fileno(), file.close)

    def finish_upload(self, path: Path, key: str) -> None:
        """Rename an uploaded file to its key."""
        self._make_parent(key)
        os.rename(path, self.root / key)
        self._sync_parent(key)

    def sync(self, fd: int) -> None:
        """Sync a file, unless this bucket does not sync."""
        if self._syncs:
            sync_file(fd)

    @contextmanager
    def _temporary_file(self, content: bytes) -> Iterator[str]:
        """Write the content to a new file with a unique name; remove that name at the end if it still exists."""
        path = self._new_path()
        try:
            with open(path, "wb", buffering=0) as file:
                _write_whole(file.fileno(), content)
                self.sync(file.fileno())
            yield path
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _new_path(self) -> str:
        return f"{self._root}/.holdfast/new/{os.getpid()}-{next(self._numbers)}-{os.urandom(4).hex()}"

    def _make_parent(self, key: str) -> None:
        parent = key.rpartition("/")[0]
        if not parent or parent in self._known_folders:
            return
        (self.root / parent).mkdir(parents=True, exist_ok=True)
        # Sync from the root down: a power cut that loses a directory's name loses everything in it. This includes
        # directories that another process made, since that one may not have synced them yet.
        for directory in accumulate(parent.split("/"), "{}/{}".format):
            if directory not in self._known_folders:
                self._sync_parent(directory)
                self._known_folders.add(directory)

    def _sync_parent(self, key: str) -> None:
        if self._syncs:
            self._directory_syncs.sync(f"{self._root}/{key}".rpartition("/")[0])

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        number = crc32(key.encode()) % _LOCKS
        fd = os.open(f"{self._root}/{_INTERNAL_FOLDERS[0]}/{number}", os.O_RDWR | os.O_CREAT, 0o644)
        self._locks.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            # Unlock explicitly: a child process that was forked meanwhile may have a copy of the descriptor, and
            # closing this one would not release the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._locks.discard(fd)
            os.close(fd)

    def forked(self) -> None:
        """Close this child process's copies of locks that threads of the parent hold."""
        for fd in list(self._locks):
            os.close(fd)
        self._locks.clear()

    # --- Listing ---------------------------------------------------------------------------------------------

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        folder = prefix.rstrip("/")
        names = await self._run(lambda: sorted(self._names(folder)), is_long=self._listed_counts.get(folder, 0) > PAGE)
        if len(self._listed_counts) > PAGE:
            self._listed_counts.clear()
        self._listed_counts[folder] = len(names)
        if after is not None:
            names = [name for name in names if name > after]
        for at in range(0, len(names), PAGE):
            page = names[at : at + PAGE]
            yield await self._run(partial(self._items, page))

    def _names(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder, unordered."""
        try:
            entries = list(os.scandir(self.root / folder))
        except FileNotFoundError:
            return
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            # A name with an extension is taken for a file: asking the file system would cost as much as the listing.
            if "." in entry.name[1:] and not entry.is_dir(follow_symlinks=False):
                yield name
            elif entry.is_dir(follow_symlinks=False):
                if name not in _INTERNAL_FOLDERS:
                    yield from self._names(name)
            else:
                yield name

    def _items(self, keys: list[str]) -> list[ListedObject]:
        return [item for key in keys if (item := self._item(key)) is not None]

    def _item(self, key: str) -> ListedObject | None:
        try:
            stat = os.stat(f"{self._root}/{key}")
        except FileNotFoundError:
            return None
        return ListedObject(key, _mark(stat), stat.st_size, stat.st_mtime_ns // 1_000_000)


class _DiskUpload:
    """An upload into a temporary file."""

    def __init__(self, bucket: DiskBucket, key: str, path: Path, fd: int, close: Callable[[], None]) -> None:
        self._bucket = bucket
        self._key = key
        self._path = path
        self._fd = fd
        self._close = close
        self._unsynced = 0

    async def write(self, part: bytes) -> None:
        def write() -> None:
            _write_whole(self._fd, part)
            self._unsynced += len(part)
            if self._unsynced >= _SYNC_EVERY_BYTES:
                self._bucket.sync(self._fd)
                self._unsynced = 0

        await self._bucket.run(write)

    async def finish(self) -> None:
        def finish() -> None:
            self._bucket.sync(self._fd)
            self._close()
            self._bucket.finish_upload(self._path, self._key)

        await self._bucket.run(finish)

    async def abandon(self) -> None:
        def drop() -> None:
            self._close()
            self._path.unlink(missing_ok=True)

        await self._bucket.run(drop)


def _write_whole(fd: int, content: bytes) -> None:
    """Write all of the content or raise `OSError`. With too little room on the disk, one write may silently take only a
    part."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def _etag(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _mark(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"


def _is_alive(name: str) -> bool:
    """Return whether the process that writes this file is running. Its number begins the file's name."""
    number = name.partition("-")[0]
    return not number.isdigit() or is_running(int(number))
