"""The statements of docs/cli.md are true."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from holdfast.cli.messages.shell_variables import PREFIX, VARIABLES

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_the_first_lines_run_as_they_stand(shell: Callable[..., Any]) -> None:
    first = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]

    ran = shell(f"set -e\n{first}")

    assert (ran.code, ran.err) == (0, "")
    assert '{"to": "ada"}' in ran.out
    assert "acked" in ran.out.splitlines()[-1]


@pytest.mark.spec("10.4")
def test_every_command_and_variable_is_named() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # it is a group

    assert [name for name in commands if f"`{name}`" not in PAGE] == []
    assert [name for name in VARIABLES if f"`{PREFIX}{name}`" not in PAGE] == []


@pytest.mark.spec("10.4")
def test_the_table_of_commands_is_complete_and_no_command_is_said_to_be_missing() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    table = re.search(r"\| for \| commands \|\n\|---\|---\|\n((?:\|.*\|\n)+)", PAGE)

    assert table is not None
    assert sorted(re.findall(r"`(\w+)`", table[1])) == sorted(commands)
    assert "not here yet" not in PAGE.lower()
