"""Rows, as people and as programs read them: one model feeds the table and the JSON.

A row is a mapping, its keys the columns of the table and the keys of the object. How a value is shown follows from its
key: instants end in `_at`, durations in `_ms`, as everywhere.
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
_COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE")

_NOTHING = "-"
_LONGEST = 60
_ALARMING = frozenset({"failed"})
# Of no use in pieces: the other columns make room for these.
_WHOLE = frozenset({"id", "at", "queue", "tenant", "check", "step", "state", "age_ms", "held_ms", "lease", "due"})
# A record has one of these at most.
_NAMING = frozenset({"id", "name"})
# Columns that are cut to the terminal's width, and the width that they keep.
_CUT = frozenset({"error", "last_error"})
_LEAST_ROOM = 20
# Between two columns of a table, with the padding of both.
_GUTTER = 3
_WORTH_A_LOOK = frozenset({"paused", "draining"})


class Output:
    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.is_json = json
        self.is_quiet = quiet

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False, emoji=False, markup=False)

    @cached_property
    def is_terminal(self) -> bool:
        """Return whether the answer goes to a terminal, which has colours and a width."""
        # rich decides, except where the answer is plain: importing it takes longer than most commands run.
        is_plain = not sys.stdout.isatty() and not any(name in os.environ for name in _COLOURED)
        return not is_plain and self.console.is_terminal

    def record(self, row: Row) -> None:
        """Print one thing: a line per field, a JSON object, or with `--quiet` its id or name if it has one."""
        if self.is_json:
            echo_json(row)
        elif self.is_quiet:
            for key in _NAMING & row.keys():
                typer.echo(shown(key, row[key]))
        else:
            width = max(len(heading(key)) for key in row)
            for key, value in row.items():
                typer.echo(f"{heading(key):{width}}  {shown(key, value)}".rstrip())

    def rows(self, rows: Iterable[Row], *, empty: str = "nothing there") -> None:
        """A table; as JSON an object a line; quiet, the first column alone."""
        if self.is_json:
            for row in rows:
                echo_json(row)
            return
        every = list(rows)
        if self.is_quiet:
            for row in every:
                typer.echo(shown(*next(iter(row.items()))))
        elif not every:
            typer.echo(empty, err=True)
        elif self.is_terminal:
            self.console.print(table_of(every, width=self.console.width))
        else:
            for line in plain_table(every):
                typer.echo(line)

    def done(self, said: str, facts: Row) -> None:
        """What a command did: a sentence, or an object."""
        if self.is_json:
            echo_json(facts)
        elif not self.is_quiet:
            typer.echo(printable(said))

    def note(self, said: str) -> None:
        """Beside the answer, so on stderr."""
        if not self.is_quiet:
            typer.echo(printable(said), err=True)


def echo_json(row: object) -> None:
    typer.echo(msgspec.json.encode(row).decode())


def heading(key: str) -> str:
    return key.removesuffix("_ms").removesuffix("_at").replace("_", " ")


def shown(key: str, value: Any) -> str:
    match value:
        case None | "":
            return _NOTHING
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
            return printable(" ".join(f"{name}={each}" for name, each in value.items() if each is not None)) or _NOTHING
        case _:
            return " ".join(printable(str(value)).split())


def instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float) -> str:
    """As it would be written as an option where that is short, rounded where it is not."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms >= unit_ms:
            return f"{round(ms / unit_ms, 1):g}{unit}"
    return f"{round(ms, 2):g}ms" if ms else "0s"


def relative(at_ms: int, now_ms: int) -> str:
    """`in 12s`, or `3s ago`."""
    return f"in {duration(at_ms - now_ms)}" if at_ms > now_ms else f"{duration(now_ms - at_ms)} ago"


def size(number: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number}B"


def payload_fields(payload: bytes | None, *, is_json: bool) -> dict[str, Any]:
    """As on the wire: `payload` for JSON, `payload_base64` for anything else."""
    if payload is None:
        return {"payload": None}
    if is_json:
        return {"payload": msgspec.Raw(payload)}
    return {"payload_base64": base64.b64encode(payload).decode()}


def preview(payload: bytes | None) -> str | None:
    """The beginning of a payload, for people."""
    if payload is None:
        return None
    try:
        text = payload[: 4 * _LONGEST].decode("utf-8", "strict" if len(payload) <= 4 * _LONGEST else "ignore")
    except UnicodeDecodeError:
        return f"{len(payload):,} bytes"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def plain_table(rows: Sequence[Row]) -> list[str]:
    """Columns that line up, and nothing cut off: programs read it too."""
    keys = list(rows[0])
    lines = [[heading(key) for key in keys], *([shown(key, row[key]) for key in keys] for row in rows)]
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
    """Return a table; with the terminal's `width`, errors are cut to it: wrapped, one would fill the screen."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    options.setdefault("box", box.SIMPLE_HEAD)
    table = Table(**options)
    keys = list(rows[0])
    room = None if width is None else _room(rows, width)
    for key in keys:
        justify: Literal["left", "right"] = "right" if _is_number(rows[0][key]) else "left"
        # A long word continues on the next line: an owner's name is one word, and cutting it would hide who it is.
        table.add_column(heading(key), justify=justify, no_wrap=key in _WHOLE, overflow="fold")
    for row in rows:
        texts = [shown(key, row[key]) for key in keys]
        if room is not None:
            texts = [cut(text, room) if key in _CUT else text for key, text in zip(keys, texts, strict=True)]
        table.add_row(*(Text(text, style=_style(key, row[key])) for key, text in zip(keys, texts, strict=True)))
    return table


def _room(rows: Sequence[Row], width: int) -> int:
    """Return how many characters a column that may be cut has beside the others, in a terminal of that width."""
    others = [key for key in rows[0] if key not in _CUT]
    taken = sum(_GUTTER + max(len(heading(key)), *(len(shown(key, row[key])) for row in rows)) for key in others)
    return max(_LEAST_ROOM, width - taken - _GUTTER - 1)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _style(key: str, value: Any) -> str:
    if value and key in _ALARMING:
        return "bold red"
    return "yellow" if value and key in _WORTH_A_LOOK else ""
