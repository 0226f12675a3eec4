"""A directory as a bucket.

    <dir>/<key>                     an object: its content, nothing else
    <dir>/.holdfast/lock/<n>        locks: a conditional write holds that of its key
    <dir>/.holdfast/new/…           files being written

A file is written beside, synced, and renamed into its place: readers see it whole or not at all. Only writers that
compare take the lock; the kernel lets go of it when a process dies.

An ETag is a hash of the content. In a document no content comes twice (its nonce), so comparing hashes under the lock
is comparing writes. A mark is what the file system knows: inode, size and time.

What waits for the disk is done by threads. Without syncs a call takes less than handing it to one, so it is done at
once; but for long listings and uploads.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import accumulate, count
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from holdfast.forking import listen_for_forks
from holdfast.stores.disk.file_sync import make_directory, sync_directory, sync_file
from holdfast.stores.disk.processes import is_running
from holdfast.stores.objects.buckets.bucket import (
    PAGE,
    ListedObject,
    ObjectMissing,
    ObjectUpload,
    ObjectVersion,
    PreconditionFailed,
    Read,
    Unanswered,
)

T = TypeVar("T")

_LOCKS = 256
_THREADS = 8
_AT_ONCE = 1 << 20
# Upload: written without a sync of its own until this much has gathered.
_SYNC_EVERY = 64 << 20
# Names that end so are no objects.
_OWN = (".holdfast/lock", ".holdfast/new")


class DiskBucket:
    deletes_exactly = True
    patience_ms = 5_000
    gather_ms = 1_000
    # Files get the time of the kernel's last tick, which is up to ten milliseconds ago.
    time_step_ms = 10

    def __init__(self, directory: str | Path, *, syncs: bool = True) -> None:
        """`syncs` False: a write is done once the operating system has it."""
        # The real path: one over a symbolic link, or a relative one, could come to mean another directory.
        self.root = Path(os.path.realpath(directory))
        self.url = self.root.as_uri()
        self._syncs = syncs
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-disk")
        self._numbers = count()
        # Directories that are there; and how many names a listing of one gave.
        self._made: set[str] = set()
        self._counts: dict[str, int] = {}
        # Descriptors of the locks that are held now.
        self._locks: set[int] = set()
        listen_for_forks(self)

    async def open(self) -> None:
        def make() -> None:
            if self._syncs:
                make_directory(self.root)
            for name in _OWN:
                (self.root / name).mkdir(parents=True, exist_ok=True)
            # What a process that died was writing. Another may be at it now: only what is old.
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
        """On a thread."""
        return await self._run(work, is_long=True)

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, key: str) -> Read:
        return await self._run(lambda: self._read(key))

    def _read(self, key: str) -> Read:
        with (self.root / key).open("rb", buffering=0) as file:
            content = file.readall()
            return Read(content, ObjectVersion(_etag(content), _mark(os.fstat(file.fileno()))))

    async def written_at(self, key: str) -> int:
        return await self._run(lambda: os.stat(self.root / key).st_mtime_ns // 1_000_000)

    async def stream(self, key: str, start: int) -> AsyncIterator[bytes]:
        file = await self._run(lambda: (self.root / key).open("rb", buffering=0))
        try:
            file.seek(start)
            while part := await self.run(lambda: file.read(_AT_ONCE)):
                yield part
        finally:
            file.close()

    # --- Writing ---------------------------------------------------------------------------------------------

    async def create(self, key: str, content: bytes) -> ObjectVersion:
        def create() -> ObjectVersion:
            with self._written(content) as new:
                mark = _mark(os.stat(new))
                self._make_parent(key)
                try:
                    # Under no name but this one if there is one already; without a lock, for nothing is compared.
                    os.link(new, self.root / key)
                except FileExistsError:
                    raise PreconditionFailed(f"{key} is there") from None
                self._sync_parent(key)
                return ObjectVersion(_etag(content), mark)

        return await self._run(create)

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        def replace() -> ObjectVersion:
            with self._written(content) as new, self._lock(key):
                try:
                    there = self._read(key).stamp.etag
                except FileNotFoundError:
                    raise PreconditionFailed(f"{key} is gone") from None
                if there != etag:
                    raise PreconditionFailed(f"{key} has changed")
                return self._rename(new, key, content)

        return await self._run(replace)

    async def put(self, key: str, content: bytes) -> ObjectVersion:
        def put() -> ObjectVersion:
            # Without a lock: nobody compares what is put so.
            with self._written(content) as new:
                self._make_parent(key)
                return self._rename(new, key, content)

        return await self._run(put)

    def _rename(self, new: Path, key: str, content: bytes) -> ObjectVersion:
        mark = _mark(os.stat(new))
        os.rename(new, self.root / key)
        self._sync_parent(key)
        return ObjectVersion(_etag(content), mark)

    async def copy(self, source: str, target: str) -> None:
        def copy() -> None:
            # A second name of the same file: payloads and states are replaced whole, never written into.
            new = self._new_path()
            os.link(self.root / source, new)
            # Of now, like any copy: what is old, and of no message yet, sweeps take for an orphan.
            os.utime(new)
            self._make_parent(target)
            try:
                os.rename(new, self.root / target)
            finally:
                new.unlink(missing_ok=True)  # of two names of one file, a rename leaves both
            self._sync_parent(target)

        await self._run(copy)

    async def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                with suppress(FileNotFoundError):
                    (self.root / key).unlink()

        await self._run(delete)

    async def delete_exactly(self, key: str, etag: str) -> None:
        def delete() -> None:
            with self._lock(key), suppress(FileNotFoundError):
                if self._read(key).stamp.etag == etag:
                    (self.root / key).unlink()

        await self._run(delete)

    async def upload(self, key: str) -> ObjectUpload:
        path = self._new_path()
        file = await self._run(lambda: path.open("wb", buffering=0))
        return _DiskUpload(self, key, path, file.fileno(), file.close)

    def finish_upload(self, path: Path, key: str) -> None:
        self._make_parent(key)
        os.rename(path, self.root / key)
        self._sync_parent(key)

    def sync(self, fd: int) -> None:
        if self._syncs:
            sync_file(fd)

    @contextmanager
    def _written(self, content: bytes) -> Iterator[Path]:
        """A file with this content under a name that is nobody's; what is left of it goes."""
        path = self._new_path()
        try:
            with path.open("wb", buffering=0) as file:
                _write_whole(file.fileno(), content)
                self.sync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _new_path(self) -> Path:
        return self.root / ".holdfast/new" / f"{os.getpid()}-{next(self._numbers)}-{os.urandom(4).hex()}"

    def _make_parent(self, key: str) -> None:
        parent = key.rpartition("/")[0]
        if not parent or parent in self._made:
            return
        (self.root / parent).mkdir(parents=True, exist_ok=True)
        # From the root down: a power cut that takes the name of a directory takes everything in it. Also where another
        # process has made it, for that one may not have synced it yet.
        for directory in accumulate(parent.split("/"), "{}/{}".format):
            if directory not in self._made:
                self._sync_parent(directory)
                self._made.add(directory)

    def _sync_parent(self, key: str) -> None:
        if self._syncs:
            sync_directory((self.root / key).parent)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        fd = os.open(self.root / _OWN[0] / str(crc32(key.encode()) % _LOCKS), os.O_RDWR | os.O_CREAT, 0o644)
        self._locks.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            # Explicitly: a child that was forked meanwhile may have a copy, and to close this one would not release it.
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._locks.discard(fd)
            os.close(fd)

    def forked(self) -> None:
        """Close the child's copies of locks that threads of the parent hold."""
        for fd in list(self._locks):
            os.close(fd)
        self._locks.clear()

    # --- Listing ---------------------------------------------------------------------------------------------

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        folder = prefix.rstrip("/")
        names = await self._run(lambda: sorted(self._names(folder)), is_long=self._counts.get(folder, 0) > PAGE)
        if len(self._counts) > PAGE:
            self._counts.clear()
        self._counts[folder] = len(names)
        if after is not None:
            names = [name for name in names if name > after]
        for at in range(0, len(names), PAGE):
            page = names[at : at + PAGE]
            yield await self._run(lambda page=page: [item for name in page if (item := self._item(name))])  # type: ignore[misc]

    def _names(self, folder: str) -> Iterator[str]:
        """Keys below, in no order."""
        try:
            entries = list(os.scandir(self.root / folder))
        except FileNotFoundError:
            return
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            # By its ending, for asking the file system costs as much as the listing.
            if "." in entry.name[1:] and not entry.is_dir(follow_symlinks=False):
                yield name
            elif entry.is_dir(follow_symlinks=False):
                if name not in _OWN:
                    yield from self._names(name)
            else:
                yield name

    def _item(self, key: str) -> ListedObject | None:
        try:
            stat = os.stat(self.root / key)
        except FileNotFoundError:
            return None
        return ListedObject(key, _mark(stat), stat.st_size, stat.st_mtime_ns // 1_000_000)


class _DiskUpload:
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
            if self._unsynced >= _SYNC_EVERY:
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
    """Write all of it or raise OSError: on a disk with too little room, one write may take only a part, silently."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def _etag(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _mark(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"


def _is_alive(name: str) -> bool:
    """Whether the process that writes this file is there: by its number, in the file's name."""
    number = name.partition("-")[0]
    return not number.isdigit() or is_running(int(number))
