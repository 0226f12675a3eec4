"""Background work, timers and work on another thread, in the runtime on threads."""

import asyncio
import logging
import threading

import pytest

from holdfast.clock import SystemClock
from holdfast.runtime import LoopRuntime, ThreadRuntime, sleep_until
from holdfast.testing import ManualClock
from tests.runtime.threads import PATIENCE_S, Boom, OtherThread, settle

# --- ThreadRuntime: background work ------------------------------------------------------------------------------


def test_spawned_work_has_run_before_the_call_that_spawned_it_returns(runtime: ThreadRuntime) -> None:
    ran: list[str] = []

    async def nested() -> None:
        ran.append("nested")

    async def background() -> None:
        ran.append("background")
        runtime.spawn(nested())

    async def work() -> None:
        runtime.spawn(background())
        ran.append("call")

    runtime.run(work())
    assert ran == ["call", "background", "nested"]


def test_spawned_work_is_run_even_if_the_call_fails(runtime: ThreadRuntime) -> None:
    ran: list[str] = []

    async def background() -> None:
        ran.append("background")

    async def work() -> None:
        runtime.spawn(background())
        raise Boom

    with pytest.raises(Boom):
        runtime.run(work())
    assert ran == ["background"]


def test_spawned_work_that_waits_continues_when_its_ticket_is_settled(runtime: ThreadRuntime) -> None:
    ticket = runtime.ticket()
    heard: list[object] = []

    async def background() -> None:
        heard.append(await ticket)
        heard.append(await ticket)

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    assert heard == []
    runtime.run(settle(ticket, "news"))
    assert heard == ["news", "news"]


def test_an_error_in_the_background_is_logged_and_the_rest_continues(
    runtime: ThreadRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    async def fails() -> None:
        raise Boom("lost?")

    async def background() -> None:
        ran.append("ran")

    async def work() -> str:
        runtime.spawn(fails())
        runtime.spawn(background())
        return "answered"

    with caplog.at_level(logging.ERROR, "holdfast"):
        assert runtime.run(work()) == "answered"
    assert ran == ["ran"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)


def test_close_waits_for_background_work() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    ticket, steps = runtime.ticket(), []

    async def background() -> None:
        steps.append("began")
        steps.append(await ticket)

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    closing = OtherThread(runtime.close)
    assert closing.is_running()
    runtime.run(settle(ticket, "ended"))
    closing.join()
    assert steps == ["began", "ended"]


def test_work_spawned_outside_of_any_call_is_run_by_close_at_the_latest() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    ran: list[str] = []

    async def background() -> None:
        ran.append("ran")

    runtime.spawn(background())
    runtime.close()
    assert ran == ["ran"]


# --- ThreadRuntime: timers and other threads ---------------------------------------------------------------------


def test_a_timer_wakes_a_call_that_sleeps_until_its_time() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    is_waiting = threading.Event()

    async def work() -> int:
        is_waiting.set()
        await sleep_until(runtime, clock.now_ms() + 1_000)
        return clock.now_ms()

    start_ms = clock.now_ms()
    waiting = OtherThread(lambda: runtime.run(work()))
    assert is_waiting.wait(PATIENCE_S)
    # Under the lock: the call is then past setting its timer.
    runtime.run(settle(runtime.ticket(), None))
    clock.advance(999)
    assert waiting.is_running()
    clock.advance(1)
    assert waiting.join() == start_ms + 1_000
    runtime.close()


def test_without_an_alarm_of_its_own_a_runtime_keeps_real_time() -> None:
    clock = SystemClock()
    runtime = ThreadRuntime(clock)

    async def work() -> int:
        at_ms = clock.now_ms() + 10
        await sleep_until(runtime, at_ms)
        return clock.now_ms() - at_ms

    assert runtime.run(work()) >= 0
    runtime.close()
    assert not any(thread.name == "holdfast-timers" for thread in threading.enumerate())


def test_a_timer_s_callback_runs_background_work_as_a_step_of_its_own() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    ran: list[str] = []

    async def background() -> None:
        ran.append("background")

    runtime.call_at(clock.now_ms() + 5, lambda: runtime.spawn(background()))
    runtime.call_at(clock.now_ms() + 5, lambda: ran.append("cancelled")).cancel()
    clock.advance(5)
    assert ran == ["background"]
    runtime.close()


def test_offloaded_work_runs_on_another_thread_and_answers() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())

    async def work() -> tuple[int, int]:
        elsewhere = await runtime.offload(threading.get_ident)
        return elsewhere, threading.get_ident()

    elsewhere, here = runtime.run(work())
    assert here == threading.get_ident() != elsewhere
    runtime.close()
    assert not any(thread.name.startswith("holdfast-offload") for thread in threading.enumerate())


