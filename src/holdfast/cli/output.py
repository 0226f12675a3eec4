"""Output of commands as tables for people and as JSON for programs, both made from the same rows.

A row is a mapping. Its keys are the columns of the table and the keys of the JSON object. The key determines how a
value is formatted: instants end in `_at`, durations in `_ms`.
"""

import base64
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import typer

from holdfast.cli.failures import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]

# Variables that make rich treat a pipe or a file as a terminal.
_COLOUR_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")

_EMPTY_CELL = "-"
_MAX_PREVIEW = 60
# Columns that are never wrapped, because a part of the value is useless. The other columns get the remaining width.
_UNWRAPPED = frozenset({"id", "at", "queue", "tenant", "check", "step", "state", "age_ms", "held_ms", "lease", "due"})
# The columns that `--quiet` prints. A record has at most one of them.
_ID_COLUMNS = frozenset({"id", "name"})
# Columns that are cut to the terminal's width, and the minimum width that they keep.
_CUT_COLUMNS = frozenset({"error", "last_error"})
_MIN_CUT_WIDTH = 20
# Characters between two columns of a table, with the padding of both.
_GUTTER = 3
# Columns whose values are highlighted unless they are zero or false.
_RED_COLUMNS = frozenset({"failed"})
_YELLOW_COLUMNS = frozenset({"paused", "draining"})


