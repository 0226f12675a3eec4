"""`holdfast serve` in the hands of a shell: help, refusals, exit codes."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import holdfast
from holdfast.model.extras import MODULES
from holdfast.server.settings import SETTINGS


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the caller's, and nothing left in its directory."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Check that a program has its own signal handlers again afterwards, even if the server could not start."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A server takes over the log of its process, which here is the tests'."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def assert_refused(ran: Any, code: int, *words: str) -> None:
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("holdfast: ")
    assert ran.err.count("\n") == 1
    assert all(word in ran.err for word in words), ran.err


def test_help_has_every_setting_in_its_group(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = run("serve", "--help")

    assert ran.code == 0
    for setting in SETTINGS.values():
        assert setting.flag in ran.out
        assert setting.spec.group in ran.out
    assert "[default: 30s]" in ran.out


def test_a_wrong_flag_is_usage_with_its_name(run: Callable[..., Any]) -> None:
    assert_refused(run("serve", "--port", "http"), 2, "port 'http' (flag --port)", "from 0 to 65535")
    assert run("serve", "--no-such-setting", "1").code == 2


def test_a_wrong_variable_and_a_wrong_key_are_usage_too(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "h.toml").write_text('shutdown_grace = "soon"')
    assert_refused(run("serve", "--config", "h.toml"), 2, "shutdown_grace 'soon' (key shutdown_grace in h.toml)")
    monkeypatch.setenv("HOLDFAST_DURABILITY", "none")
    assert_refused(run("serve"), 2, "durability 'none' (variable HOLDFAST_DURABILITY)", "fsync or os")


@pytest.mark.spec("8.6")
def test_without_identities_only_loopback_is_served(run: Callable[..., Any], tmp_path: Path) -> None:
    ran = run("serve", "--host", "0.0.0.0")

    assert_refused(ran, 2, "no identities are configured", "jwt_secret", "host is from flag --host")
    assert list(tmp_path.iterdir()) == [], "it was refused before it made a store"


def test_a_key_that_is_no_key_is_usage(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", "canary")

    ran = run("serve", "--host", "0.0.0.0", "--port", "0")

    assert_refused(ran, 2, "jwt_secret", "variable HOLDFAST_JWT_SECRET")
    assert "canary" not in ran.err


def test_what_is_no_store_is_refused(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")

    assert_refused(run("serve", "--port", "0", "--data", "full"), 4, "is not a store and not empty")


@pytest.mark.spec("4.6")
def test_a_store_in_use_says_who_has_it(run: Callable[..., Any], tmp_path: Path) -> None:
    with holdfast.open("store"):
        assert_refused(run("serve", "--port", "0", "--data", "store"), 75, f"in use by process {os.getpid()}")


def test_a_store_of_a_newer_format_is_left_alone(run: Callable[..., Any], tmp_path: Path) -> None:
    with holdfast.open("store"):
        pass
    (tmp_path / "store" / "HOLDFAST").write_text(json.dumps({"format": 99, "pid": None}))

    assert_refused(run("serve", "--port", "0", "--data", "store"), 75, "format 99", "upgrade Holdfast")


def test_a_port_in_use_is_worth_another_try(run: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert_refused(run("serve", "--port", port), 75, f"port {port} of 127.0.0.1 is in use")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_certificate_is_usage(run: Callable[..., Any]) -> None:
    ran = run("serve", "--port", "0", "--tls-cert", "nowhere.pem")

    assert_refused(ran, 2, "tls_cert 'nowhere.pem' cannot be read", "flag --tls-cert")


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--auto-create"], "true"),
        (["--auto-create", "--port", "1"], "true"),
        (["--auto-create", "false"], "false"),
        (["--auto-create=off"], "false"),
        (["--no-auto-create"], "false"),
        ([], "true"),
    ],
)
def test_a_boolean_may_be_written_in_any_usual_way(run: Callable[..., Any], flags: list[str], value: str) -> None:
    assert f"\nauto_create = {value}  # " in run("serve", "--print-settings", *flags).out


def test_the_settings_in_force_are_printed_with_where_they_come_from(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "h.toml").write_text("port = 1\nmax_payload = 2048\n")
    monkeypatch.setenv("HOLDFAST_PORT", "2")
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", "canary")
    monkeypatch.setenv("HOLDFAST_WHO_KNOWS", "x")

    ran = run("serve", "--print-settings", "--config", "h.toml", "--shutdown-grace", "90s")

    assert ran.code == 0
    for line in (
        "port = 2  # variable HOLDFAST_PORT",
        'max_payload = "2KiB"  # key max_payload in h.toml',
        'shutdown_grace = "90s"  # flag --shutdown-grace',
        'jwt_secret = "******"  # variable HOLDFAST_JWT_SECRET',
        'host = "127.0.0.1"  # default',
        "# data: ./holdfast-data",
    ):
        assert line in ran.out.splitlines()
    assert "canary" not in ran.out
    assert ran.err == "holdfast: the variable HOLDFAST_WHO_KNOWS is not a setting and is ignored\n"
    assert [each.name for each in tmp_path.iterdir()] == ["h.toml"]


def test_without_the_extra_it_says_what_to_install(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "server", ("starlette", "not_a_module_of_this_world"))

    assert_refused(run("serve"), 2, "pip install 'holdfast[server]'")


@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli.main", "holdfast.server.embedded"])
def test_only_a_server_loads_what_a_server_needs(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {MODULES['server']!r} if name in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"
