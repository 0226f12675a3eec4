"""`holdfast --help`, drawn without rich: importing rich and its Markdown takes three times as long as everything else.

The page is the same as the one that typer and rich draw; a test compares the two. On an unusual terminal (narrow,
without UTF-8, or with one of rich's rarer variables set), rich draws it.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TextIO

from holdfast.cli.commands import COMMANDS

# On a narrower screen the columns of the options must be shrunk, which only rich does.
_MIN_WIDTH = 64
_DEFAULT_WIDTH = 80
# Variables that make rich or typer draw in another way.
_RARE_VARIABLES = ("TTY_COMPATIBLE", "TYPER_USE_RICH", "_TYPER_FORCE_DISABLE_TERMINAL")
_COLOUR_VARIABLES = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")

# Attributes and colour: the numbers of an escape sequence.
_Style = tuple[str, str]
_PLAIN: _Style = ("", "")
_BOLD: _Style = ("1", "")
_DIM: _Style = ("2", "")
_NAME: _Style = ("1", "36")
_SHORT_OPTION: _Style = ("1", "32")
_TYPE: _Style = ("1", "33")
_BRACKET: _Style = ("1;2", "33")
_USAGE: _Style = ("1", "33")
_CODE: _Style = ("1", "36;40")

# The pieces of one line, each with its style.
_Line = list[tuple[str, _Style]]


class _Screen(NamedTuple):
    width: int
    has_styles: bool
    has_colours: bool

    def draw(self, line: _Line) -> str:
        return "".join(self._draw_piece(text, style) for text, style in line)

    def _draw_piece(self, text: str, style: _Style) -> str:
        codes = ";".join(each for each in (style[0], style[1] if self.has_colours else "") if each)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes and text and self.has_styles else text


def print_help(group: Any, ctx: Any) -> bool:
    """Print the help of the program. Return False, having printed nothing, if rich has to draw it."""
    screen = _read_screen(sys.stdout, os.environ)
    usage = group.get_usage(ctx).removeprefix("Usage: ")
    options = [_option_of(each, ctx) for each in group.get_params(ctx)]
    if screen is None or len(usage) > screen.width - len(" Usage:  ") or not all(options):
        return False
    lines = [
        *_pad([[("Usage: ", _USAGE), (usage, _BOLD)]], screen.width),
        *_pad(_wrap(group.help, screen.width - 2), screen.width)[1:],
        *_draw_panel(
            "Options", _option_lines([each for each in options if each is not None], screen.width - 4), screen
        ),
    ]
    for panel, names in _panels().items():
        lines += _draw_panel(panel, _command_lines(names, screen.width - 4), screen)
    lines += _pad(_wrap(group.epilog, screen.width - 2), screen.width)
    # typer.echo would remove the colours that FORCE_COLOR asks for.
    sys.stdout.write("".join(f"{screen.draw(line)}\n" for line in lines))
    return True


def _read_screen(file: TextIO, environment: Any) -> _Screen | None:
    if (
        any(name in environment for name in _RARE_VARIABLES)
        or "" in map(environment.get, _COLOUR_VARIABLES)
        or os.name == "nt"
    ):
        return None
    is_terminal = any(name in environment for name in _COLOUR_VARIABLES) or file.isatty()
    if not (file.encoding or "").lower().startswith("utf"):
        return None
    if is_terminal and environment.get("TERM", "").lower() in ("dumb", "unknown"):
        return None
    width = _width(environment)
    return None if width < _MIN_WIDTH else _Screen(width, is_terminal, not environment.get("NO_COLOR"))


def _width(environment: Any) -> int:
    for name in ("TERMINAL_WIDTH", "COLUMNS"):
        if (given := environment.get(name, "")).isdigit():
            return int(given)
    for stream in (0, 1, 2):
        try:
            return os.get_terminal_size(stream).columns or _DEFAULT_WIDTH
        except OSError:
            continue
    return _DEFAULT_WIDTH


class _Option(NamedTuple):
    long: str
    short: str
    type: str
    help: str


def _option_of(parameter: Any, ctx: Any) -> _Option | None:
    """Return an option's columns, or None if it needs more of them or this release of typer shows no types of flags."""
    if not hasattr(parameter, "display_type_rich") or parameter.secondary_opts or parameter.required:
        return None
    long = ",".join(each for each in parameter.opts if "--" in each)
    short = ",".join(each for each in parameter.opts if "--" not in each)
    return _Option(long, short, parameter.display_type_rich(ctx=ctx) or "", parameter.help or "")


def _option_lines(options: Sequence[_Option], width: int) -> Iterator[_Line]:
    long_width = max(len(each.long) for each in options) + 2
    # After the short spellings rich has two columns for the opposites of flags (`--no-…`), which are empty here.
    short_width = max(len(each.short) for each in options) + 2 + 4
    type_width = max(len(each.type) for each in options) + 2
    indent = long_width + short_width + type_width
    for option in options:
        name: _Line = [
            (option.long, _NAME),
            (" " * (long_width - len(option.long)), _PLAIN),
            (option.short, _SHORT_OPTION),
            (" " * (short_width - len(option.short)), _PLAIN),
            *((each, _BRACKET if each in "<>" else _TYPE) for each in _split_brackets(option.type)),
            (" " * (type_width - len(option.type)), _PLAIN),
        ]
        yield from _indent_after(name, indent, _wrap(option.help, width - indent))


def _split_brackets(text: str) -> list[str]:
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
        yield from _indent_after(first, indent, _wrap(COMMANDS[name].summary, width - indent))


def _indent_after(first: _Line, indent: int, lines: Sequence[_Line]) -> Iterator[_Line]:
    for number, line in enumerate(lines):
        yield [*(first if number == 0 else [(" " * indent, _PLAIN)]), *line]


def _draw_panel(title: str, lines: Iterator[_Line], screen: _Screen) -> Iterator[_Line]:
    yield [(f"╭─ {title} {'─' * (screen.width - len(title) - 5)}╮", _DIM)]
    for line in lines:
        yield [("│", _DIM), (" ", _PLAIN), *line, (" " * (screen.width - 3 - _length(line)), _PLAIN), ("│", _DIM)]
    yield [(f"╰{'─' * (screen.width - 2)}╯", _DIM)]


def _pad(lines: Sequence[_Line], width: int) -> list[_Line]:
    """Return the lines padded to the screen's width, with an empty line before and after them."""
    empty: _Line = [(" " * width, _PLAIN)]
    middle = [[(" ", _PLAIN), *line, (" " * (width - 1 - _length(line)), _PLAIN)] for line in lines]
    return [empty, *middle, empty]


def _length(line: _Line) -> int:
    return sum(len(text) for text, _ in line)


def _wrap(text: str, width: int) -> list[_Line]:
    """Wrap a text to lines of at most `width` characters. Text in backticks is styled as code."""
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