class Output:
    """Prints the result of a command in the form that `--json` and `--quiet` ask for."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.is_json = json
        self.is_quiet = quiet

    @cached_property
    def console(self) -> "Console":
        """Return the console for tables and progress bars on stdout."""
        from rich.console import Console

        return Console(highlight=False, emoji=False, markup=False)

    @cached_property
    def is_terminal(self) -> bool:
        """Return True if stdout is a terminal, which has colours and a width."""
        # rich decides, except for plain output: importing rich takes longer than most commands run.
        is_plain = not sys.stdout.isatty() and not any(name in os.environ for name in _COLOUR_VARIABLES)
        return not is_plain and self.console.is_terminal

    def record(self, row: Row) -> None:
        """Print one row: a line per field, a JSON object, or with `--quiet` its id or name if it has one."""
        if self.is_json:
            echo_json(row)
        elif self.is_quiet:
            for key in _ID_COLUMNS & row.keys():
                typer.echo(format_value(key, row[key]))
        else:
            width = max(len(heading(key)) for key in row)
            for key, value in row.items():
                typer.echo(f"{heading(key):{width}}  {format_value(key, value)}".rstrip())

    def rows(self, rows: Iterable[Row], *, empty: str = "nothing found") -> None:
        """Print rows as a table, with `--json` as one object per line, with `--quiet` as the first column only.

        Without rows, the table is replaced by the text `empty` on stderr.
        """
        if self.is_json:
            for row in rows:
                echo_json(row)
            return
        every = list(rows)
        if self.is_quiet:
            for row in every:
                typer.echo(format_value(*next(iter(row.items()))))
        elif not every:
            typer.echo(empty, err=True)
        elif self.is_terminal:
            self.console.print(table_of(every, width=self.console.width))
        else:
            for line in plain_table(every):
                typer.echo(line)

    def done(self, text: str, facts: Row) -> None:
        """Print the outcome of a command: `text`, or with `--json` the facts. With `--quiet`, print nothing."""
        if self.is_json:
            echo_json(facts)
        elif not self.is_quiet:
            typer.echo(printable(text))

    def note(self, text: str) -> None:
        """Print a note on stderr, unless `--quiet` is given."""
        if not self.is_quiet:
            typer.echo(printable(text), err=True)


def echo_json(row: object) -> None:
    """Print a value as one line of JSON."""
    typer.echo(msgspec.json.encode(row).decode())


def heading(key: str) -> str:
    """Return the column heading for a key, without its unit."""
    return key.removesuffix("_ms").removesuffix("_at").replace("_", " ")


def format_value(key: str, value: Any) -> str:
    """Format a value for people: instants, durations and sizes by their key, and control characters escaped."""
    match value:
        case None | "":
            return _EMPTY_CELL
        case bool():
            return "yes" if value else "no"
        case int() if key.endswith("_at") or key == "at":
            return instant(value)
        case int() | float() if key.endswith("_ms"):
            return duration(value)
        case int() if key == "bytes":
            return size(value)
        case float():
            return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
        case int() if key != "snowflake":
            return f"{value:,}"
        case Mapping():
            return (
                printable(" ".join(f"{name}={each}" for name, each in value.items() if each is not None)) or _EMPTY_CELL
            )
        case _:
            return " ".join(printable(str(value)).split())


def instant(at_ms: int) -> str:
    """Format an instant in the machine's time zone."""
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float) -> str:
    """Format a duration in the syntax of the options, rounded: `1.5m`, `30s`, `12ms`."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms >= unit_ms:
            return f"{round(ms / unit_ms, 1):g}{unit}"
    return f"{round(ms, 2):g}ms" if ms else "0s"


def relative(at_ms: int, now_ms: int) -> str:
    """Format an instant relative to now: `in 12s`, or `3s ago`."""
    return f"in {duration(at_ms - now_ms)}" if at_ms > now_ms else f"{duration(now_ms - at_ms)} ago"


def size(number: int) -> str:
    """Format a number of bytes: `1.5MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number}B"


def payload_fields(payload: bytes | None, *, is_json: bool) -> dict[str, Any]:
    """Return the payload's field as in the HTTP API: `payload` for JSON, `payload_base64` for anything else."""
    if payload is None:
        return {"payload": None}
    if is_json:
        return {"payload": msgspec.Raw(payload)}
    return {"payload_base64": base64.b64encode(payload).decode()}


def preview(payload: bytes | None) -> str | None:
    """Return the beginning of a payload as one line of text, or its size if it is not text."""
    if payload is None:
        return None
    try:
        text = payload[: 4 * _MAX_PREVIEW].decode("utf-8", "strict" if len(payload) <= 4 * _MAX_PREVIEW else "ignore")
    except UnicodeDecodeError:
        return f"{len(payload):,} bytes"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_PREVIEW else f"{text[: _MAX_PREVIEW - 3]}..."


def plain_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table with aligned columns. Nothing is cut off, because programs read it too."""
    keys = list(rows[0])
    lines = [[heading(key) for key in keys], *([format_value(key, row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(keys))]
    right = [_is_number(rows[0][key]) for key in keys]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def table_of(rows: Sequence[Row], *, width: int | None = None, **options: Any) -> "Table":
    """Return a table for rich. Given the terminal's `width`, errors are cut: a wrapped one could fill the screen."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    options.setdefault("box", box.SIMPLE_HEAD)
    table = Table(**options)
    keys = list(rows[0])
    cut_width = None if width is None else _cut_width(rows, width)
    for key in keys:
        justify: Literal["left", "right"] = "right" if _is_number(rows[0][key]) else "left"
        # A long word is folded onto the next line: an owner's name is one word, and cutting it would hide the owner.
        table.add_column(heading(key), justify=justify, no_wrap=key in _UNWRAPPED, overflow="fold")
    for row in rows:
        texts = [format_value(key, row[key]) for key in keys]
        if cut_width is not None:
            texts = [
                cut(text, cut_width) if key in _CUT_COLUMNS else text for key, text in zip(keys, texts, strict=True)
            ]
        table.add_row(*(Text(text, style=_style(key, row[key])) for key, text in zip(keys, texts, strict=True)))
    return table


def _cut_width(rows: Sequence[Row], width: int) -> int:
    """Return the width that remains for a column that may be cut, in a terminal of the given width."""
    others = [key for key in rows[0] if key not in _CUT_COLUMNS]
    taken = sum(_GUTTER + max(len(heading(key)), *(len(format_value(key, row[key])) for row in rows)) for key in others)
    return max(_MIN_CUT_WIDTH, width - taken - _GUTTER - 1)


def cut(text: str, length: int) -> str:
    """Shorten a text to at most `length` characters, ending in an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _style(key: str, value: Any) -> str:
    if value and key in _RED_COLUMNS:
        return "bold red"
    return "yellow" if value and key in _YELLOW_COLUMNS else ""
