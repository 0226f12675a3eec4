"""Handlers in separate processes: however one ends, the worker continues."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.message import State
from holdfast.testing import HandlerTest, ManualClock
from holdfast.worker import load_target, run_target
from tests.worker.execution import broken_job, jobs
from tests.worker.passing import opened, passing, until

pytestmark = pytest.mark.slow


class Rig:
    """A worker whose one handler runs in processes."""

    def __init__(self, hf: AsyncHoldfast, clock: ManualClock) -> None:
        self.hf = hf
        self.clock = clock
        self.queue = hf.queue("q")
        self.outcomes: list[tuple[Any, holdfast.Outcome]] = []
        self.worker = holdfast.Worker(hf, clock=clock)
        self.worker.after(lambda message, outcome: self.outcomes.append((message.json(), outcome)))

    async def outcome(self, number: int = 1) -> holdfast.Outcome:
        await until(lambda: len(self.outcomes) >= number)
        return self.outcomes[number - 1][1]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock = ManualClock()
    async with opened(clock) as hf:
        rig = Rig(hf, clock)
        rig.worker.handler("q", process=True, retries=0, lease="30s", timeout="1m", state=True)(jobs.work)
        async with rig.worker:
            yield rig


@pytest.mark.spec("10.3")
async def test_a_process_is_used_again_and_reaches_its_message(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "said"
    await rig.queue.set_policy(keep_succeeded_ms=3_600_000)
    [first, _] = await rig.queue.enqueue([{"do": "say", "path": str(path)}] * 2)
    await rig.outcome(2)
    assert [each.kind for _, each in rig.outcomes] == ["succeeded", "succeeded"]
    lines = path.read_text().splitlines()
    assert len({line.split()[0] for line in lines}) == 1
    assert [line.split()[1:] for line in lines] == [["1", "1"]] * 2
    assert int(lines[0].split()[0]) != os.getpid()
    progress = (await rig.queue.get(first)).progress
    assert progress is not None
    assert (progress.percent, progress.text) == (50, "half")


@pytest.mark.parametrize(
    ("do", "error"),
    [
        ("raise", "ValueError: from the other side"),
        ("reject", "never"),
        ("exit", "SystemExit: 3"),
        ("leave", "the handler's process died: exit code 7"),
        ("crash", "the handler's process died: killed by SIGSEGV"),
    ],
)
async def test_however_it_ends_it_counts_as_a_failure_and_the_next_message_is_handled(
    rig: Rig, tmp_path: Path, do: str, error: str
) -> None:
    [id] = await rig.queue.enqueue({"do": do})
    outcome = await rig.outcome()
    assert (outcome.kind, outcome.error) == ("failed", error)
    info = await rig.queue.get(id)
    assert (info.state, info.failures, info.last_error) == (State.FAILED, 1, error)
    await rig.queue.enqueue({"do": "say", "path": str(tmp_path / "said")})
    assert (await rig.outcome(2)).kind == "succeeded"


async def test_a_bad_payload_is_refused_in_the_process(rig: Rig) -> None:
    [id] = await rig.queue.enqueue({"do": 7})
    assert (await rig.outcome()).kind == "failed"
    assert "$.do" in ((await rig.queue.get(id)).last_error or "")


async def test_a_handler_that_lost_its_lease_sees_it_in_its_message(rig: Rig) -> None:
    await rig.queue.enqueue({"do": "lose"})
    assert (await rig.outcome()).kind == "lost"


@pytest.mark.spec("10.3")
@pytest.mark.parametrize("do", ["hang", "sleep"])
async def test_a_process_past_its_time_is_killed(rig: Rig, tmp_path: Path, do: str) -> None:
    path = tmp_path / "pid"
    await rig.queue.enqueue({"do": do, "path": str(path)})
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    await passing(rig.clock, 60_000)
    outcome = await rig.outcome()
    assert (outcome.kind, outcome.error) == ("failed", "timeout: still running after 60 s")
    await until(lambda: is_gone(int(path.read_text())))


async def test_a_process_whose_lease_is_lost_is_killed(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    [id] = await rig.queue.enqueue({"do": "sleep", "path": str(path)})
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    await rig.queue.remove(id)
    await passing(rig.clock, 10_000)
    assert (await rig.outcome()).kind == "lost"
    await until(lambda: is_gone(int(path.read_text())))


async def test_a_stop_without_grace_kills_and_releases(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    [id] = await rig.queue.enqueue({"do": "sleep", "path": str(path)})
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    rig.worker.stop(now=True)
    await until(lambda: not rig.worker.is_running)
    assert is_gone(int(path.read_text()))
    info = await rig.queue.get(id)
    assert (info.state, info.failures, info.releases) == (State.READY, 0, 1)


async def test_a_handler_that_cannot_be_imported_there_fails_no_message(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", process=True)(broken_job.work)
        [id] = await hf.queue("q").enqueue(1)
        async with worker:
            await until(lambda: "restarts_in_s=0.25" in caplog.text)
        info = await hf.queue("q").get(id)
        assert (info.state, info.attempt, info.failures, info.releases) == (State.READY, 0, 0, 0)
    assert "this module does not like children" in caplog.text


async def test_under_test_a_process_handler_runs_inline(tmp_path: Path) -> None:
    worker = holdfast.Worker("memory://")
    worker.handler("q", process=True)(jobs.work)
    path = tmp_path / "said"
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", {"do": "say", "path": str(path)})
        await t.run()
        t.assert_acked(id)
    assert path.read_text() == f"{os.getpid()} 1 1\n"


# --- By name ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("10.10")
async def test_a_worker_is_run_by_its_name() -> None:
    await asyncio.to_thread(run_target, "tests.worker.execution.jobs:worker")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("tests.worker.execution.jobs", "is not a worker's name"),
        ("tests.worker.absent:worker", "was found neither"),
        ("tests.worker.execution.jobs:absent", "has no attribute"),
        ("tests.worker.execution.jobs:note", "not a holdfast.Worker"),
    ],
)
def test_a_name_of_no_worker_is_refused(target: str, says: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=says):
        load_target(target)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
