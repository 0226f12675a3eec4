"""Processes that take long to start: their start-up has a separate limit, and does not count against messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from tests.worker.execution import gated_job
from tests.worker.passing import PATIENCE_S, opened, passing, until

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Closed until the test makes the file: no process of the handler gets past its imports."""
    monkeypatch.setenv(gated_job.GATE, str(tmp_path / "gate"))
    return tmp_path / "gate"


@pytest.fixture
async def hf(clock: ManualClock) -> AsyncIterator[AsyncHoldfast]:
    async with opened(clock) as hf:
        yield hf


def make_worker(hf: AsyncHoldfast, clock: ManualClock) -> tuple[holdfast.Worker, list[str]]:
    worker = holdfast.Worker(hf, clock=clock)
    worker.handler("q", process=True, concurrency=2, retries=0, timeout="1s", startup_timeout="60s", lease="30s")(
        gated_job.work
    )
    outcomes: list[str] = []
    worker.after(lambda message, outcome: outcomes.append(f"{outcome.kind} {outcome.error}"))
    return worker, outcomes


async def passing_until(clock: ManualClock, is_so: Callable[[], bool]) -> None:
    """Let the clock pass while processes do their part in real time."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await passing(clock, 1_000)
            await asyncio.sleep(0.001)


async def claim_two(hf: AsyncHoldfast, gate: Path, tmp_path: Path) -> Path:
    """Let one process start and close the gate; then send it a message that keeps it busy, and another message.

    Both are claimed together, so the other message is held while a process starts for it. Return the file that ends the
    first handler.
    """
    gate.touch()
    await until(Path(f"{gate}.passed").exists)
    gate.unlink()
    busy = tmp_path / "busy"
    await hf.queue("q").enqueue([str(busy), ""])
    await until(Path(f"{busy}.begun").exists)
    return busy


async def test_no_message_is_claimed_before_a_process_has_started(
    hf: AsyncHoldfast, clock: ManualClock, gate: Path
) -> None:
    worker, outcomes = make_worker(hf, clock)
    [id] = await hf.queue("q").enqueue("")
    async with worker:
        await passing(clock, 30_000)
        assert (await hf.queue("q").get(id)).attempt == 0
        gate.touch()
        await until(lambda: bool(outcomes))
    assert outcomes == ["succeeded None"]


async def test_a_process_handlers_timeout_does_not_count_the_start_of_its_process(
    hf: AsyncHoldfast, clock: ManualClock, gate: Path, tmp_path: Path
) -> None:
    worker = holdfast.Worker(hf, clock=clock)
    # Long enough for the handler that is busy while the other's process starts.
    worker.handler("q", process=True, concurrency=2, retries=0, timeout="50s", startup_timeout="2m", lease="30s")(
        gated_job.work
    )
    outcomes: list[str] = []
    worker.after(lambda message, outcome: outcomes.append(f"{outcome.kind} {outcome.error}"))
    async with worker:
        busy = await claim_two(hf, gate, tmp_path)
        await passing(clock, 45_000)
        busy.touch()
        await until(lambda: len(outcomes) == 1)
        # The message's own process still starts, for longer than its timeout and its lease: both are kept waiting.
        await passing(clock, 45_000)
        [info] = await hf.queue("q").list()
        assert (info.state, info.attempt, info.expiries) == (State.IN_FLIGHT, 1, 0)
        gate.touch()
        await until(lambda: len(outcomes) == 2)
    assert outcomes == ["succeeded None"] * 2


async def test_a_process_that_does_not_start_in_its_time_costs_no_message_and_is_started_again_later(
    hf: AsyncHoldfast, clock: ManualClock, gate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker, outcomes = make_worker(hf, clock)
    [id] = await hf.queue("q").enqueue("")
    async with worker:
        await passing_until(clock, lambda: "restarts_in_s=0.25" in caplog.text)
        assert "did not start within 60 s" in caplog.text
        info = await hf.queue("q").get(id)
        assert (info.state, info.attempt, info.failures) == (State.READY, 0, 0)
        gate.touch()
        await passing(clock, 1_000)
        await until(lambda: bool(outcomes))
    assert outcomes == ["succeeded None"]


async def test_a_message_whose_process_does_not_start_in_its_time_is_released_uncounted(
    hf: AsyncHoldfast, clock: ManualClock, gate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = holdfast.Worker(hf, clock=clock)
    worker.handler("q", process=True, concurrency=2, retries=0, timeout=None, startup_timeout="5m", lease="30s")(
        gated_job.work
    )
    outcomes: list[str] = []
    worker.after(lambda message, outcome: outcomes.append(outcome.kind))
    async with worker:
        busy = await claim_two(hf, gate, tmp_path)
        try:
            # Its consumer says so a moment after it has released the message.
            await passing_until(clock, lambda: "released" in outcomes and "did not start within 300 s" in caplog.text)
        finally:  # the busy handler has no timeout: the worker would wait for it for ever
            gate.touch()
            busy.touch()
        await until(lambda: outcomes.count("succeeded") == 2)
        assert "failed" not in outcomes
