"""Turns for waiters without notifications: their interval, and that waiting costs nothing else."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.dice import SeededDice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.polling import Polling, default_max_consumers
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.answers import Delivery
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import LoopRuntime, Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.memory import MemoryStore
from holdfast.stores.values import Claims
from holdfast.testing import ManualClock

REF = QueueRef("acme", "jobs")
DAY_MS = 86_400_000


class _Muted:
    """A listener that passes on deadlines and the stop of the store only."""

    def __init__(self, inner: Listener) -> None:
        self.deadline = inner.deadline
        self.stopped = inner.stopped
        self.scheduled = inner.scheduled

    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        pass


class QuietStore(MemoryStore):
    """A memory store that does not notify, as if other processes wrote to it."""

    def __init__(self, *, admits_it: bool = True) -> None:
        super().__init__(SeededDice(1), 7 * DAY_MS)
        self.capabilities = replace(MemoryStore.capabilities, pushes_wakeups=not admits_it)
        self.passes = 0

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        await super().open(_Muted(listener), runtime)

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        self.passes += 1
        return await super().claim(ref, asks, now_ms)


class Rolls(SeededDice):
    """Dice with given rolls."""

    def __init__(self, *rolls: float) -> None:
        super().__init__(0)
        self._rolls = list(rolls)

    def roll(self) -> float:
        return self._rolls.pop(0) if len(self._rolls) > 1 else self._rolls[0]


class Bench:
    def __init__(self, store: MemoryStore, polling: Polling, roll: float = 0.0) -> None:
        self.clock = ManualClock()
        self.runtime = LoopRuntime(self.clock, self.clock)
        self.store = store
        self.dispatcher = Dispatcher(store, self.runtime, polling=polling, dice=Rolls(roll))
        self.sweeper = Sweeper(store, self.runtime)

    async def open(self) -> "Bench":
        await self.store.open(Wakeups(self.dispatcher, self.sweeper), self.runtime)
        return self

    async def enqueue(self, delay_ms: int = 0) -> None:
        draft = Draft(payload=b"x", delay_ms=delay_ms)
        await self.store.enqueue(REF, [draft], self.clock.now_ms(), auto_create=True)

    async def claim(self, wait_ms: int | None = None) -> "asyncio.Task[list[Delivery]]":
        task = asyncio.create_task(self.dispatcher.claim(REF, ClaimRequest(), wait_ms))
        await settle_loop()
        return task

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        await settle_loop()

    async def close(self) -> None:
        self.dispatcher.close()
        self.sweeper.close()
        await self.runtime.aclose()


async def settle_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.spec("6.3", "7.2")
@pytest.mark.parametrize(("roll", "jitter_ms"), [(0.0, 0), (0.5, 250), (0.999_999, 500)])
async def test_where_the_store_does_not_push_a_waiter_is_served_within_interval_and_jitter(
    roll: float, jitter_ms: int
) -> None:
    bench = await Bench(QuietStore(), Polling(), roll).open()
    waiting = await bench.claim()
    await bench.enqueue()
    await bench.pass_ms(3_000 + jitter_ms - 1)
    assert not waiting.done()
    await bench.pass_ms(1)
    assert len(await waiting) == 1
    await bench.close()


async def test_a_waiter_that_leaves_before_the_next_pass_sets_one_timer_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = await Bench(QuietStore(), Polling()).open()
    await bench.enqueue(delay_ms=DAY_MS)
    set_at: list[int] = []
    call_at = bench.runtime.call_at
    monkeypatch.setattr(
        bench.runtime, "call_at", lambda at_ms, callback: set_at.append(at_ms) or call_at(at_ms, callback)
    )
    now_ms = bench.clock.now_ms()
    waiting = await bench.claim(wait_ms=250)
    assert set_at == [now_ms + 250, now_ms + DAY_MS], "for its end, and for the message that comes due"
    await bench.pass_ms(250)
    assert await waiting == []
    await bench.close()


async def test_a_waiter_that_joins_one_that_leaves_sooner_is_polled_for() -> None:
    bench = await Bench(QuietStore(), Polling()).open()
    first = await bench.claim(wait_ms=250)
    second = await bench.claim()
    await bench.enqueue()
    await bench.pass_ms(250)
    assert await first == []
    await bench.pass_ms(3_000 - 250)
    assert len(await second) == 1
    await bench.close()


async def test_it_polls_again_and_again_one_pass_for_all_who_wait() -> None:
    store = QuietStore()
    bench = await Bench(store, Polling(jitter_ms=0)).open()
    waiting = [await bench.claim() for _ in range(10)]
    store.passes = 0
    for _ in range(5):
        await bench.pass_ms(3_000)
    assert store.passes == 5
    await bench.enqueue()
    await bench.pass_ms(3_000)
    assert len(await waiting[0]) == 1
    assert not any(task.done() for task in waiting[1:])
    await bench.close()


@pytest.mark.spec("7.2")
async def test_a_jitter_of_0_adds_nothing_whatever_the_roll() -> None:
    bench = await Bench(QuietStore(), Polling(jitter_ms=0), 0.999).open()
    waiting = await bench.claim()
    await bench.enqueue()
    await bench.pass_ms(3_000)
    assert len(await waiting) == 1
    await bench.close()


@pytest.mark.spec("5.3", "7.2")
async def test_where_the_store_pushes_a_lost_word_is_made_good_at_the_resilient_interval() -> None:
    store = QuietStore(admits_it=False)
    bench = await Bench(store, Polling()).open()
    waiting = await bench.claim()
    await bench.enqueue()
    passes = store.passes
    await bench.pass_ms(5 * 60_000 - 1)
    assert not waiting.done()
    assert store.passes == passes
    await bench.pass_ms(1)
    assert len(await waiting) == 1
    await bench.close()


@pytest.mark.spec("7.2")
async def test_a_resilient_interval_of_0_trusts_the_store() -> None:
    bench = await Bench(QuietStore(admits_it=False), Polling(resilient_interval_ms=0)).open()
    waiting = await bench.claim()
    await bench.enqueue()
    await bench.pass_ms(DAY_MS)
    assert not waiting.done()
    await bench.close()
    assert await waiting == []


@pytest.mark.spec("7.2")
async def test_pushes_that_are_not_to_be_heeded_leave_polling() -> None:
    bench = await Bench(MemoryStore(SeededDice(1), 7 * DAY_MS), Polling(heeds_wakeups=False, jitter_ms=0)).open()
    waiting = await bench.claim()
    await bench.enqueue()
    await bench.pass_ms(2_999)
    assert not waiting.done()
    await bench.pass_ms(1)
    assert len(await waiting) == 1
    await bench.close()


async def test_a_delay_that_a_pass_has_seen_is_not_polled_for() -> None:
    bench = await Bench(QuietStore(), Polling()).open()
    await bench.enqueue(delay_ms=1_234)
    waiting = await bench.claim()
    await bench.pass_ms(1_233)
    assert not waiting.done()
    await bench.pass_ms(1)
    assert len(await waiting) == 1
    await bench.close()


async def test_with_nobody_waiting_nothing_is_polled() -> None:
    store = QuietStore()
    bench = await Bench(store, Polling()).open()
    assert await (await bench.claim(wait_ms=0)) == []
    brief = await bench.claim(wait_ms=1_000)
    await bench.pass_ms(1_000)
    assert await brief == []
    passes = store.passes
    await bench.pass_ms(DAY_MS)
    assert store.passes == passes
    assert bench.dispatcher._waiters == {}
    await bench.close()


async def test_a_claim_that_does_not_wait_takes_no_waiter_s_place() -> None:
    bench = await Bench(QuietStore(), Polling(max_consumers=1)).open()
    waiting = await bench.claim()
    for _ in range(3):
        assert await (await bench.claim(wait_ms=0)) == []
    assert not waiting.done()
    await bench.close()


@pytest.mark.spec("7.2")
@given(st.integers(1, 1_000))
def test_consumers_are_64_for_each_cpu_within_128_and_4096(cpus: int) -> None:
    most = default_max_consumers(cpus)
    assert most == 64 * cpus or (most == 128 and 64 * cpus < 128) or (most == 4_096 and 64 * cpus > 4_096)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 10_000), st.integers(0, 5_000))
def test_a_pause_lies_between_the_interval_and_interval_and_jitter(roll: float, interval: int, jitter: int) -> None:
    polling = Polling(interval_ms=interval, jitter_ms=jitter)
    pause = polling.pause_ms(is_notified=False, roll=roll)
    assert pause is not None
    assert max(1, interval) <= pause <= max(1, interval + jitter)
