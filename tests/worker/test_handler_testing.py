"""The helper for tests of handlers, and the page that shows it."""

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import HandlerTest

PAGE = Path(__file__).parent.parent.parent / "docs" / "worker.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_pages_programs_run(block: str, tmp_path: Path) -> None:
    # The first is a worker for a server: it is read, not run.
    finished = subprocess.run(
        [sys.executable, "-c", block.replace("__main__", "a worker's own module")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.fixture
def worker() -> holdfast.Worker:
    return holdfast.Worker("memory://")


async def test_nothing_leaves_the_tests_own_thread(worker: holdfast.Worker) -> None:
    threads: set[int] = set()

    @worker.handler("q")
    def handle(number: int, message: holdfast.Message) -> None:
        message.progress(50)
        worker.blocking_client.queue("next").enqueue(number)
        threads.add(threading.get_ident())

    before = threading.active_count()
    async with HandlerTest(worker) as t:
        await t.enqueue("q", [1, 2, 3])
        assert await t.run() == 3
        t.assert_enqueued("next", 2)
        t.assert_enqueued("next", count=3)
        assert threading.active_count() == before
    assert threads == {threading.get_ident()}


async def test_assertions_say_what_happened_instead(worker: holdfast.Worker) -> None:
    @worker.handler("q", retries=0)
    async def handle(number: int) -> None:
        raise ValueError("no")

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        with pytest.raises(AssertionError, match="was not handled: call"):
            t.assert_acked(id)
        t.assert_not_handled(id)
        await t.run()
        with pytest.raises(AssertionError, match=r"it was failed \(ValueError: no\)"):
            t.assert_acked(id)
        with pytest.raises(AssertionError, match="with 'yes'"):
            t.assert_failed(id, "yes")
        with pytest.raises(AssertionError, match="was handled"):
            t.assert_not_handled(id)
        with pytest.raises(AssertionError, match=r"enqueued there: \[\]"):
            t.assert_enqueued("next", 1)


async def test_a_delayed_message_is_begun_when_its_time_comes(worker: holdfast.Worker) -> None:
    at: list[int] = []

    @worker.handler("q")
    async def handle() -> None:
        at.append(t.clock.now_ms())

    async with HandlerTest(worker) as t:
        began = t.clock.now_ms()
        await t.enqueue("q", 1, delay="10s")
        await t.enqueue("q", 1, delay="20s")
        await t.run_for("1m")
    assert at == [began + 10_000, began + 20_000]


async def test_handlers_that_are_still_at_work_are_given_up_at_the_end(worker: holdfast.Worker) -> None:
    ended: list[str] = []

    @worker.handler("q")
    async def handle() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async with HandlerTest(worker) as t:
        await t.enqueue("q", 1)
        await t.start()
    assert ended == ["cleaned up"]


async def test_the_same_worker_can_be_tested_again_from_the_start(worker: holdfast.Worker) -> None:
    @worker.handler("q")
    async def handle() -> None: ...

    for _ in range(2):
        async with HandlerTest(worker) as t:
            await t.enqueue("q", 1)
            assert await t.run() == 1
    with pytest.raises(holdfast.StoreUnavailable):
        _ = worker.client
