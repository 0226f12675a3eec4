"""What an upload reads: a path, an open binary file, or an iterable of bytes."""

import asyncio
import io
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, BinaryIO

from holdfast.client.reading import PART
from holdfast.model.errors import InvalidArgument

Path = str | os.PathLike[str]
Source = Path | BinaryIO | Iterable[bytes]
AsyncSource = Source | AsyncIterable[bytes]

# Smaller parts of an iterable go together, as each has its price. Of a source so slow that a server just about waits
# for it (4 KiB a second) these are eight seconds; a server waits ten for the next part.
_TOGETHER = 32 << 10


class FileSource:
    """From where the file stands to its end, or to what was its end when this began."""

    def __init__(self, file: Any, *, is_own: bool = False) -> None:
        if isinstance(file, io.TextIOBase):
            raise _unfit("a file opened in text mode", "open it in binary mode, 'rb'")
        if getattr(file, "closed", False):
            raise _unfit("a file that is closed", "open it, and keep it open until the upload is over")
        if not _says(file, "readable", otherwise=True):
            raise _unfit("a file that was not opened for reading", "open it with 'rb'")
        self._file = file
        self._is_own = is_own
        # Where to read it from again; None: it cannot be.
        self._start = file.tell() if _says(file, "seekable", otherwise=False) else None
        self.size = _size_of(file, self._start)
        self._left = self.size

    def read(self) -> bytes:
        """The next part, empty at the end."""
        part: object = self._file.read(PART if self._left is None else min(PART, self._left))
        if part is None:
            raise _unfit("a file that does not wait for its data", "open it in blocking mode")
        if not isinstance(part, bytes | bytearray):
            hint = "open it in binary mode, 'rb'" if isinstance(part, str) else "read() must answer bytes"
            raise _unfit(f"a file that reads as {type(part).__name__}", hint)
        if self._left is not None:
            if not part and self._left:
                raise InvalidArgument(
                    f"the file became shorter while it was read: {self._left} of {self.size} bytes are missing",
                    field="source",
                )
            self._left -= len(part)
        return bytes(part)

    def rewind(self) -> bool:
        """To be read again from where it began, if that can be."""
        if self._start is None:
            return False
        self._file.seek(self._start)
        self._left = self.size
        return True

    def parts(self) -> Iterator[bytes]:
        while part := self.read():
            yield part

    async def parts_async(self) -> AsyncIterator[bytes]:
        # In a thread: a disk that is slow to give so much must not keep the loop.
        while part := await asyncio.to_thread(self.read):
            yield part

    def close(self) -> None:
        if self._is_own:
            self._file.close()


class IterableSource:
    size = None

    def __init__(self, given: Any) -> None:
        self._given = given

    def rewind(self) -> bool:
        return False

    def parts(self) -> Iterator[bytes]:
        gathered = _Gathered()
        for part in self._given:
            yield from gathered.add(part)
        yield from gathered.rest()

    async def parts_async(self) -> AsyncIterator[bytes]:
        if not hasattr(self._given, "__aiter__"):
            for part in self.parts():
                yield part
            return
        gathered = _Gathered()
        async for part in self._given:
            for each in gathered.add(part):
                yield each
        for each in gathered.rest():
            yield each

    def close(self) -> None:
        pass


class _Gathered:
    """Parts of any size, as parts that are worth sending and of at most `PART` bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, part: object) -> Iterator[bytes]:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"the source gave a part of type {type(part).__name__}: each must be bytes", field="source"
            )
        held = self._held
        if len(held) + memoryview(part).nbytes < _TOGETHER:
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
    """For the blocking API."""
    if isinstance(source, str | os.PathLike):
        return open_path(source)
    if not hasattr(source, "read") and not hasattr(source, "__iter__") and hasattr(source, "__aiter__"):
        raise _unfit("an async iterable", "it is for the queues of holdfast.open_async; give an iterable here")
    return _taken(source)


async def open_source_async(source: Any) -> Opened:
    if isinstance(source, str | os.PathLike):
        return await asyncio.to_thread(open_path, source)
    # Before `read`: of a stream that has both, it is a coroutine.
    return IterableSource(source) if hasattr(source, "__aiter__") else _taken(source)


def open_path(path: Path) -> FileSource:
    return FileSource(io.FileIO(path), is_own=True)


def _taken(source: Any) -> Opened:
    if isinstance(source, bytes | bytearray | memoryview):
        raise _unfit("bytes", "what is in memory anyway is for enqueue()")
    if hasattr(source, "read"):
        return FileSource(source)
    if hasattr(source, "__iter__") and not isinstance(source, type):
        return IterableSource(source)
    raise _unfit(f"a {type(source).__name__}", "give a path, an open binary file, or an iterable of bytes")


def _size_of(file: Any, start: int | None) -> int | None:
    """Only where it is certain: what unpacks as it reads has the file number of what is packed."""
    if start is None:
        return None
    if isinstance(file, io.BytesIO):
        left = len(file.getbuffer()) - start
    elif isinstance(getattr(file, "raw", file), io.FileIO):
        status = os.fstat(file.fileno())
        left = status.st_size - start if stat.S_ISREG(status.st_mode) else 0
    else:
        return None
    # Of what says that it is empty it is not certain: files of /proc say so too.
    return left if left > 0 else None


def _says(file: Any, what: str, *, otherwise: bool) -> bool:
    """A file of somebody's own making may have `read` alone."""
    said = getattr(file, what, None)
    return bool(said()) if callable(said) else otherwise


def _unfit(what: str, instead: str) -> InvalidArgument:
    return InvalidArgument(f"{what} cannot be uploaded: {instead}", field="source")
