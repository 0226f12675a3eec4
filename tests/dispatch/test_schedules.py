"""The scheduler: its timers, several schedulers on one store, and failing stores."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.dice import SeededDice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.polling import Polling
from holdfast.dispatch.schedules import FIRE_LIMIT, Scheduler
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, ScheduleChange, apply_change
from holdfast.runtime import LoopRuntime
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.values import DueSchedules
from holdfast.testing import HeldCalls, ManualClock, with_faults

REF = QueueRef("acme", "jobs")


class CountedStore(MemoryStore):
    """A memory store that counts the calls of `schedules.due`."""

    def __init__(self, *, pushes_wakeups: bool = True) -> None:
        super().__init__(SeededDice(1), 7 * 86_400_000)
        self.capabilities = replace(MemoryStore.capabilities, pushes_wakeups=pushes_wakeups)
        self.looks = 0
        due = self.schedules.due

        async def counted(limit: int, now_ms: int) -> DueSchedules:
            self.looks += 1
            return await due(limit, now_ms)

        self.schedules.due = counted  # type: ignore[method-assign]  # counts the calls


class Refusals:
    """Faults for a store: the named calls raise `StoreUnavailable`."""

    def __init__(self, *calls: str) -> None:
        self.calls = set(calls)

    async def before(self, call: str) -> None:
        if call in self.calls:
            raise StoreUnavailable("not now")

    async def after(self, call: str) -> None:
        pass


class Deaf:
    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        pass

    def stopped(self) -> None:
        pass

    def reopened(self) -> None:
        pass

    def lost(self, why: str) -> None:
        pass

    def deadline(self, at_ms: int) -> None:
        pass

    def scheduled(self, at_ms: int) -> None:
        pass


async def anybody(ref: QueueRef, drafts: list[Draft]) -> Any:
    return nullcontext()


class Bench:
    def __init__(self, store: Store, seen: Store | None = None) -> None:
        """`seen` is the store that the scheduler uses, such as one with faults."""
        self.clock = ManualClock()
        self.runtime = LoopRuntime(self.clock, self.clock)
        self.store = store
        self.scheduler = Scheduler(seen or store, self.runtime, anybody)

    async def open(self) -> None:
        dispatcher = Dispatcher(self.store, self.runtime, polling=Polling(max_consumers=100))
        sweeper = Sweeper(self.store, self.runtime)
        sweeper.close()
        await self.store.open(Wakeups(dispatcher, sweeper, self.scheduler), self.runtime)
        self.scheduler.start()
        await self.store.directory.create_queue(REF, self.clock.now_ms())

    async def put(self, name: str = "s", **change: Any) -> Schedule:
        given = ScheduleChange(**{"every_ms": 10_000, "message": Draft(payload=b"x"), **change})
        schedule = apply_change(name, None, given, self.clock.now_ms(), 1 << 20)
        assert await self.store.schedules.put(REF, None, schedule, self.clock.now_ms())
        return schedule

    async def pass_(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.settle()

    async def settle(self) -> None:
        """Run all tasks that can run. A timer that is due fires after a millisecond of the loop."""
        await asyncio.sleep(0.005)
        await self.runtime.idle()

    async def ready(self) -> int:
        return (await self.store.counts(*REF, self.clock.now_ms())).ready


async def opened(store: Store, seen: Store | None = None) -> AsyncIterator[Bench]:
    made = Bench(store, seen)
    await made.open()
    yield made
    made.scheduler.close()
    await made.runtime.aclose()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async for made in opened(CountedStore()):
        yield made


def looks(bench: Bench) -> int:
    assert isinstance(bench.store, CountedStore)
    return bench.store.looks


async def test_nobody_looks_while_nothing_is_due(bench: Bench) -> None:
    await bench.pass_(86_400_000)
    await bench.put()
    await bench.pass_(9_999)
    assert (looks(bench), await bench.ready()) == (0, 0)
    await bench.pass_(1)
    assert (looks(bench), await bench.ready()) == (1, 1)
    await bench.pass_(10_000)
    assert (looks(bench), await bench.ready()) == (2, 2)


async def test_an_earlier_tick_is_not_slept_through(bench: Bench) -> None:
    await bench.put("late", every_ms=60_000)
    await bench.put("soon", every_ms=5_000)
    await bench.pass_(5_000)
    assert await bench.ready() == 1


async def test_a_pass_fires_so_many_and_the_next_follows_at_once(bench: Bench) -> None:
    for number in range(FIRE_LIMIT * 2 + 1):
        await bench.put(f"s-{number}")
    bench.clock.advance(10_000)
    await bench.runtime.idle()
    assert await bench.ready() == FIRE_LIMIT
    async with asyncio.timeout(60):
        while await bench.ready() < FIRE_LIMIT * 2 + 1:
            await asyncio.sleep(0.001)
    assert looks(bench) == 3


async def test_what_another_server_put_is_seen_soon_where_nobody_says_so() -> None:
    async for bench in opened(CountedStore(pushes_wakeups=False)):
        await bench.settle()
        schedule = apply_change(
            "s", None, ScheduleChange(every_ms=1_000, message=Draft(payload=b"")), bench.clock.now_ms(), 99
        )
        # The store of another scheduler notifies another listener.
        await bench.store.open(Deaf(), bench.runtime)
        assert await bench.store.schedules.put(REF, None, schedule, bench.clock.now_ms())
        await bench.pass_(5_000)
        assert await bench.ready() == 1


@pytest.mark.spec("3.9")
async def test_of_two_servers_that_see_a_tick_one_fires_it(bench: Bench) -> None:
    """Let both schedulers read the same schedule before either writes."""
    held = HeldCalls(bench.runtime.ticket, before={"schedules.fire"}, after=set())
    others = [Scheduler(with_faults(bench.store, held), bench.runtime, anybody) for _ in range(3)]
    await bench.put()
    bench.clock.step_to(bench.clock.now_ms() + 10_000)
    passes = [asyncio.create_task(each.fire_once()) for each in others]
    while len(held.held) < 3:
        await asyncio.sleep(0)
    held.let_go()
    assert await asyncio.gather(*passes) == [1, 1, 1]
    assert await bench.ready() == 1


async def test_a_schedule_changed_meanwhile_does_not_fire_as_it_was(bench: Bench) -> None:
    held = HeldCalls(bench.runtime.ticket, before={"schedules.fire"}, after=set())
    other = Scheduler(with_faults(bench.store, held), bench.runtime, anybody)
    schedule = await bench.put()
    bench.clock.step_to(bench.clock.now_ms() + 10_000)
    firing = asyncio.create_task(other.fire_once())
    while not held.held:
        await asyncio.sleep(0)
    new = replace(schedule, message=Draft(payload=b"new"))
    assert await bench.store.schedules.put(REF, schedule, new, bench.clock.now_ms())
    held.let_go()
    await firing
    assert await bench.ready() == 0
    await bench.scheduler.fire_once()
    [found] = await bench.store.peek(REF, 1, bench.clock.now_ms())
    assert found.envelope.payload == b"new"


@pytest.mark.parametrize("call", ["schedules.due", "schedules.fire"])
async def test_a_store_that_fails_is_asked_again_and_no_tick_is_lost(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusals, store = Refusals(call), CountedStore()
    async for bench in opened(store, with_faults(store, refusals)):
        with caplog.at_level(logging.WARNING, "holdfast"):
            await bench.put()
            await bench.pass_(10_000)
            assert "background_failed loop=schedules" in caplog.text
        await bench.pass_(1_000)
        assert await bench.ready() == 0
        refusals.calls.clear()
        await bench.pass_(1_000)
        assert await bench.ready() == 1
        [found] = await bench.store.peek(REF, 1, bench.clock.now_ms())
        assert found.envelope.headers["scheduled-at"] == str(bench.clock.now_ms() - 2_000)


async def test_one_whose_time_zone_is_gone_says_so_and_holds_up_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at = bench.clock.now_ms() + 10_000
    broken = Schedule(name="a", message=Draft(payload=b""), cron="* * * * *", timezone="Gone/Zone", next_at=at)
    assert await bench.store.schedules.put(REF, None, broken, bench.clock.now_ms())
    await bench.put("b")
    await bench.pass_(10_000)
    assert await bench.ready() == 1
    told = await bench.store.schedules.find(REF, "a")
    assert told is not None
    assert told.next_at is None
    assert "Gone/Zone" in (told.last_error or "")


async def test_a_closed_scheduler_fires_nothing_more(bench: Bench) -> None:
    await bench.put()
    bench.scheduler.close()
    await bench.pass_(60_000)
    assert (looks(bench), await bench.ready()) == (0, 0)
