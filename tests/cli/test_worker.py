"""`holdfast worker` with handlers that get stuck: it starts its own process again."""

import os
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


def run_worker(here: Path, before: str = "pass") -> "subprocess.CompletedProcess[str]":
    (here / "jobs.py").write_text(_JOBS.format(here=str(here), before=before))
    with holdfast.open(str(here / "data")) as hf:
        hf.queue("jobs").enqueue({"n": 1})
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "jobs:worker"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_worker_with_too_many_stuck_threads_starts_its_process_again(tmp_path: Path) -> None:
    ran = run_worker(tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "done").exists()
    first, second = (tmp_path / "starts").read_text().split()
    assert first == second  # the process is replaced in place, so a service manager keeps track of it
    assert "threading.Event().wait()" in ran.stderr
    assert "starting again" in ran.stderr
    with holdfast.open(str(tmp_path / "data")) as hf:
        stats = hf.queue("jobs").stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (0, 0, 0, 0)


def test_a_worker_that_cannot_start_again_says_so_and_exits_75(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, before="sys.executable = '/nowhere/python'")

    assert ran.returncode == 75, ran.stderr
    assert "cannot start /nowhere/python again" in ran.stderr
    assert not (tmp_path / "done").exists()
    with holdfast.open(str(tmp_path / "data")) as hf:
        stats = hf.queue("jobs").stats()
        assert stats.ready + stats.delayed == 1