def test_an_error_of_offloaded_work_is_raised_where_it_is_awaited() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())

    def fails() -> None:
        raise Boom

    async def work() -> str:
        try:
            await runtime.offload(fails)
        except Boom:
            return "caught"
        return "missed"

    assert runtime.run(work()) == "caught"
    runtime.close()


def test_offloaded_calls_run_one_after_the_other() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    order: list[int] = []

    async def work() -> None:
        for ticket in [runtime.offload(lambda at=at: order.append(at)) for at in range(50)]:
            await ticket

    runtime.run(work())
    assert order == list(range(50))
    runtime.close()


def test_a_blocked_thread_delays_no_other_thread() -> None:
    async def run() -> None:
        runtime = LoopRuntime(ManualClock())
        gate = threading.Event()
        held = [runtime.offload(gate.wait, thread=1), runtime.offload_long(gate.wait, thread=1)]
        assert await runtime.offload(lambda: "free", thread=2) == "free"
        assert await runtime.offload_long(lambda: "free", thread=2) == "free"
        gate.set()
        for each in held:
            await each
        await runtime.aclose()

    asyncio.run(run())


def test_a_call_that_steps_aside_lets_other_calls_continue() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    is_aside, may_go_on = threading.Event(), threading.Event()

    def block() -> str:
        is_aside.set()
        assert may_go_on.wait(PATIENCE_S)
        return threading.current_thread().name

    async def run_unlocked() -> str:
        assert runtime.may_run_unlocked
        return runtime.run_unlocked(block)

    async def other() -> bool:
        return runtime.may_run_unlocked

    def call() -> tuple[str, str]:
        return runtime.run(run_unlocked()), threading.current_thread().name

    aside = OtherThread(call)
    assert is_aside.wait(PATIENCE_S)
    assert runtime.run(other())
    assert aside.is_running()
    may_go_on.set()
    ran_on, called_on = aside.join()
    assert ran_on == called_on
    runtime.close()


def test_background_work_continues_while_the_call_that_spawned_it_steps_aside() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    ran: list[bool] = []

    async def background() -> None:
        ran.append(runtime.may_run_unlocked)

    async def work() -> list[bool]:
        runtime.spawn(background())
        return runtime.run_unlocked(lambda: list(ran))

    assert runtime.run(work()) == [False]
    runtime.close()


def test_an_error_of_a_function_that_runs_aside_is_raised_in_its_call() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())

    def fail() -> None:
        raise Boom

    async def work() -> None:
        runtime.run_unlocked(fail)

    with pytest.raises(Boom):
        runtime.run(work())
    assert runtime.run(settle(runtime.ticket(), None)) is None
    runtime.close()


def test_long_work_keeps_no_other_offloaded_work_waiting() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    may_end = threading.Event()

    async def work() -> bool:
        long = runtime.offload_long(lambda: may_end.wait(PATIENCE_S))
        await runtime.offload(may_end.set)
        return await long

    assert runtime.run(work())
    runtime.close()


def test_background_work_may_offload_and_close_waits_for_it() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    may_end, done = threading.Event(), []

    async def background() -> None:
        done.append(await runtime.offload(lambda: may_end.wait(PATIENCE_S)))

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    closing = OtherThread(runtime.close)
    assert closing.is_running()
    may_end.set()
    closing.join()
    assert done == [True]
