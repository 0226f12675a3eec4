"""`process="auto"`: handlers that declare a timeout run where they can be killed, or the worker does not start."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from holdfast.worker.handlers import Pool
from tests.worker.execution import broken_job, jobs, renamed_job
from tests.worker.passing import opened, passing, until

ROOT = Path(__file__).parents[3]


async def on_loop() -> None: ...


def plain() -> None: ...


@pytest.mark.spec("10.3")
@pytest.mark.parametrize(
    ("function", "options", "pool"),
    [
        (plain, {"timeout": "30s"}, Pool.PROCESS),
        (plain, {}, Pool.THREAD),
        (plain, {"timeout": None}, Pool.THREAD),
        (plain, {"timeout": "30s", "process": False}, Pool.THREAD),
        (plain, {"timeout": "30s", "pool": "thread"}, Pool.THREAD),
        (plain, {"process": True}, Pool.PROCESS),
        (on_loop, {"timeout": "30s"}, Pool.LOOP),
    ],
)
def test_handlers_that_declare_a_timeout_and_are_not_async_run_in_processes(
    function: Callable[..., Any], options: dict[str, Any], pool: Pool
) -> None:
    worker = holdfast.Worker("memory://", process="auto")
    worker.handler("by-worker", **options)(function)
    worker.handler("by-handler", **{"process": "auto", **options})(function)
    assert {each.options.pool for each in worker.handlers.values()} == {pool}


def test_without_it_a_declared_timeout_changes_nothing() -> None:
    worker = holdfast.Worker("memory://")
    worker.handler("q", timeout="30s")(plain)
    [handler] = worker.handlers.values()
    assert (handler.options.pool, handler.options.timeout_ms) == (Pool.THREAD, 30_000)


@pytest.mark.parametrize("bad", [True, False, "yes", 1])
def test_a_worker_takes_no_other_value(bad: Any) -> None:
    with pytest.raises(holdfast.InvalidArgument, match='must be "auto"'):
        holdfast.Worker("memory://", process=bad)


@pytest.mark.spec("10.3")
def test_a_function_that_no_process_could_import_is_refused_at_once() -> None:
    worker = holdfast.Worker("memory://", process="auto")

    def inner() -> None: ...

    for function in (inner, lambda: None):
        with pytest.raises(holdfast.InvalidArgument, match="top level of a module"):
            worker.handler("q", timeout="1m")(function)
    assert worker.handlers == {}


@pytest.mark.slow
@pytest.mark.spec("10.3")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (broken_job.work, "this module does not like children"),
        (renamed_job.first, "its name belongs to another object"),
    ],
)
async def test_a_handler_that_no_process_can_import_is_refused_at_the_start(
    function: Callable[..., Any], says: str
) -> None:
    clock = ManualClock()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock, process="auto")
        started: list[holdfast.Worker] = []
        worker.on_start(started.append)
        worker.handler("other", timeout="1m")(jobs.work)
        worker.handler("q", timeout="1m")(function)
        [id] = await hf.queue("q").enqueue(1)

        with pytest.raises(holdfast.InvalidArgument, match=says) as refused:
            await worker.serve()

        assert refused.value.facts["field"] == "process"
        assert "default/q" in refused.value.message
        assert not worker.is_running
        assert started == []
        info = await hf.queue("q").get(id)
        assert (info.state, info.attempt) == (State.READY, 0)


@pytest.mark.slow
@pytest.mark.spec("10.3")
async def test_a_handler_that_hangs_is_killed_and_the_next_message_is_handled(tmp_path: Path) -> None:
    clock = ManualClock()
    outcomes: list[str] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock, process="auto")
        worker.handler("q", timeout="1m", retries=0)(jobs.work)
        worker.after(lambda message, outcome: outcomes.append(f"{outcome.kind} {outcome.error}"))
        async with worker:
            path = tmp_path / "pid"
            await hf.queue("q").enqueue([{"do": "hang", "path": str(path)}])
            await until(lambda: path.exists() and path.read_text().endswith("\n"))
            await passing(clock, 60_000)
            await hf.queue("q").enqueue({"do": "say", "path": str(tmp_path / "said")})
            await until(lambda: len(outcomes) == 2)

    assert outcomes == ["failed timeout: still running after 60 s", "succeeded None"]
    assert path.read_text().split()[0] != (tmp_path / "said").read_text().split()[0]


_PROGRAM = """
import holdfast
from tests.worker.execution import broken_job

worker = holdfast.Worker({data!r}, process="auto")
worker.handler("q", timeout="1m")(broken_job.work)
"""


@pytest.mark.slow
@pytest.mark.spec("10.3")
def test_the_command_says_which_handler_it_is_and_exits(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM.format(data=str(tmp_path / "data")))
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "program:worker"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 4, ran.stderr
    assert 'the handler work of default/q has process="auto", but no process can import it' in ran.stderr
    assert "RuntimeError: this module does not like children" in ran.stderr
    assert "Traceback" not in ran.stderr
