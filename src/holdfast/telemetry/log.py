"""The log of a server: one line per event on stderr, as text or as JSON.

All records of `logging`, also those of libraries, pass the same steps. Secrets are hidden; they are recognised by the
name of their field or by their form. Long values are shortened. No value can end its line or send control sequences to
a terminal.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from holdfast.model.names import QueueNumbers, QueueRef

FORMATS = ("console", "json")

# The maximum sizes of a value and of a traceback, in bytes. The last lines of a traceback are kept, with the error.
MAX_VALUE = 1_024
MAX_TRACEBACK = 8_192
_MAX_DEPTH = 4
_MAX_ITEMS = 50

# Entries that structlog adds to the fields and removes again.
_META = frozenset({"_record", "_from_structlog"})

HIDDEN = "[hidden]"
_SECRET_KEY = re.compile(
    r"authorization|cookie|password|passwd|secret|token|receipt|credential|private|api[_-]?key|jwt", re.IGNORECASE
)
# Secrets inside text: the value of an Authorization header, a JWT, an assignment to a secret name, a password in a URL.
_SECRET_TEXT = (
    (re.compile(r"\b(bearer|basic)\s+[^\s,;\"']+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{0,2048}\.[\w-]{0,8192}(?:\.[\w-]{0,2048})?"), HIDDEN),
    (
        re.compile(
            r"\b(\w*(?:authorization|password|passwd|secret|token|receipt|api[_-]?key))([\"']?\s*[=:]\s*)(?!\[hidden\])"
            r"(\"[^\"]*\"|'[^']*'|[^\s&,;}\]]+)",
            re.IGNORECASE,
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(://[^\s/:@]*):[^\s/@]+@"), rf"\1:{HIDDEN}@"),
)


def configure(log_format: str = "console", level: str = "info", stream: TextIO | None = None) -> None:
    """Send the records of all loggers of this process to `stream`, by default stderr.

    Only a program that owns its process may call this; a library must not. Raise `KeyError` for an unknown level.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    stream = stream or sys.stderr
    is_json = log_format == "json"
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        clean,
    ]
    render: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    render += [_to_json] if is_json else [_to_printable, _console(is_terminal=stream.isatty())]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)


class QueueNumbering(logging.Filter):
    """A filter that adds `tenant_id` and `queue_id` to records that name a queue by `tenant` and `queue`."""

    def __init__(self, numbers_of: Callable[[QueueRef], QueueNumbers | None]) -> None:
        """`numbers_of` must not raise, and must not log. It returns None for a queue whose numbers are not known."""
        super().__init__()
        self._numbers_of = numbers_of

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the numbers, and let every record pass."""
        fields = record.__dict__
        tenant, queue = fields.get("tenant"), fields.get("queue")
        if isinstance(tenant, str) and isinstance(queue, str) and "tenant_id" not in fields:
            numbers = self._numbers_of(QueueRef(tenant, queue))
            if numbers is not None:
                fields.update(numbers._asdict())
        return True


@contextmanager
def numbering_queues(numbers_of: Callable[[QueueRef], QueueNumbers | None]) -> Iterator[None]:
    """Add the numbers of tenants and queues to the log lines of this process; see `QueueNumbering`."""
    numbering = QueueNumbering(numbers_of)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(numbering)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(numbering)


def format_line(logger: logging.Logger, event: str, fields: Mapping[str, object]) -> str:
    """Return an `info` event as a line in the configured format, to write it to another stream."""
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, event, (), None, extra=fields)
    return logging.getLogger().handlers[0].format(record)


# --- Steps ---------------------------------------------------------------------------------------------------------


def clean(logger: Any, method: str, event: EventDict) -> EventDict:
    """Hide secrets and shorten long values, as a processor of structlog."""
    return {
        key: value if key in _META else _clean(key, value, MAX_TRACEBACK if key == "exception" else MAX_VALUE, 0)
        for key, value in event.items()
    }


def _clean(key: str, value: Any, limit: int, depth: int) -> Any:
    if _SECRET_KEY.search(key):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(name)[:MAX_VALUE]: _clean(str(name), each, limit, depth + 1) for name, each in items}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_clean(key, each, limit, depth + 1) for each in list(value)[:_MAX_ITEMS]]
    # Shorten the text before as well, so that the patterns are not applied to megabytes.
    text = _text(value)
    return _cut(_hide(text[-2 * limit :] if limit == MAX_TRACEBACK else text[: 2 * limit]), limit)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _hide(text: str) -> str:
    for pattern, instead in _SECRET_TEXT:
        text = pattern.sub(instead, text)
    return text


def _cut(text: str, limit: int) -> str:
    """Shorten text to at most `limit` bytes. Keep the end of a traceback, and the beginning of any other text."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    keep = limit - 3
    if limit == MAX_TRACEBACK:
        return "..." + raw[-keep:].decode("utf-8", "ignore")
    return raw[:keep].decode("utf-8", "ignore") + "..."


# --- Renderers -----------------------------------------------------------------------------------------------------


def _to_json(logger: Any, method: str, event: EventDict) -> str:
    """Return the event as JSON in ASCII, so that control characters and all line separators are escaped."""
    first = {key: event.pop(key) for key in ("time", "level", "event") if key in event}
    return json.dumps({**first, **event}, default=str, ensure_ascii=True)


def _to_printable(logger: Any, method: str, event: EventDict) -> EventDict:
    """Make every value safe for a terminal. The renderer quotes values with spaces."""
    shown: EventDict = {}
    for key, value in event.items():
        if key == "exception":
            # With the indent no line of a traceback looks like a line of the log.
            shown[key] = "\n".join(f"  | {printable(line)}" for line in str(value).split("\n"))
        elif key in ("event", "time", "level", "logger"):
            shown[key] = printable(str(value))
        else:
            shown[printable(key)] = printable(value if isinstance(value, str) else json.dumps(value, default=str))
    return shown


def printable(text: str) -> str:
    """Return the text with escapes for all characters that are not printable, such as control characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _console(*, is_terminal: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        timestamp_key="time",
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=30,
    )
