"""The server's log: one line per event on stderr, for people or as JSON.

Whatever logs, ours by `structlog` or anybody's by `logging`, goes through the same steps: secrets are taken out by the
names of their fields and by their looks, each value is cut, and nothing in a value can end its line or colour the
terminal.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from holdfast.model.names import QueueRef

FORMATS = ("console", "json")

MAX_VALUE = 1_024
# A traceback is worth more: its last lines say what went wrong.
MAX_TRACEBACK = 8_192
_MAX_DEPTH = 4
_MAX_ITEMS = 50

# What structlog itself puts beside the fields, and takes out again.
_META = frozenset({"_record", "_from_structlog"})

HIDDEN = "[hidden]"
_SECRET_KEY = re.compile(
    r"authorization|cookie|password|passwd|secret|token|receipt|credential|private|api[_-]?key|jwt", re.IGNORECASE
)
# Secrets inside a text: a header's scheme and value, a token by its looks, an assignment, a URL's password.
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
    """Send every logger of this process to `stream` (stderr). For a program of its own: a library does not do this."""
    number = logging.getLevelNamesMapping()[level.upper()]
    stream = stream or sys.stderr
    is_json = log_format == "json"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        clean,
    ]
    render: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    render += [_to_json] if is_json else [_for_eyes, _console(is_terminal=stream.isatty())]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        # Below the level a call is an empty function: what is off costs nothing.
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def line(logger: logging.Logger, event: str, fields: Mapping[str, object]) -> str:
    """Return the line that an `info` event makes in the configured format, for a stream other than the log's."""
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, event, (), None, extra=fields)
    return logging.getLogger().handlers[0].format(record)


def about(ref: QueueRef) -> dict[str, str]:
    """The fields that say which queue a line is about: names, as parsed."""
    return {"tenant_id": ref.tenant, "queue_id": ref.queue}


def logger(name: str = "holdfast") -> FilteringBoundLogger:
    """A logger to keep: made once, after `configure`, its calls below the level cost a tenth of a microsecond."""
    bound: FilteringBoundLogger = structlog.get_logger(name).bind()
    return bound


# --- Steps ---------------------------------------------------------------------------------------------------------


def clean(logger: Any, method: str, event: EventDict) -> EventDict:
    """Hide secrets, and cut what is long."""
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
    # Cut before too: the patterns are not to be tried on megabytes.
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
    """At most `limit` bytes; of a traceback the end is kept, of anything else the beginning."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    keep = limit - 3
    if limit == MAX_TRACEBACK:
        return "..." + raw[-keep:].decode("utf-8", "ignore")
    return raw[:keep].decode("utf-8", "ignore") + "..."


# --- Renderers -----------------------------------------------------------------------------------------------------


def _to_json(logger: Any, method: str, event: EventDict) -> str:
    """ASCII alone: control characters and line separators of every kind are escaped."""
    first = {key: event.pop(key) for key in ("time", "level", "event") if key in event}
    return json.dumps({**first, **event}, default=str, ensure_ascii=True)


def _for_eyes(logger: Any, method: str, event: EventDict) -> EventDict:
    """Make every value safe to print; the renderer quotes those that would run into the next."""
    shown: EventDict = {}
    for key, value in event.items():
        if key == "exception":
            # Indented: no line of it can pass for a line of the log.
            shown[key] = "\n".join(f"  | {printable(line)}" for line in str(value).split("\n"))
        elif key in ("event", "time", "level", "logger"):
            shown[key] = printable(str(value))
        else:
            shown[printable(key)] = printable(value if isinstance(value, str) else json.dumps(value, default=str))
    return shown


def printable(text: str) -> str:
    """Control characters, escapes of terminals, and marks that turn the direction of writing, spelled out."""
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
