"""The sources of uploads: paths, open binary files, and iterables of bytes."""

import asyncio
import io
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, BinaryIO

from holdfast.client.payloads.part_reader import PART
from holdfast.model.errors import InvalidArgument

Path = str | os.PathLike[str]
Source = Path | BinaryIO | Iterable[bytes]
AsyncSource = Source | AsyncIterable[bytes]

# Smaller parts of an iterable are joined to parts of this size, because each request has a cost. The slowest source
# that a server accepts (4 KiB/s) fills one in eight seconds, and a server waits ten seconds for the next part.
_JOINED_BYTES = 32 << 10


class FileSource:
    """A file, from its current position to its current end."""

    def __init__(self, file: Any, *, is_own: bool = False) -> None:
        if isinstance(file, io.TextIOBase):
            raise _unsuitable("a file opened in text mode", "open it in binary mode, 'rb'")
        if getattr(file, "closed", False):
            raise _unsuitable("a closed file", "open it, and keep it open until the upload has ended")
        if not _query(file, "readable", otherwise=True):
            raise _unsuitable("a file that was not opened for reading", "open it with 'rb'")
        self._file = file
        self._is_own = is_own
        # The position from which to start again; None if the file cannot seek.
        self._start = file.tell() if _query(file, "seekable", otherwise=False) else None
        self.size = _size_of(file, self._start)
        self._left = self.size

    def read(self) -> bytes:
        """Return the next part; empty at the end."""
        part: object = self._file.read(PART if self._left is None else min(PART, self._left))
        if part is None:
            raise _unsuitable("a non-blocking file", "open it in blocking mode")
        if not isinstance(part, bytes | bytearray):
            hint = "open it in binary mode, 'rb'" if isinstance(part, str) else "read() must return bytes"
            raise _unsuitable(f"a file that reads as {type(part).__name__}", hint)
        if self._left is not None:
            if not part and self._left:
                raise InvalidArgument(
                    f"the file became shorter while it was read: {self._left} of {self.size} bytes are missing",
                    field="source",
                )
            self._left -= len(part)
        return bytes(part)

    def rewind(self) -> bool:
        """Go back to the start. Return False if that is not possible."""
        if self._start is None:
            return False
        self._file.seek(self._start)
        self._left = self.size
        return True

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the file."""
        while part := self.read():
            yield part

    async def parts_async(self) -> AsyncIterator[bytes]:
        """Yield the parts of the file, reading each in a thread."""
        # In a thread, because a slow disk must not hold up the event loop.
        while part := await asyncio.to_thread(self.read):
            yield part

    def close(self) -> None:
        if self._is_own:
            self._file.close()


class IterableSource:
    """An iterable of bytes, which can be read once."""

    size = None

    def __init__(self, given: Any) -> None:
        self._given = given

    def rewind(self) -> bool:
        return False

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the iterable, joined to larger ones."""
        joined = _Joined()
        for part in self._given:
            yield from joined.add(part)
        yield from joined.rest()

    async def parts_async(self) -> AsyncIterator[bytes]:
        """Yield the parts of the iterable, which may be async, joined to larger ones."""
        if not hasattr(self._given, "__aiter__"):
            for part in self.parts():
                yield part
            return
        joined = _Joined()
        async for part in self._given:
            for each in joined.add(part):
                yield each
        for each in joined.rest():
            yield each

    def close(self) -> None:
        pass


class _Joined:
    """A buffer that turns parts of any size into parts of at least `_JOINED_BYTES` and at most `PART` bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, part: object) -> Iterator[bytes]:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"the source yielded a part of type {type(part).__name__}; each part must be bytes", field="source"
            )
        held = self._held
        if len(held) + memoryview(part).nbytes < _JOINED_BYTES:
            held += part
        elif isinstance(part, bytes) and not held and len(part) <= PART:
            yield part
        else:
            given = memoryview(part).cast("B") if isinstance(part, bytes | bytearray) else memoryview(bytes(part))
            first = PART - len(held)
            held += given[:first]
            yield from self.rest()
            for start in range(first, len(given), PART):
                yield bytes(given[start : start + PART])

    def rest(self) -> Iterator[bytes]:
        if self._held:
            part = bytes(self._held)
            self._held.clear()
            yield part


Opened = FileSource | IterableSource


def open_source(source: Any) -> Opened:
    """Open a source in the blocking API. Raise `InvalidArgument` for an unsuitable value."""
    if isinstance(source, str | os.PathLike):
        return open_path(source)
    if not hasattr(source, "read") and not hasattr(source, "__iter__") and hasattr(source, "__aiter__"):
        raise _unsuitable("an async iterable", "it is for queues of holdfast.open_async; give an iterable here")
    return _open_value(source)


async def open_source_async(source: Any) -> Opened:
    """Open a source in the async API. Raise `InvalidArgument` for an unsuitable value."""
    if isinstance(source, str | os.PathLike):
        return await asyncio.to_thread(open_path, source)
    # `__aiter__` is checked before `read`, because `read` is a coroutine in streams that have both.
    return IterableSource(source) if hasattr(source, "__aiter__") else _open_value(source)


def open_path(path: Path) -> FileSource:
    """Open a file by its path. The caller closes it."""
    return FileSource(io.FileIO(path), is_own=True)


def _open_value(source: Any) -> Opened:
    if isinstance(source, bytes | bytearray | memoryview):
        raise _unsuitable("bytes", "use enqueue() for a payload that is in memory")
    if hasattr(source, "read"):
        return FileSource(source)
    if hasattr(source, "__iter__") and not isinstance(source, type):
        return IterableSource(source)
    raise _unsuitable(f"a {type(source).__name__}", "give a path, an open binary file, or an iterable of bytes")


def _size_of(file: Any, start: int | None) -> int | None:
    """Return the number of bytes that will be read, if it is certain.

    A decompressing file reports the size of the compressed one.
    """
    if start is None:
        return None
    if isinstance(file, io.BytesIO):
        remaining = len(file.getbuffer()) - start
    elif isinstance(getattr(file, "raw", file), io.FileIO):
        status = os.fstat(file.fileno())
        remaining = status.st_size - start if stat.S_ISREG(status.st_mode) else 0
    else:
        return None
    # A size of zero is not certain, because files of /proc have it too.
    return remaining if remaining > 0 else None


def _query(file: Any, method: str, *, otherwise: bool) -> bool:
    """Return what a method of a file-like object returns; `otherwise` if it lacks the method."""
    found = getattr(file, method, None)
    return bool(found()) if callable(found) else otherwise


def _unsuitable(what: str, instead: str) -> InvalidArgument:
    return InvalidArgument(f"{what} cannot be uploaded: {instead}", field="source")
