"""`holdfast --help`, drawn without rich: importing it, with its Markdown, takes three times as long as all the rest.

The page looks as typer and rich would draw it; a test holds one against the other. On a screen that these lines do not
know (narrow, without UTF-8, or with one of rich's rarer variables set) rich draws it.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TextIO

from holdfast.cli.commands import COMMANDS

# Narrower, the columns of the options have to share the room in ways that only rich knows.
_LEAST_WIDTH = 64
_USUAL_WIDTH = 80
# Variables by which a user tells rich or typer to draw in another way.
_RARE = ("TTY_COMPATIBLE", "TYPER_USE_RICH", "_TYPER_FORCE_DISABLE_TERMINAL")
_COLOURED = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")

# Attributes and colour, as the numbers of an escape sequence.
_Style = tuple[str, str]
_PLAIN: _Style = ("", "")
_BOLD: _Style = ("1", "")
_DIM: _Style = ("2", "")
_NAME: _Style = ("1", "36")
_SWITCH: _Style = ("1", "32")
_TYPE: _Style = ("1", "33")
_BRACKET: _Style = ("1;2", "33")
_USAGE: _Style = ("1", "33")
_CODE: _Style = ("1", "36;40")

# Pieces of one line, each with its style.
_Line = list[tuple[str, _Style]]


class _Screen(NamedTuple):
    width: int
    has_styles: bool
    has_colours: bool

    def drawn(self, line: _Line) -> str:
        return "".join(self._piece(text, style) for text, style in line)

    def _piece(self, text: str, style: _Style) -> str:
        codes = ";".join(each for each in (style[0], style[1] if self.has_colours else "") if each)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes and text and self.has_styles else text


def print_help(group: Any, ctx: Any) -> bool:
    """Print the help of the whole command line, or return False where rich has to do it."""
    screen = _screen_of(sys.stdout, os.environ)
    usage = group.get_usage(ctx).removeprefix("Usage: ")
    options = [_option_of(each, ctx) for each in group.get_params(ctx)]
    if screen is None or len(usage) > screen.width - len(" Usage:  ") or not all(options):
        return False
    lines = [
        *_padded([[("Usage: ", _USAGE), (usage, _BOLD)]], screen.width),
        *_padded(_wrapped(group.help, screen.width - 2), screen.width)[1:],
        *_panel("Options", _option_lines([each for each in options if each is not None], screen.width - 4), screen),
    ]
    for panel, names in _panels().items():
        lines += _panel(panel, _command_lines(names, screen.width - 4), screen)
    lines += _padded(_wrapped(group.epilog, screen.width - 2), screen.width)
    # Not with typer.echo, which would take the colours out that FORCE_COLOR asks for.
    sys.stdout.write("".join(f"{screen.drawn(line)}\n" for line in lines))
    return True


def _screen_of(file: TextIO, environment: Any) -> _Screen | None:
    if any(name in environment for name in _RARE) or "" in map(environment.get, _COLOURED) or os.name == "nt":
        return None
    is_terminal = any(name in environment for name in _COLOURED) or file.isatty()
    if not (file.encoding or "").lower().startswith("utf"):
        return None
    if is_terminal and environment.get("TERM", "").lower() in ("dumb", "unknown"):
        return None
    width = _width(environment)
    return None if width < _LEAST_WIDTH else _Screen(width, is_terminal, not environment.get("NO_COLOR"))


def _width(environment: Any) -> int:
    for name in ("TERMINAL_WIDTH", "COLUMNS"):
        if (given := environment.get(name, "")).isdigit():
            return int(given)
    for stream in (0, 1, 2):
        try:
            return os.get_terminal_size(stream).columns or _USUAL_WIDTH
        except OSError:
            continue
    return _USUAL_WIDTH


class _Option(NamedTuple):
    long: str
    short: str
    type: str
    help: str


def _option_of(parameter: Any, ctx: Any) -> _Option | None:
    """Return an option's columns; None for one that has more of them, and of a typer that shows no types of flags."""
    if not hasattr(parameter, "display_type_rich") or parameter.secondary_opts or parameter.required:
        return None
    long = ",".join(each for each in parameter.opts if "--" in each)
    short = ",".join(each for each in parameter.opts if "--" not in each)
    return _Option(long, short, parameter.display_type_rich(ctx=ctx) or "", parameter.help or "")


def _option_lines(options: Sequence[_Option], width: int) -> Iterator[_Line]:
    longest = max(len(each.long) for each in options) + 2
    # Behind the short spellings rich keeps two columns for the opposites of flags (`--no-…`), here empty.
    shortest = max(len(each.short) for each in options) + 2 + 4
    typed = max(len(each.type) for each in options) + 2
    indent = longest + shortest + typed
    for option in options:
        name: _Line = [
            (option.long, _NAME),
            (" " * (longest - len(option.long)), _PLAIN),
            (option.short, _SWITCH),
            (" " * (shortest - len(option.short)), _PLAIN),
            *((each, _BRACKET if each in "<>" else _TYPE) for each in _bracketed(option.type)),
            (" " * (typed - len(option.type)), _PLAIN),
        ]
        yield from _beside(name, indent, _wrapped(option.help, width - indent))


def _bracketed(text: str) -> list[str]:
    return [text[:1], text[1:-1], text[-1:]]


def _panels() -> dict[str, list[str]]:
    panels: dict[str, list[str]] = {}
    for name, row in COMMANDS.items():
        panels.setdefault(row.panel, []).append(name)
    return panels


def _command_lines(names: Sequence[str], width: int) -> Iterator[_Line]:
    indent = max(map(len, COMMANDS)) + 2
    for name in names:
        first: _Line = [(name.ljust(indent), _NAME)]
        yield from _beside(first, indent, _wrapped(COMMANDS[name].summary, width - indent))


def _beside(first: _Line, indent: int, lines: Sequence[_Line]) -> Iterator[_Line]:
    for number, line in enumerate(lines):
        yield [*(first if number == 0 else [(" " * indent, _PLAIN)]), *line]


def _panel(title: str, lines: Iterator[_Line], screen: _Screen) -> Iterator[_Line]:
    yield [(f"╭─ {title} {'─' * (screen.width - len(title) - 5)}╮", _DIM)]
    for line in lines:
        yield [("│", _DIM), (" ", _PLAIN), *line, (" " * (screen.width - 3 - _length(line)), _PLAIN), ("│", _DIM)]
    yield [(f"╰{'─' * (screen.width - 2)}╯", _DIM)]


def _padded(lines: Sequence[_Line], width: int) -> list[_Line]:
    """Return the lines in the middle of the screen, with an empty one before and behind them."""
    empty: _Line = [(" " * width, _PLAIN)]
    middle = [[(" ", _PLAIN), *line, (" " * (width - 1 - _length(line)), _PLAIN)] for line in lines]
    return [empty, *middle, empty]


def _length(line: _Line) -> int:
    return sum(len(text) for text, _ in line)


def _wrapped(text: str, width: int) -> list[_Line]:
    """Return a text in lines of at most that width. What stands in backticks is code."""
    parts = text.split("`")
    characters = [(each, _CODE if number % 2 else _PLAIN) for number, part in enumerate(parts) for each in part]
    lines: list[list[tuple[str, _Style]]] = [[]]
    for is_space, group in groupby(characters, key=lambda each: each[0].isspace()):
        if is_space:
            continue
        word = list(group)
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append([])
        lines[-1] += [*([(" ", _PLAIN)] if lines[-1] else []), *word]
    return [
        [("".join(each for each, _ in run), style) for style, run in groupby(line, key=lambda each: each[1])]
        for line in lines
    ]
