"""`holdfast worker` with handlers that get stuck: it starts its own process again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.slow

# The first start hangs in its handler, whatever the timeout; the second handles the message and stops.
_JOBS = """
import os, sys, threading
from pathlib import Path
import holdfast

here = Path({here!r})
worker = holdfast.Worker(str(here / "data"))
with (here / "starts").open("a") as file:
    file.write(f"{{os.getpid()}}\\n")

@worker.handler("jobs", timeout="100ms", retries=5, backoff="1ms", max_stuck_threads=0)
def work() -> None:
    if not (here / "hung").exists():
        (here / "hung").touch()
        {before}
        threading.Event().wait()
    (here / "done").touch()
    worker.stop()
"""


_BUSY = """
@worker.handler("busy")
async def busy() -> None:
    import asyncio
    await asyncio.Event().wait()
"""

COMMAND = [sys.executable, "-m", "holdfast", "worker", "jobs:worker"]


def prepare(here: Path, jobs: str) -> dict[str, str]:
    """Write the module and give each of its handlers a message; return the environment that finds it."""
    (here / "jobs.py").write_text(jobs)
    with holdfast.open(str(here / "data")) as hf:
        hf.queue("jobs").enqueue({"n": 1})
        hf.queue("busy").enqueue({"n": 1})
    return {**os.environ, "PYTHONPATH": str(here)}


def run_worker(here: Path, before: str = "pass") -> "subprocess.CompletedProcess[str]":
    env = prepare(here, _JOBS.format(here=str(here), before=before))
    return subprocess.run(COMMAND, cwd=here, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.spec("10.3")
def test_a_worker_with_too_many_stuck_threads_starts_its_process_again(tmp_path: Path) -> None:
    ran = run_worker(tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "done").exists()
    first, second = (tmp_path / "starts").read_text().split()
    assert first == second  # the process is replaced in place, so a service manager keeps track of it
    assert "threading.Event().wait()" in ran.stderr
    assert "; restarting" in ran.stderr
    with holdfast.open(str(tmp_path / "data")) as hf:
        stats = hf.queue("jobs").stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (0, 0, 0, 0)


def test_a_worker_that_cannot_start_again_says_so_and_exits_75(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, before="sys.executable = '/nowhere/python'")

    assert ran.returncode == 75, ran.stderr
    assert "cannot restart /nowhere/python" in ran.stderr
    assert not (tmp_path / "done").exists()
    with holdfast.open(str(tmp_path / "data")) as hf:
        stats = hf.queue("jobs").stats()
        assert stats.ready + stats.delayed == 1


def test_a_worker_that_is_told_to_end_does_not_start_again(tmp_path: Path) -> None:
    env = prepare(tmp_path, _JOBS.format(here=str(tmp_path), before="pass") + _BUSY)
    with subprocess.Popen(COMMAND, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        # Stuck, it waits for the busy handler. The first signal leaves it its grace, the second does not.
        for awaited in ("worker_stopping ", "signal_received signal=SIGTERM"):
            next(line for line in worker.stderr if awaited in line)
            worker.send_signal(signal.SIGTERM)
        assert "; restarting" not in worker.stderr.read()
        assert worker.wait(120) == 0
    assert len((tmp_path / "starts").read_text().split()) == 1
    with holdfast.open(str(tmp_path / "data")) as hf:
        assert hf.queue("busy").stats().ready == 1
