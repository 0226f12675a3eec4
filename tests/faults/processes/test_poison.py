"""A message that kills its handlers becomes a dead letter with the reason, and delays no other message (T15)."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import ManualClock
from tests.faults.processes import poison
from tests.server.served import Served
from tests.worker.passing import opened, passing, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
HANG_S = 60


@pytest.mark.parametrize("how", ["exit", "segfault", "killed for its memory"])
def test_a_message_that_kills_its_worker_is_tried_as_often_as_its_budget_says_and_then_kept(
    tmp_path: Path, how: str
) -> None:
    """The handler shares the worker's process, which is started again each time, as an init system would."""
    with Served("--data", tmp_path / "data") as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        q.set_policy(max_retries=2)
        [poisoned] = q.enqueue(how)
        q.enqueue(["fine"] * 3)
        starts = 0
        deadline = time.monotonic() + HANG_S
        while (stats := q.stats()).ready or stats.delayed or stats.in_flight:
            assert time.monotonic() < deadline, stats
            starts += 1
            _run_worker(served.url, lambda: bool(q.stats().ready + q.stats().delayed + q.stats().in_flight))
        info = q.get(poisoned)
        assert (info.state, info.attempt, info.expiries) == ("failed", 3, 3)
        assert info.reason == "lease_expired"
        assert [each.id for each in q.list("failed")] == [poisoned]
        assert starts >= 3


def _run_worker(url: str, is_wanted: Callable[[], bool]) -> None:
    """Until it dies, or nothing is left for it."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.processes.poison", url], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        while worker.poll() is None and is_wanted():
            time.sleep(0.02)
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("killed for its memory", "the handler's process died: killed by SIGKILL"),
        ("memory limit", "MemoryError"),
    ],
)
async def test_a_handler_s_process_that_runs_out_of_memory_counts_each_try_and_names_the_reason(
    how: str, error: str
) -> None:
    clock = ManualClock()
    async with opened(clock) as hf:
        q = hf.queue("q")
        await q.set_policy(backoff_base_ms=1, backoff_cap_ms=1)
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", process=True, lease="30s", retries=2)(poison.work)
        outcomes = []
        worker.after(lambda message, outcome: outcomes.append((message.json(), outcome)))
        [id] = await q.enqueue(how)
        async with worker:
            for tries in range(1, 4):
                await until(lambda tries=tries: len(outcomes) >= tries)
                await passing(clock, 10)  # the next try is due
            await q.enqueue("fine")
            await until(lambda: len(outcomes) == 4)
        info = await q.get(id)
        assert (info.state, info.attempt, info.failures) == ("failed", 3, 3)
        assert error in (info.last_error or "")
        assert [(name, outcome.kind) for name, outcome in outcomes] == [(how, "retried")] * 2 + [
            (how, "failed"),
            ("fine", "succeeded"),
        ]
