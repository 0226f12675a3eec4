"""Values of the command line become what typer alone would have made of them."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer

from holdfast.cli import arguments
from holdfast.cli.arguments import QuickCommand
from holdfast.cli.commands import COMMANDS
from holdfast.cli.loading import load

# Their commands are parsed by typer alone.
GROUPS = ("db", "pipeline")
VALUES = (
    *("", " ", "x", "é", "true", "-", "@x", "a=b", "\udcff", "x\0y"),
    *("0", "1", "-1", "+1", "007", "-0", " 1", "1 ", "1_000", "0x10", "٣", "255", "256"),
    *("1.5", ".5", "1.", "1e3", "-2.5", "0.1", "1.0000001", "nan", "inf", "1,5"),
    *("999999999999999", "9007199254740993", "9" * 20, "9" * 5_000, "123456789.123456"),
)


def outcome(command: Any, line: list[str]) -> str:
    """Return the values that a command is called with, or the error."""
    try:
        # In text, 1 and 1.0, and a list and a tuple, are different.
        return repr(command.make_context("command", list(line)).params)
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'format_message', error.__str__)()}"


def command_lines(command: Any) -> Iterator[list[str]]:
    """Yield command lines that give each value to each parameter in turn."""
    positional = [each for each in command.params if each.param_type_name == "argument"]
    required = ["1" for each in positional if each.required]
    options = [each for each in command.params if each.param_type_name == "option"]
    for each in options:
        required += [f"{each.opts[0]}=1"] if each.required else []
    yield []
    yield required
    for number in range(len(positional)):
        for value in VALUES:
            yield [*required[: number + 1], *["1"] * (number - len(required)), "--", value]
            yield ["--", *["1"] * number, value, value]
    for each in options:
        for spelling in (*each.opts, *each.secondary_opts):
            if each.is_flag:
                yield [*required, spelling]
                yield [*required, f"{spelling}=x"]
            else:
                yield from ([*required, spelling, value] for value in VALUES)
                yield [*required, spelling]
                yield [*required, spelling, "1", spelling, "2"]


def assert_same(command: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(command_lines(command))
    quick = [outcome(command, line) for line in lines]
    monkeypatch.setattr(arguments, "convert_quickly", lambda command, parameters: None)
    for line, found in zip(lines, quick, strict=True):
        assert found == outcome(reference, line), line


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_every_command_is_called_with_what_typer_makes_of_its_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same(load(name), load(name), monkeypatch)


def _doubled(value: str) -> str:
    return value * 2


def _checked(value: int | None) -> int | None:
    if value == 7:
        raise typer.BadParameter("not seven")
    return value


def _every_kind(
    text: str,
    number: Annotated[int, typer.Argument(min=0, max=255)] = 3,
    rest: Annotated[list[str] | None, typer.Argument()] = None,
    limited: Annotated[float, typer.Option(min=0.5, max=10)] = 1,
    clamped: Annotated[int, typer.Option(min=0, max=10, clamp=True)] = 1,
    optional: Annotated[float | None, typer.Option()] = None,
    parsed: Annotated[str, typer.Option(parser=_doubled)] = "ab",
    checked: Annotated[int | None, typer.Option(callback=_checked)] = None,
    several: Annotated[list[str] | None, typer.Option("--several", "-s")] = None,
    numbers: Annotated[list[int] | None, typer.Option("--numbers")] = None,
    pair: Annotated[tuple[int, str], typer.Option()] = (1, "a"),
    flag: Annotated[bool, typer.Option("--flag/--no-flag")] = True,
) -> None: ...


def test_parameters_of_every_kind_become_what_typer_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        app = typer.Typer(add_completion=False)
        app.command(cls=QuickCommand)(_every_kind)
        return typer.main.get_command(app)

    assert_same(made(), made(), monkeypatch)
