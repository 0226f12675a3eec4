import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime, Runtime, ThreadRuntime
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices
from holdfast.testing import ManualClock

REF = QueueRef("acme", "mail")


class Told(LoopDriver):
    """A driver that keeps the notices for its listener."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[QueueRef, int]] = []
        self.when_told: Callable[[], None] = lambda: None

    def _report(self, notices: Notices) -> None:
        self.told.append(notices.ready_at)
        self.when_told()


class Part:
    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self.gate: asyncio.Event | None = None

    @on_driver
    async def task(self) -> object:
        return asyncio.current_task()

    @on_driver
    async def nested(self) -> bool:
        return await self.task() is asyncio.current_task()

    @on_driver_with_notices
    async def change(self, notices: Notices, at_ms: int = 1) -> int:
        if self.gate is not None:
            await self.gate.wait()
        notices.ready(REF, at_ms)
        return at_ms

    @on_driver
    async def change_within(self) -> int:
        return await self.change(7)


async def nothing() -> None:
    pass


def driven_by_threads(check: Callable[[Told, Part], Awaitable[None]]) -> None:
    runtime = ThreadRuntime(ManualClock())

    async def run() -> None:
        driver = opened(runtime)
        await check(driver, Part(driver))

    try:
        runtime.run(run())
    finally:
        runtime.close()


async def driven_by_the_loop(check: Callable[[Told, Part], Awaitable[None]]) -> None:
    driver = opened(LoopRuntime(ManualClock()))
    await check(driver, Part(driver))


def opened(runtime: Runtime) -> Told:
    driver = Told()
    driver.open(LoopBridge(runtime))
    return driver


async def calls_and_changes(driver: Told, part: Part) -> None:
    assert await part.nested(), "a call of the driver's own work runs directly"
    assert await part.change(at_ms=3) == 3
    assert driver.told == [{REF: 3}]
    assert await part.change_within() == 7
    assert driver.told == [{REF: 3}, {REF: 7}]

    seen: list[bool] = []

    async def last() -> None:
        seen.append(await part.nested())

    await driver.close(last())
    assert seen == [True], "closing still calls parts"
    with pytest.raises(StoreUnavailable):
        await part.nested()
    with pytest.raises(StoreUnavailable):
        await part.change()


async def test_a_parts_methods_enter_the_loop_once_and_are_refused_after_closing() -> None:
    await driven_by_the_loop(calls_and_changes)


def test_a_parts_methods_enter_a_loop_in_a_thread_once_and_are_refused_after_closing() -> None:
    driven_by_threads(calls_and_changes)


async def test_notices_are_delivered_even_if_the_caller_left() -> None:
    async def check(driver: Told, part: Part) -> None:
        part.gate = asyncio.Event()
        caller = asyncio.create_task(part.change())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert driver.told == []
        part.gate.set()
        await driver.close(nothing())
        assert driver.told == [{REF: 1}]

    await driven_by_the_loop(check)


@pytest.mark.parametrize("change", [Part.change, Part.change_within])
async def test_a_task_that_the_listener_starts_is_a_caller_again(change: Callable[[Part], Awaitable[int]]) -> None:
    async def check(driver: Told, part: Part) -> None:
        started: list[asyncio.Task[object]] = []
        driver.when_told = lambda: started.append(asyncio.create_task(part.task()))
        await change(part)
        assert await started[0] is not started[0], "its cancellation would reach the store's work"
        await driver.close(nothing())

    await driven_by_the_loop(check)
