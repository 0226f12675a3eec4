"""The command as a whole: help, versions, exit codes and errors."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from holdfast.cli.main import exit_code
from holdfast.model import errors


def test_help_names_every_command(run: Callable[..., Any]) -> None:
    ran = run("--help")

    assert ran.code == 0
    assert all(command in ran.out for command in ("serve", "demo", "verify", "backup", "--version"))


@pytest.mark.parametrize("command", ["demo", "verify", "backup"])
def test_each_command_has_help_of_its_own(run: Callable[..., Any], command: str) -> None:
    ran = run(command, "--help")

    assert ran.code == 0
    assert "store" in ran.out
    assert "--json" in ran.out


def test_the_version_is_the_packages(run: Callable[..., Any]) -> None:
    assert run("--version").out == f"holdfast {version('holdfast')}\n"


@pytest.mark.parametrize("arguments", [("nonsense",), ("verify",), ("verify", "a", "b"), ("demo", "--seconds", "x")])
def test_wrong_usage_is_exit_code_2(run: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


def test_the_module_runs_as_the_command_does() -> None:
    ran = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)

    assert ran.stdout == f"holdfast {version('holdfast')}\n"


def test_help_loads_no_store() -> None:
    program = "import sys, holdfast.cli.main; sys.exit('rocksdict' in sys.modules or 'rich.live' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("no"), 4),
        (errors.Forbidden("no"), 4),
        (errors.QueueNotFound("no"), 3),
        (errors.MessageNotFound("no"), 3),
        (errors.StaleLease("no"), 5),
        (errors.OverQuota("no"), 75),
        (errors.StoreUnavailable("no"), 75),
    ],
)
def test_the_exit_code_says_what_to_do_next(error: errors.HoldfastError, code: int) -> None:
    assert exit_code(error) == code
