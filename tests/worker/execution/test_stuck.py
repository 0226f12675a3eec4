"""Threads that outlive their timeout: replaced up to a bound, and beyond it the worker stops in order."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from tests.worker.passing import PATIENCE_S, opened, passing, until


class Trap:
    """A plain handler that hangs until it is released, whatever its timeout."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = threading.Event()

    def handle(self, what: str) -> None:
        self.begun += 1
        if what == "hang":
            self.let_go.wait(PATIENCE_S)


@pytest.fixture
def trap() -> Any:
    trap = Trap()
    yield trap
    trap.let_go.set()


def stuck(worker: holdfast.Worker) -> int:
    return worker.stats()[0].stuck_threads


@pytest.mark.spec("10.3")
async def test_a_thread_past_its_timeout_is_counted_logged_with_its_stack_and_replaced(
    clock: ManualClock, trap: Trap, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[str] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=1, timeout="1m", retries=0)(trap.handle)
        worker.after(lambda message, outcome: outcomes.append(f"{message.json()} {outcome.kind}"))
        await hf.queue("q").enqueue(["hang", "pass"])
        async with worker:
            await until(lambda: trap.begun == 1)
            await passing(clock, 60_000)
            await until(lambda: len(outcomes) == 2)
            assert outcomes == ["hang failed", "pass succeeded"]
            assert stuck(worker) == 1
            [logged] = [each for each in caplog.records if "handler_still_running" in each.getMessage()]
            assert "self.let_go.wait(PATIENCE_S)" in logged.getMessage()
            trap.let_go.set()
            await until(lambda: stuck(worker) == 0)
            assert worker.stats()[0].free == 1


async def test_a_thread_that_ends_later_gives_its_place_back(clock: ManualClock, trap: Trap) -> None:
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=1, timeout="1m", retries=0, max_stuck_threads=1)(trap.handle)
        async with worker:
            for round in (1, 2, 3):
                await hf.queue("q").enqueue("hang")
                await until(lambda round=round: trap.begun == round)  # type: ignore[misc]  # bound at once
                await passing(clock, 60_000)
                assert stuck(worker) == 1
                trap.let_go.set()
                await until(lambda: stuck(worker) == 0)
                trap.let_go.clear()
            assert worker.is_running


@pytest.mark.spec("10.3")
async def test_a_worker_with_too_many_stuck_threads_releases_what_it_holds_and_raises_worker_stuck(
    clock: ManualClock, trap: Trap
) -> None:
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock, grace="10s")
        worker.handler("q", concurrency=2, timeout="1m", retries=0, max_stuck_threads=1)(trap.handle)

        @worker.handler("other")
        async def wait() -> None:
            await asyncio.Event().wait()

        await hf.queue("q").enqueue(["hang", "hang"])
        [held] = await hf.queue("other").enqueue(1)
        serving = asyncio.ensure_future(worker.serve())
        await until(lambda: trap.begun == 2)
        await passing(clock, 60_000)
        [late] = await hf.queue("q").enqueue("pass")
        await passing(clock, 30_000)
        with pytest.raises(holdfast.WorkerStuck, match="max_stuck_threads is 1") as raised:
            await asyncio.wait_for(serving, PATIENCE_S)
        assert (raised.value.code, raised.value.facts["stuck_threads"]) == ("worker_stuck", 2)
        info = await hf.queue("other").get(held)
        assert (info.state, info.releases, info.failures) == (State.READY, 1, 0)
        assert (await hf.queue("q").get(late)).attempt == 0


async def test_a_handler_that_hangs_while_the_worker_stops_is_not_stuck(clock: ManualClock, trap: Trap) -> None:
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", timeout=None, max_stuck_threads=0)(trap.handle)
        await hf.queue("q").enqueue("hang")
        serving = asyncio.ensure_future(worker.serve())
        await until(lambda: trap.begun == 1)
        worker.stop(now=True)
        await passing(clock, 10_000)
        await asyncio.wait_for(serving, PATIENCE_S)


@pytest.mark.parametrize("bad", [-1, 1_001, "many", True])
def test_a_bound_that_is_no_number_of_threads_is_refused(bad: Any) -> None:
    worker = holdfast.Worker("memory://")
    with pytest.raises(holdfast.InvalidArgument, match="max_stuck_threads"):
        worker.handler("q", max_stuck_threads=bad)(lambda: None)


# In a separate process: the provider of a process's metrics can be set once.
_MEASURED = """
import threading, time
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import holdfast

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
worker = holdfast.Worker("memory://")

@worker.handler("q", tenant="acme", timeout="10ms", retries=0)
def hang() -> None:
    threading.Event().wait()

@worker.on_start
async def feed(worker):
    await worker.client.queue("q", tenant="acme").enqueue(1)

def points():
    data = reader.get_metrics_data()
    every = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return [(each.name, dict(point.attributes), point.value) for each in every for point in each.data.data_points]

def watch():
    while not any(value for _, _, value in points()):
        time.sleep(0.005)
    print(points())
    worker.stop()

threading.Thread(target=watch, daemon=True).start()
worker.run()
"""


@pytest.mark.slow
def test_stuck_threads_are_an_opentelemetry_gauge() -> None:
    ran = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, timeout=120, check=False)

    attributes = {"holdfast.tenant": "acme", "messaging.destination.name": "q"}
    assert (ran.returncode, ran.stdout.strip()) == (0, str([("holdfast.worker.stuck_threads", attributes, 1)])), ran
