"""A coroutine whose first steps were run by hand continues as if it had been awaited."""

import asyncio

import pytest

from holdfast.doors.sockets.steps import RemainingSteps, StepsDone, begin


async def at_once() -> int:
    return 7


async def test_what_need_not_wait_is_done_in_its_first_step() -> None:
    begun = begin(at_once())
    assert isinstance(begun, StepsDone)
    assert begun.value == 7


async def test_what_waits_continues_with_what_it_waited_for() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        await first.wait()
        await second.wait()
        return 7

    begun = begin(work())
    assert isinstance(begun, RemainingSteps)
    first.set()
    asyncio.get_running_loop().call_soon(second.set)
    assert await begun == 7


async def test_a_cancellation_reaches_what_waits_and_is_raised() -> None:
    has_let_go = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_let_go.set()

    begun = begin(work())
    assert isinstance(begun, RemainingSteps)
    task = asyncio.create_task(begun.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_let_go.is_set()


async def test_what_outlives_a_cancellation_may_wait_again_be_cancelled_again_and_end_well() -> None:
    async def work() -> int:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return 7

    begun = begin(work())
    assert isinstance(begun, RemainingSteps)
    task = asyncio.create_task(begun.wait())
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    assert await task == 7
