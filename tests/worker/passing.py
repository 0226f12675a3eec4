"""Time for workers in tests: moved by hand, and the loop let run in between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.errors import StoreUnavailable
from holdfast.server.embedded import open_on_loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock, with_faults

PATIENCE_S = 30


async def turns(number: int = 100) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def passing(clock: ManualClock, ms: int) -> None:
    """Let time pass, each alarm at its own instant and its consequences before the next."""
    await turns()
    end = clock.now_ms() + ms
    while (at_ms := clock.next_alarm_at()) is not None and at_ms <= end:
        clock.advance(max(at_ms - clock.now_ms(), 0))
        await turns()
    clock.advance(end - clock.now_ms())
    await turns()


async def until(is_so: Callable[[], bool], clock: ManualClock | None = None, step_ms: int = 1_000) -> None:
    """For what threads, processes and servers do in their own time. A clock that is given moves on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            if clock is not None:
                clock.advance(step_ms)
            await asyncio.sleep(0.001)


class Outage:
    """A store whose calls, or some of them, fail while it is down."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls: frozenset[str] | None = None
        self.asked: list[str] = []

    def begin(self, *calls: str, error: Exception | None = None) -> None:
        self.error = error or StoreUnavailable("the cable is cut")
        self.calls = frozenset(calls) or None

    def end(self) -> None:
        self.error = None

    async def before(self, call: str) -> None:
        self.asked.append(call)
        if self.error is not None and (self.calls is None or call in self.calls):
            raise self.error

    async def after(self, call: str) -> None: ...


@asynccontextmanager
async def opened(clock: ManualClock, outage: Outage | None = None) -> AsyncIterator[AsyncHoldfast]:
    store = MemoryStore(SeededDice(0), 86_400_000)
    async with open_on_loop(
        "memory://", {}, clock=clock, store=store if outage is None else with_faults(store, outage)
    ) as hf:
        yield hf
