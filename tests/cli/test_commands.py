"""The table of commands and the page drawn from it say what the commands themselves say."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from holdfast.cli import loading
from holdfast.cli.commands import COMMANDS
from holdfast.cli.loading import MARKUP, load
from holdfast.cli.main import app

PROGRAM = f"{os.path.dirname(sys.executable)}/holdfast"
# With this, rich draws the page: see root_help.
BY_RICH = {"TYPER_USE_RICH": "1"}
UNSET = ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "NO_COLOR", "COLUMNS")


def summary_of(command: Any) -> str:
    """Return the first paragraph of a command's help, which is what typer lists it with."""
    return " ".join((command.short_help or command.help or "").split("\n\n")[0].split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_row_has_the_name_and_the_summary_of_its_command(name: str) -> None:
    command = load(name)

    assert command.name == name
    assert summary_of(command) == COMMANDS[name].summary
    assert command.rich_help_panel == COMMANDS[name].panel
    assert not command.hidden
    assert not command.deprecated


def plain_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNSET and "TERM" not in name}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


def visible(text: bytes) -> list[tuple[int, frozenset[bytes]]]:
    """Return each character with its styles. Bold and a colour cannot be seen on a space, a background can."""
    characters: list[tuple[int, frozenset[bytes]]] = []
    styles: set[bytes] = set()
    for codes, shown in re.findall(rb"\x1b\[([0-9;]*)m|([^\x1b]+)", text):
        for code in codes.split(b";") if codes else ():
            styles = set() if code == b"0" else styles | {code}
        on_space = frozenset(each for each in styles if len(each) == 2 and each[:1] == b"4")
        characters += [(each, on_space if each in b" \r\n" else frozenset(styles)) for each in shown]
    return characters


def page(environment: dict[str, str]) -> bytes:
    return subprocess.run([PROGRAM, "--help"], env=environment, capture_output=True, check=True).stdout


@pytest.fixture
def imported_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let typer list every command as its own module makes it, and rich draw the page."""
    monkeypatch.setattr(loading.RootGroup, "get_command", lambda self, ctx, name: load(name))
    monkeypatch.setattr(loading.RootGroup, "format_help", TyperGroup.format_help)


def drawn(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        typer.main.get_command(app)(["--help"], prog_name="holdfast")
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [64, 65, 79, 80, 81, 100, 120, 133, 200, 400])
def test_the_page_is_the_one_of_a_parser_that_has_imported_every_command(
    width: int, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    light = drawn(capsys)
    request.getfixturevalue("imported_commands")

    assert light.count("\n") > 40
    assert light == drawn(capsys)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"COLUMNS": "63"},
        {"COLUMNS": "20"},
        {"COLUMNS": "0"},
        {"COLUMNS": "wide"},
        {"TERMINAL_WIDTH": "90"},
        {"TERMINAL_WIDTH": "90", "COLUMNS": "120"},
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": ""},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"FORCE_COLOR": "1", "TERM": "dumb"},
        {"PY_COLORS": "1", "TERM": "xterm"},
        {"GITHUB_ACTIONS": "true", "COLUMNS": "150"},
        {"TTY_COMPATIBLE": "1"},
        {"PYTHONIOENCODING": "latin-1:replace"},
    ],
    ids=str,
)
def test_the_page_looks_as_rich_draws_it(variables: dict[str, str]) -> None:
    environment = plain_environment(**variables)

    assert visible(page(environment)) == visible(page({**environment, **BY_RICH}))


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_on_a_terminal_the_page_looks_as_rich_draws_it(variables: dict[str, str]) -> None:
    environment = plain_environment(**variables)

    assert visible(page_on_terminal(environment)) == visible(page_on_terminal({**environment, **BY_RICH}))


def page_on_terminal(environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAM, "--help"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b"".join(_read_all(ours))
    os.close(ours)
    assert b"Usage: " in shown
    return shown


def _read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # how Linux says that no program has the terminal open any more
            return
        if not part:
            return
        yield part


def test_an_unknown_command_is_told_with_the_names_that_look_like_it(run: Callable[..., Any]) -> None:
    ran = run("enqeue")

    assert ran.code == 2
    assert "No such command 'enqeue'" in ran.err
    assert "'enqueue'" in ran.err


def completions(*words: str) -> list[str]:
    """Return what a shell offers for the last word."""
    environment = plain_environment(
        _HOLDFAST_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(["holdfast", *words]),
        COMP_CWORD=str(len(words)),
    )
    return subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.spec("10.4")
def test_completion_offers_every_command() -> None:
    assert completions("") == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("enqueue", "--pri"), ["--priority"]),
        (("dequeue", "--ten"), ["--tenant"]),
        (("serve", "--queue-poll-j"), ["--queue-poll-jitter"]),
        (("db", "stat"), ["status"]),
        (("pipeline", "arch"), ["archive"]),
        (("db", "status", "--sto"), ["--store"]),
        (("--vers",), ["--version"]),
    ],
    ids=" ".join,
)
def test_completion_offers_the_options_and_commands_of_a_command(words: tuple[str, ...], offered: list[str]) -> None:
    assert completions(*words) == offered


def test_every_command_has_the_markup_of_the_whole() -> None:
    assert {load(name).rich_markup_mode for name in COMMANDS} == {MARKUP}
