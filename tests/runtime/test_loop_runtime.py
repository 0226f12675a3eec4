"""The runtime of a server: calls on an event loop, its timers and its background work."""

import asyncio
import logging
import threading

import pytest

from holdfast.clock import SystemClock
from holdfast.runtime import LoopRuntime, ThreadRuntime, sleep_until
from holdfast.runtime import loop as runtime_module
from holdfast.testing import ManualClock

# Long enough for any machine; only a failure waits for it.
PATIENCE_S = 30.0


class Boom(Exception):
    pass


async def test_on_a_loop_a_ticket_is_a_future_of_that_loop() -> None:
    runtime = LoopRuntime(ManualClock(), ManualClock())
    ticket = runtime.ticket()
    asyncio.get_running_loop().call_soon(ticket.set_result, "here")
    assert await ticket == "here"
    await runtime.aclose()


async def test_on_a_loop_spawned_work_runs_and_close_waits_for_it() -> None:
    runtime = LoopRuntime(ManualClock(), ManualClock())
    ticket, steps = runtime.ticket(), []

    async def nested() -> None:
        steps.append("nested")

    async def background() -> None:
        steps.append(await ticket)
        runtime.spawn(nested())

    runtime.spawn(background())
    closing = asyncio.create_task(runtime.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    ticket.set_result("ended")
    await closing
    assert steps == ["ended", "nested"]


async def test_on_a_loop_no_caller_s_cancellation_reaches_spawned_work() -> None:
    runtime = LoopRuntime(ManualClock(), ManualClock())
    ticket, steps = runtime.ticket(), []

    async def background() -> None:
        steps.append(await ticket)

    async def caller() -> None:
        runtime.spawn(background())
        await asyncio.Event().wait()

    calling = asyncio.create_task(caller())
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    ticket.set_result("ended")
    await runtime.aclose()
    assert steps == ["ended"]


async def test_on_a_loop_an_error_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    runtime = LoopRuntime(ManualClock(), ManualClock())

    async def fails() -> None:
        raise Boom("lost?")

    with caplog.at_level(logging.ERROR, "holdfast"):
        runtime.spawn(fails())
        await runtime.aclose()
        await asyncio.sleep(0)
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)


async def test_on_a_loop_a_timer_rings_at_its_time_or_not_when_cancelled() -> None:
    clock = ManualClock()
    runtime = LoopRuntime(clock, clock)
    sleeping = asyncio.create_task(sleep_until(runtime, clock.now_ms() + 1_000))
    await asyncio.sleep(0)
    runtime.call_at(clock.now_ms() + 10, lambda: pytest.fail("it was cancelled")).cancel()
    clock.advance(999)
    await asyncio.sleep(0)
    assert not sleeping.done()
    clock.advance(1)
    await asyncio.wait_for(sleeping, PATIENCE_S)
    await runtime.aclose()


async def test_on_a_loop_a_sleeper_may_be_cancelled_at_the_moment_of_its_timer() -> None:
    clock = ManualClock()
    runtime = LoopRuntime(clock, clock)
    sleeping = asyncio.create_task(sleep_until(runtime, clock.now_ms() + 1_000))
    await asyncio.sleep(0)
    sleeping.cancel()
    clock.advance(1_000)
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await runtime.aclose()


async def test_on_a_loop_without_an_alarm_the_loop_keeps_time_and_is_never_early() -> None:
    clock = SystemClock()
    runtime = LoopRuntime(clock)
    at_ms = clock.now_ms() + 10
    await asyncio.wait_for(sleep_until(runtime, at_ms), PATIENCE_S)
    assert clock.now_ms() >= at_ms
    await runtime.aclose()


async def test_on_a_loop_a_cancelled_sleep_takes_its_timer_with_it() -> None:
    clock = ManualClock()
    runtime = LoopRuntime(clock, clock)
    sleeping = asyncio.create_task(sleep_until(runtime, clock.now_ms() + 10))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    # A timer left behind would settle a cancelled ticket, which raises.
    clock.advance(10)
    await runtime.aclose()


async def test_on_a_loop_offloaded_work_answers_or_raises_from_another_thread() -> None:
    runtime = LoopRuntime(ManualClock(), ManualClock())

    def fails() -> None:
        raise Boom

    assert await runtime.offload(threading.get_ident) != threading.get_ident()
    with pytest.raises(Boom):
        await runtime.offload(fails)
    order: list[int] = []
    for ticket in [runtime.offload(lambda at=at: order.append(at)) for at in range(50)]:
        await ticket
    assert order == list(range(50))
    await runtime.aclose()
    assert not any(thread.name.startswith("holdfast-offload") for thread in threading.enumerate())


def test_work_interrupted_by_ctrl_c_does_not_keep_a_runtime_from_closing() -> None:
    runtime = ThreadRuntime(SystemClock())

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def spawn() -> None:
        runtime.spawn(interrupted())

    with pytest.raises(KeyboardInterrupt):
        runtime.run(spawn())
    runtime.close()


async def test_a_timer_further_ahead_than_the_loop_waits_at_once_rings_at_its_time_alone() -> None:
    clock = ManualClock()
    runtime = LoopRuntime(clock)
    rang: list[int] = []
    timer = runtime.call_at(clock.now_ms() + 30 * 86_400_000, lambda: rang.append(clock.now_ms()))
    assert isinstance(timer, runtime_module._LoopTimer)
    timer._check()  # as the loop does after its longest wait
    assert rang == []
    clock.advance(30 * 86_400_000)
    timer._check()
    assert rang == [clock.now_ms()]
    timer.cancel()
