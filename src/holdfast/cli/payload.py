"""A payload as it is given to a command: as text, `-` for stdin, or `@FILE`. A large one is not held in memory."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# Up to here a payload is read whole, to see whether it is JSON or text.
LARGE = 8 << 20
_PART = 1 << 20

Tell = Callable[[int], None]


class Payload:
    """`head` is its beginning, `rest` what follows it, if anything may."""

    def __init__(self, head: bytes, rest: BinaryIO | None = None, path: Path | None = None) -> None:
        self._head = head
        self._rest = rest
        self._path = path
        self.is_large = len(head) > LARGE
        self.size = path.stat().st_size if path is not None and path.is_file() else None

    def read(self) -> bytes:
        return self._head if self._rest is None else self._head + self._rest.read()

    def source(self, told: Tell) -> Any:
        """What an upload reads. A file is opened anew: it can be read again, should the way there break."""
        if self._path is not None and self._path.is_file():
            return _ToldFile(self._path, told)
        return self._parts(told)

    def _parts(self, told: Tell) -> Iterator[bytes]:
        done = 0
        part = self._head
        while part:
            yield part
            done += len(part)
            told(done)
            part = b"" if self._rest is None else self._rest.read(_PART)


class _ToldFile(io.FileIO):
    """Tells how far it was read."""

    def __init__(self, path: Path, told: Tell) -> None:
        super().__init__(path)
        self._told = told

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self._told(self.tell())
        return part


@contextmanager
def opened(given: str) -> Iterator[Payload]:
    if given == "-":
        yield Payload(sys.stdin.buffer.read(LARGE + 1), sys.stdin.buffer)
    elif given.startswith("@"):
        path = Path(given[1:])
        with path.open("rb") as file:
            yield Payload(file.read(LARGE + 1), file, path)
    else:
        yield Payload(given.encode("utf-8", "surrogateescape"))


def read_payload(given: str) -> bytes:
    with opened(given) as payload:
        return payload.read()
