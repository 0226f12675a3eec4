import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.cli.main import main
from tests.server.served import urls_in


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object it answered."""
        [line] = self.lines
        return line

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """A command sets up the loggers of its process, which here is the tests' own."""
    log = logging.getLogger("holdfast")
    before = log.level, log.propagate, list(log.handlers)
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers = before[1], before[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process, as the script does."""

    def run(*arguments: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the caller's, and nothing left in its directory."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An embedded store that every command finds by HOLDFAST_URL."""
    path = str(tmp_path / "store")
    with holdfast.open(path, durability="os"):
        pass
    monkeypatch.setenv("HOLDFAST_URL", path)
    monkeypatch.setenv("HOLDFAST_DURABILITY", "os")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return path


@pytest.fixture
def holdfast_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells of the tests find the command."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def shell(store: str, holdfast_on_path: None) -> Callable[..., Ran]:
    def shell(script: str, *arguments: str) -> Ran:
        ran = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return shell


@pytest.fixture
def server(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A separate server, which every command finds by HOLDFAST_URL."""
    program = [sys.executable, "-u", "-m", "holdfast", "serve", "--store", "memory://", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        try:
            assert serving.stdout is not None
            url = urls_in(serving.stdout.readline())["url"]
            monkeypatch.setenv("HOLDFAST_URL", url)
            yield url
        finally:
            serving.terminate()


def assert_refused(ran: Ran, code: int, *words: str) -> None:
    """One line on stderr that says what is wrong, and nothing on stdout."""
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("holdfast: "), ran.err
    assert ran.err.count("\n") == 1
    assert all(word in ran.err for word in words), ran.err


@pytest.fixture
def free_port() -> int:
    """One on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
