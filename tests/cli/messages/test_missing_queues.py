"""A command that would wait on a queue that does not exist says so, with the names that may have been meant."""

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast

Run = Callable[..., Any]

SIMILAR = "Existing queues with similar names: mail"


@pytest.fixture
def mail(request: pytest.FixtureRequest) -> None:
    """A store in which `mail` is, and `audit` in another tenant; embedded unless the test says otherwise."""
    with holdfast.open(request.getfixturevalue(getattr(request, "param", "store"))) as hf:
        hf.queue("mail").set_policy()
        hf.queue("audit", tenant="acme").set_policy()


@pytest.mark.usefixtures("mail")
@pytest.mark.parametrize("mail", ["store", "server"], indirect=True)
def test_dequeue_says_that_its_queue_does_not_exist(run: Run) -> None:
    at_once = run("dequeue", "mial", "--block", 0)
    assert (at_once.code, at_once.err) == (3, f"holdfast: queue default/mial does not exist. {SIMILAR}\n")

    waiting = run("dequeue", "mial", "--block", "1ms")
    assert waiting.code == 3
    assert waiting.err == f"holdfast: queue default/mial does not exist yet; waiting for its first message. {SIMILAR}\n"

    elsewhere = run("dequeue", "audit", "--block", 0, "--json")
    assert elsewhere.err.endswith("does not exist. A queue of that name exists in tenant acme\n")


@pytest.mark.usefixtures("mail")
def test_dequeue_says_nothing_of_a_queue_that_exists_or_when_told_to_be_quiet(run: Run) -> None:
    for arguments in (("mail", "--block", 0), ("mail", "--block", "1ms"), ("mial", "--block", 0, "--quiet")):
        ran = run("dequeue", *arguments)
        assert (ran.code, ran.err) == (3, "")


@pytest.mark.usefixtures("mail")
def test_tail_says_that_its_queue_does_not_exist(run: Run) -> None:
    ran = run("tail", "--queue", "mial", "--no-follow")

    assert (ran.code, ran.out, ran.err) == (0, "", f"holdfast: queue default/mial does not exist. {SIMILAR}\n")
    assert run("tail", "--queue", "mail", "--no-follow").err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("mail")
@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_worker_says_once_that_its_queue_does_not_exist(store: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "shop.py").write_text(
        "import holdfast\n"
        f"worker = holdfast.Worker({store!r})\n"
        "@worker.handler('mial')\n"
        "def handle(message: holdfast.Message) -> None: ...\n"
    )
    arguments = {"run": ["run", "mial", "--quiet", "--", "/bin/true"], "worker": ["worker", "shop:worker", "--quiet"]}
    program = [sys.executable, "-u", "-m", "holdfast", *arguments[command]]
    with subprocess.Popen(program, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        try:
            assert process.stderr is not None
            said = _line_of(process.stderr)
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=60)[1]
        finally:
            process.kill()

    assert (
        said
        == f"holdfast: queue_missing: queue default/mial does not exist yet; waiting for its first message. {SIMILAR}\n"
    )
    assert rest == b""


def _line_of(stream: Any) -> str:
    """Return its next line, within a minute."""
    with selectors.DefaultSelector() as ready:
        ready.register(stream, selectors.EVENT_READ)
        assert ready.select(60)
    return str(stream.readline().decode())
