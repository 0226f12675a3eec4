"""A worker program whose claims are refused, against a real server: it starts again, says so, and recovers."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.server.served import Served

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def wait_for(is_so: Callable[[], bool], worker: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert worker.poll() is None, worker.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.spec("10.3")
def test_a_worker_starts_again_at_once_three_times_and_then_later_and_later_and_calls_its_hook(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()

    def said(what: str) -> list[dict[str, Any]]:
        lines = map(json.loads, log.read_text().splitlines())
        return [line for line in lines if what in line]

    # Without auto_create, a claim from a queue that does not exist is refused, and the others are not affected.
    with (
        Served("--data", tmp_path / "data", "--auto-create", "false", "--durability", "os") as served,
        holdfast.open(served.url) as hf,
    ):
        hf.queue("other").set_policy()
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.crashing_program", served.url, str(log)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for(lambda: len(said("crash")) >= 6, worker)
            hf.queue("other").enqueue(1)
            wait_for(lambda: len(said("handled")) == 1, worker)
            hf.queue("missing").set_policy()
            hf.queue("missing").enqueue(2)
            wait_for(lambda: len(said("handled")) == 2, worker)
            worker.terminate()
            _, errors = worker.communicate(timeout=PATIENCE_S)
        finally:
            worker.kill()
            worker.communicate()

    assert worker.returncode == 0, errors
    crashes = said("crash")
    assert {crash["queue"] for crash in crashes} == {"missing"}
    expected = [0, 0, 0, 0.25, 0.5, 1, 2, 4, 8][: len(crashes)]
    assert [(crash["crash"], crash["delay_s"]) for crash in crashes] == list(enumerate(expected, 1))
    for crash, following in pairwise(crashes):
        assert following["at_s"] - crash["at_s"] >= crash["delay_s"]
    assert [(each["handled"], each["queue"]) for each in said("handled")] == [(1, "other"), (2, "missing")]
    assert said("stopped")
