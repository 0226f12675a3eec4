"""Payloads given to commands as text, `-` for stdin, or `@FILE`. A large payload is not held in memory."""

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
# Not numbers and words: "12 apples" and "true story" are text, and not mistyped JSON.
_JSON_STARTS = (b"{", b"[", b'"')
_JSON_SPACE = b" \t\r\n"

AsText = Annotated[
    bool, typer.Option("--text", help="Send the payload as plain text, even if it looks like JSON. It must be UTF-8.")
]

# Up to this size a payload is read whole, to find out whether it is JSON or text.
LARGE_BYTES = 8 << 20
_PART_BYTES = 1 << 20

# Called with the number of bytes read so far.
ReportBytes = Callable[[int], None]


class Payload:
    """A payload given to a command: the bytes read so far, and the file with the rest, if there may be more."""

    def __init__(self, head: bytes, rest: BinaryIO | None = None, path: Path | None = None) -> None:
        self._head = head
        self._rest = rest
        self._path = path
        self.is_large = len(head) > LARGE_BYTES
        self.size = path.stat().st_size if path is not None and path.is_file() else None

    def read(self) -> bytes:
        """Return the whole payload."""
        return self._head if self._rest is None else self._head + self._rest.read()

    def source(self, report: ReportBytes) -> Any:
        """Return the source for an upload. A regular file is reopened, so that a broken upload can read it again."""
        if self._path is not None and self._path.is_file():
            return _ReportingFile(self._path, report)
        return self._parts(report)

    def _parts(self, report: ReportBytes) -> Iterator[bytes]:
        done = 0
        part = self._head
        while part:
            yield part
            done += len(part)
            report(done)
            part = b"" if self._rest is None else self._rest.read(_PART_BYTES)


class _ReportingFile(io.FileIO):
    """A file that reports after each read how many bytes were read in all."""

    def __init__(self, path: Path, report: ReportBytes) -> None:
        super().__init__(path)
        self._report = report

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self._report(self.tell())
        return part


@contextmanager
def open_payload(given: str) -> Iterator[Payload]:
    """Read the beginning of a payload given as text, `-` or `@FILE`."""
    if given == "-":
        yield Payload(sys.stdin.buffer.read(LARGE_BYTES + 1), sys.stdin.buffer)
    elif given.startswith("@"):
        path = Path(given[1:])
        with path.open("rb") as file:
            yield Payload(file.read(LARGE_BYTES + 1), file, path)
    else:
        yield Payload(given.encode("utf-8", "surrogateescape"))


def read_payload(given: str) -> bytes:
    """Read a payload given as text, `-` or `@FILE`."""
    with open_payload(given) as payload:
        return payload.read()


def detect_type(body: bytes, content_type: str | None, *, is_text: bool = False) -> tuple[Any, str | None]:
    """Return the payload in the form that the client takes, and its content type unless the client detects it.

    Valid JSON is sent as JSON, byte for byte. Text that begins like JSON but is not valid raises `Usage` with the
    position of the error: otherwise a misplaced quote would be enqueued as text, and only the consumer would notice.
    With `is_text` (`--text`), or a content type other than JSON, the payload is sent unchanged.
    """
    is_json = content_type is not None and (content_type.split(";")[0].strip() == _JSON or "+json" in content_type)
    if is_text:
        if is_json:
            raise Usage(f"--text and --content-type {content_type} exclude each other: give one of them")
        if not _is_utf8(body):
            raise Usage("--text requires UTF-8 text, and the payload is not UTF-8: omit --text to send bytes")
        return body, TEXT if content_type is None else None
    if content_type is not None and not is_json:
        return body, None
    try:
        msgspec.json.decode(body)
        body.decode()
        return msgspec.Raw(body), None
    except (ValueError, RecursionError) as error:
        if is_json:
            raise InvalidArgument(f"--content-type says JSON, but the payload is not valid JSON ({error})") from None
        if not _is_utf8(body):
            return body, None
        if body.lstrip(_JSON_SPACE).startswith(_JSON_STARTS):
            raise Usage(
                f"the payload begins like JSON but is not valid JSON: {_json_error(body, error)}. "
                "Correct it, or send it as plain text with --text"
            ) from None
        return body, TEXT if body else None


def _json_error(body: bytes, error: Exception) -> str:
    """Describe the error in a JSON text. The standard library's parser gives its line and column."""
    import json

    try:
        json.loads(body)
    except json.JSONDecodeError as found:
        return f"{found.msg[0].lower()}{found.msg[1:]} at line {found.lineno} column {found.colno}"
    except (ValueError, RecursionError):
        pass  # nested too deeply: the first parser's error says so too
    return str(error)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
