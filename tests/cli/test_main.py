"""The command as a whole: help, versions, exit codes and errors."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from holdfast.cli.main import exit_code
from holdfast.model import errors

COMMANDS = (
    *("serve", "enqueue", "dequeue", "ack", "nack", "extend", "release", "run", "worker", "tail", "top", "stats"),
    *("queues", "tenants", "peek", "get", "dlq", "redrive", "schedule", "policy", "move", "cancel", "purge", "pause"),
    *("resume", "reprioritise", "delete", "doctor", "bench", "verify", "backup", "demo", "token"),
)


def test_alone_it_shows_the_most_used_commands(run: Callable[..., Any]) -> None:
    ran = run()

    assert ran.code == 0
    assert all(f"holdfast {command}" in ran.out for command in ("serve", "enqueue", "run", "queues", "top", "dlq"))
    assert len(ran.out.splitlines()) < 20


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(run: Callable[..., Any], command: str) -> None:
    ran = run(command, "--help")

    assert ran.code == 0
    assert f"Usage: holdfast {command}" in ran.out


def test_wrong_usage_is_one_line_that_names_the_help(run: Callable[..., Any]) -> None:
    ran = run("enqueue", "jobs", "x", "--no-such-flag")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("holdfast: ")
    assert ran.err.count("\n") == 1
    assert "--no-such-flag" in ran.err
    assert "holdfast enqueue --help" in ran.err


def test_a_traceback_is_shown_only_when_asked_for(
    run: Callable[..., Any], alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in run("stats", "--url", "./none").err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in run("stats", "--url", "./none").err


def test_a_hostile_error_stays_on_its_line(run: Callable[..., Any], alone: None) -> None:
    ran = run("stats", "evil\x1b[2J\nholdfast: all is well", "--url", "memory://")

    assert ran.code == 4
    assert ran.err.count("\n") == 1
    assert "\x1b" not in ran.err


@pytest.mark.spec("10.4")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_a_shell(shell: str) -> None:
    program = [f"{os.path.dirname(sys.executable)}/holdfast"]
    environment = {**os.environ, "_HOLDFAST_COMPLETE": f"source_{shell}"}
    ran = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)

    assert "_HOLDFAST_COMPLETE" in ran.stdout


def test_completion_knows_the_commands() -> None:
    program = [f"{os.path.dirname(sys.executable)}/holdfast"]
    environment = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "holdfast enq",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)

    assert "enqueue" in ran.stdout


def test_help_names_every_command(run: Callable[..., Any]) -> None:
    ran = run("--help")

    assert ran.code == 0
    assert all(command in ran.out for command in COMMANDS)
    assert all(group in ran.out for group in ("Messages", "Inspect", "Operate", "Server and store"))


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


@pytest.mark.spec("3.11")
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
