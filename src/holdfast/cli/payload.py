"""A payload as it is given to a command: as text, `-` for stdin, or `@FILE`. A large one is not held in memory."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.model.errors import InvalidArgument

TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
# Numbers and words are left out: "12 apples" and "true story" are text, and nobody writes them to mean JSON.
_JSON_STARTS = (b"{", b"[", b'"')
_JSON_SPACE = b" \t\r\n"

AsText = Annotated[
    bool, typer.Option("--text", help="The payload is plain text, even if it looks like JSON. It must be UTF-8.")
]

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


def typed(body: bytes, content_type: str | None, *, is_text: bool = False) -> tuple[Any, str | None]:
    """Return the payload as the client takes it, and its content type where the client needs to be told.

    Valid JSON is sent as JSON, byte for byte. Text that begins like JSON and is not is a `Usage` error that names the
    position: a misplaced quote would otherwise be enqueued as text, and found by the consumer. `is_text` (`--text`) or
    a content type that is not JSON means the payload as it is.
    """
    is_json = content_type is not None and (content_type.split(";")[0].strip() == _JSON or "+json" in content_type)
    if is_text:
        if is_json:
            raise Usage(f"--text and --content-type {content_type} contradict each other: give one of them")
        if not _is_utf8(body):
            raise Usage("--text is for UTF-8 text, and the payload is not: leave it out to send bytes")
        return body, TEXT if content_type is None else None
    if content_type is not None and not is_json:
        return body, None
    try:
        msgspec.json.decode(body)
        body.decode()
        return msgspec.Raw(body), None
    except (ValueError, RecursionError) as error:
        if is_json:
            raise InvalidArgument(f"the payload is not JSON ({error}), but --content-type says so") from None
        if not _is_utf8(body):
            return body, None
        if body.lstrip(_JSON_SPACE).startswith(_JSON_STARTS):
            raise Usage(
                f"the payload begins like JSON but is not valid JSON: {_json_error(body, error)}. "
                "Correct it, or give --text to send it as plain text"
            ) from None
        return body, TEXT if body else None


def _json_error(body: bytes, error: Exception) -> str:
    """Describe what is wrong with a JSON text. The standard library's parser gives the line and column."""
    import json

    try:
        json.loads(body)
    except json.JSONDecodeError as found:
        return f"{found.msg[0].lower()}{found.msg[1:]} at line {found.lineno} column {found.colno}"
    except (ValueError, RecursionError):
        pass  # nested too deeply, which the first parser has said too
    return str(error)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
