"""Signal handlers of an event loop that can be undone."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.signals import LoopSignals
from holdfast.worker.runner import stopping_on_signals


@pytest.fixture(params=["ignored", "own handler"])
def before(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The handler that a program had for SIGINT before it called Holdfast."""
    own = {"ignored": signal.SIG_IGN, "own handler": lambda _number, _frame: None}
    replaced = signal.signal(signal.SIGINT, own[request.param])
    yield own[request.param]
    signal.signal(signal.SIGINT, replaced)


async def test_restoring_brings_back_the_handler_that_was_there_before(before: Any) -> None:
    signals, asked = LoopSignals(asyncio.get_running_loop()), asyncio.Event()
    signals.handle(signal.SIGINT, lambda: None)
    signals.handle(signal.SIGINT, asked.set)
    os.kill(os.getpid(), signal.SIGINT)
    await asked.wait()

    signals.restore()

    assert signal.getsignal(signal.SIGINT) is before


async def test_a_worker_that_has_ended_leaves_the_signals_as_they_were(before: Any) -> None:
    with stopping_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_programs_that_tests_start_receive_sigint_even_if_the_run_ignores_it(tmp_path: Any) -> None:
    (tmp_path / "test_child.py").write_text(
        "import subprocess, sys\n"
        "def test_child():\n"
        "    said = subprocess.run([sys.executable, '-c', 'import signal; print(signal.getsignal(2))'],"
        " capture_output=True, text=True)\n"
        "    assert 'default_int_handler' in said.stdout\n"
    )
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", ignoring, sys.executable, "-m", "pytest", "-p", "tests.conftest", tmp_path],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
