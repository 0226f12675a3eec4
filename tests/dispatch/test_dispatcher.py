"""Waiters: which of them wake up, why and at what cost; and that a caller that leaves strands no message."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.dice import SeededDice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.polling import Polling
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.answers import Delivery
from holdfast.model.errors import InvalidArgument, RateLimited, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import LoopRuntime
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.values import Claims
from holdfast.testing import HeldCalls, ManualClock, SeededFaults, with_faults

REF = QueueRef("acme", "jobs")
DAY_MS = 86_400_000


class CountedStore(MemoryStore):
    """A memory store that counts the dispatcher's calls."""

    def __init__(self) -> None:
        super().__init__(SeededDice(1), 7 * DAY_MS)
        self.passes: list[tuple[QueueRef, int]] = []

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        self.passes.append((ref, len(asks)))
        return await super().claim(ref, asks, now_ms)


class Bench:
    """A dispatcher over a store on the running loop, with a manual clock."""

    def __init__(self, store: Store, max_consumers: int = 100_000) -> None:
        self.clock = ManualClock()
        self.runtime = LoopRuntime(self.clock, self.clock)
        self.store = store
        self.dispatcher = Dispatcher(store, self.runtime, polling=Polling(max_consumers=max_consumers))
        self.sweeper = Sweeper(store, self.runtime)

    async def open(self) -> None:
        await self.store.open(Wakeups(self.dispatcher, self.sweeper), self.runtime)

    async def enqueue(self, ref: QueueRef = REF, **fields: Any) -> None:
        now_ms = self.clock.now_ms()
        await self.store.directory.create_queue(ref, now_ms)
        await self.store.enqueue(ref, [Draft(payload=b"x", **fields)], now_ms, auto_create=True)

    def claim(self, ref: QueueRef = REF, wait_ms: int | None = None, **fields: Any) -> "asyncio.Task[list[Delivery]]":
        return asyncio.create_task(self.dispatcher.claim(ref, ClaimRequest(**fields), wait_ms))


async def settle_loop() -> None:
    """Run all tasks that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(CountedStore())
    await made.open()
    yield made
    made.dispatcher.close()
    made.sweeper.close()
    await made.runtime.aclose()


def passes(bench: Bench) -> list[tuple[QueueRef, int]]:
    assert isinstance(bench.store, CountedStore)
    return bench.store.passes


@pytest.mark.spec("7.1")
async def test_a_claim_that_finds_something_makes_one_pass(bench: Bench) -> None:
    await bench.enqueue()
    [delivery] = await bench.claim(wait_ms=0)
    assert delivery.payload == b"x"
    assert passes(bench) == [(REF, 1)]


@pytest.mark.spec("7.1")
async def test_waking_one_queue_wakes_nobody_elses_waiters_and_costs_one_pass(bench: Bench) -> None:
    refs = [QueueRef("acme", f"q{number}") for number in range(1_000)]
    waiting = [bench.claim(ref) for ref in refs for _ in range(10)]
    await settle_loop()
    assert sum(bench.dispatcher.count_waiters(ref) for ref in refs) == 10_000
    passes(bench).clear()

    await bench.enqueue(refs[500])
    await settle_loop()

    assert passes(bench) == [(refs[500], 10)]
    assert [task.done() for task in waiting].count(True) == 1
    assert len(await waiting[5_000]) == 1


async def test_an_enqueue_that_nobody_waits_for_asks_the_dispatcher_for_nothing(bench: Bench) -> None:
    for _ in range(100):
        await bench.enqueue()
    await settle_loop()
    assert passes(bench) == []


@pytest.mark.spec("7.1")
async def test_waiting_claims_are_served_by_one_pass_each_with_a_lease_of_its_own(bench: Bench) -> None:
    tasks = [bench.claim() for _ in range(8)]
    await settle_loop()
    passes(bench).clear()
    now_ms = bench.clock.now_ms()
    await bench.store.directory.create_queue(REF, now_ms)
    await bench.store.enqueue(REF, [Draft(payload=b"%d" % n) for n in range(8)], now_ms, auto_create=True)

    deliveries = [(await task)[0] for task in tasks]

    assert passes(bench) == [(REF, 8)]
    assert [delivery.payload for delivery in deliveries] == [b"%d" % n for n in range(8)]
    assert len({delivery.receipt.token for delivery in deliveries}) == 8


async def test_a_timer_alone_wakes_a_waiter_for_a_delayed_message(bench: Bench) -> None:
    task = bench.claim()
    await settle_loop()
    await bench.enqueue(delay_ms=5_000)
    await settle_loop()
    bench.clock.advance(4_999)
    await settle_loop()
    assert not task.done()
    bench.clock.advance(1)
    assert len(await task) == 1


async def test_a_claim_that_does_not_wait_does_not_overtake_those_who_do(bench: Bench) -> None:
    waiting = bench.claim()
    await settle_loop()
    await bench.enqueue()
    impatient = bench.claim(wait_ms=0)
    assert len(await waiting) == 1
    assert await impatient == []


@pytest.mark.spec("7.2")
async def test_a_waiter_over_the_cap_is_refused_at_once_and_the_others_stay(bench: Bench) -> None:
    capped = Bench(CountedStore(), max_consumers=2)
    await capped.open()
    waiting = [capped.claim() for _ in range(2)]
    await settle_loop()
    with pytest.raises(RateLimited):
        await capped.claim()
    await capped.enqueue()
    assert len(await waiting[0]) == 1
    assert capped.dispatcher.count_waiters(REF) == 1
    capped.dispatcher.close()
    assert await waiting[1] == []


async def test_a_claim_that_does_not_wait_is_answered_however_many_wait_before_it(bench: Bench) -> None:
    waiting = [bench.claim(limit=100) for _ in range(5)]
    await settle_loop()
    assert await bench.claim(wait_ms=0) == []
    assert await bench.claim(wait_ms=0, ledger=("spark", 1)) == []
    assert not any(task.done() for task in waiting)


async def test_a_line_is_forgotten_with_its_last_waiter(bench: Bench) -> None:
    task = bench.claim(wait_ms=1_000)
    await settle_loop()
    bench.clock.advance(1_000)
    assert await task == []
    assert bench.dispatcher.count_waiters(REF) == 0
    assert bench.dispatcher._waiters == {}


async def test_a_refused_ledger_claim_is_not_the_other_waiters_refusal(bench: Bench) -> None:
    await bench.enqueue()
    await bench.store.ledgers.ack(REF, "spark", 5, bench.clock.now_ms())
    assert len(await bench.claim(wait_ms=0)) == 1
    plain = bench.claim()
    await settle_loop()
    ledgered = bench.claim(ledger=("spark", 3))
    with pytest.raises(InvalidArgument):
        await ledgered
    await bench.enqueue()
    assert len(await plain) == 1


class TestAClaimThatIsCancelled:
    """Cancel at every await of a claim, over a store that can be stopped before and after it claims."""

    @pytest.fixture
    async def held(self) -> AsyncIterator[tuple[Bench, HeldCalls]]:
        loop = asyncio.get_running_loop()
        calls = HeldCalls(loop.create_future, before={"claim"}, after={"claim"})
        made = Bench(with_faults(CountedStore(), calls))
        await made.open()
        yield made, calls
        calls.let_go()
        made.dispatcher.close()
        await settle_loop()

    async def drain(self, calls: HeldCalls) -> None:
        for _ in range(6):
            calls.let_go()
            await settle_loop()

    async def assert_held_by_nobody(self, bench: Bench, calls: HeldCalls) -> None:
        await self.drain(calls)
        counts = await bench.store.counts(*REF, bench.clock.now_ms())
        assert (counts.ready, counts.in_flight) == (1, 0)
        task = bench.claim(wait_ms=0)
        await settle_loop()
        await self.drain(calls)
        [delivery] = await task
        assert delivery.attempt == 1

    async def test_before_the_store_is_asked_holds_nothing(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, calls = held
        await bench.enqueue()
        task = bench.claim()
        await settle_loop()
        assert [name for name, _ in calls.held] == ["claim"]
        task.cancel()
        await self.assert_held_by_nobody(bench, calls)
        assert task.cancelled()

    @pytest.mark.spec("7.1")
    async def test_after_the_store_claimed_for_it_gives_back_at_once(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, calls = held
        await bench.enqueue()
        task = bench.claim()
        await settle_loop()
        calls.let_go()
        await settle_loop()
        assert (await bench.store.counts(*REF, bench.clock.now_ms())).in_flight == 1
        task.cancel()
        await self.assert_held_by_nobody(bench, calls)
        assert task.cancelled()

    async def test_after_it_was_handed_over_but_before_it_woke_gives_back_at_once(
        self, held: tuple[Bench, HeldCalls]
    ) -> None:
        bench, calls = held
        await bench.enqueue()
        task = bench.claim()
        await settle_loop()
        calls.let_go()
        await settle_loop()
        calls.let_go()
        # The pass resumes first and returns the delivery; the caller has not run since when it is cancelled.
        for _ in range(10):
            if bench.dispatcher.count_waiters(REF):
                await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await self.assert_held_by_nobody(bench, calls)
        assert task.cancelled()

    @pytest.mark.parametrize("is_handed_over", [False, True])
    async def test_leaves_a_ledger_what_it_took_for_whoever_reads_it_again(
        self, held: tuple[Bench, HeldCalls], is_handed_over: bool
    ) -> None:
        """The new caller may hold the message by then; giving it back would end that lease."""
        bench, calls = held
        await bench.enqueue()
        leaves = bench.claim(ledger=("spark", 1))
        await settle_loop()
        calls.let_go()
        await settle_loop()
        if is_handed_over:
            calls.let_go()
            for _ in range(10):
                if bench.dispatcher.count_waiters(REF):
                    await asyncio.sleep(0)
        leaves.cancel()
        again = bench.claim(ledger=("spark", 1))
        await self.drain(calls)
        [delivery] = await again
        assert leaves.cancelled()
        assert (delivery.attempt, delivery.receipt.version) == (1, 1)
        assert (await bench.store.counts(*REF, bench.clock.now_ms())).in_flight == 1

    async def test_while_it_waits_holds_nothing(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, calls = held
        task = bench.claim()
        await settle_loop()
        await self.drain(calls)
        assert bench.dispatcher.count_waiters(REF) == 1
        task.cancel()
        await settle_loop()
        assert bench.dispatcher.count_waiters(REF) == 0
        await bench.enqueue()
        await self.assert_held_by_nobody(bench, calls)

    async def test_does_not_take_what_another_waiter_of_the_same_pass_gets(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, calls = held
        await bench.enqueue()
        leaves, stays = bench.claim(), bench.claim()
        await settle_loop()
        leaves.cancel()
        await self.drain(calls)
        [delivery] = await stays
        assert delivery.payload == b"x"


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Bench, HeldCalls]]:
    """A store whose claims end when the test says so."""
    calls = HeldCalls(asyncio.get_running_loop().create_future, before=set(), after={"claim"})
    made = Bench(with_faults(MemoryStore(SeededDice(1), 7 * DAY_MS), calls))
    await made.open()
    yield made, calls
    calls.let_go()
    made.dispatcher.close()
    made.sweeper.close()
    await made.runtime.aclose()


async def test_a_wait_that_ends_while_the_store_is_at_work_ends_with_what_the_store_answers(
    slow: tuple[Bench, HeldCalls],
) -> None:
    bench, calls = slow
    await bench.enqueue()
    full, empty = bench.claim(wait_ms=10), bench.claim(QueueRef("acme", "empty"), wait_ms=10)
    await settle_loop()
    bench.clock.advance(1_000)
    await settle_loop()
    assert not full.done()
    assert not empty.done()
    for _ in range(2):
        calls.let_go()
        await settle_loop()
    assert [each.attempt for each in await full] == [1]
    assert await empty == []
    assert bench.dispatcher._waiting == 0
    assert bench.dispatcher._waiters == {}


async def test_a_wait_that_ends_before_the_store_was_asked_is_answered_by_the_next_pass(
    slow: tuple[Bench, HeldCalls],
) -> None:
    bench, calls = slow
    await bench.enqueue()
    first = bench.claim(wait_ms=None)
    await settle_loop()
    second, third = bench.claim(wait_ms=10), bench.claim(wait_ms=10)
    await settle_loop()
    bench.clock.advance(10)
    await bench.enqueue()
    for _ in range(4):
        calls.let_go()
        await settle_loop()
    assert [len(await each) for each in (first, second, third)] == [1, 1, 0]
    assert bench.dispatcher._waiting == 0


async def test_a_wait_that_ends_while_nobody_asks_ends_at_once(slow: tuple[Bench, HeldCalls]) -> None:
    bench, calls = slow
    waiting = bench.claim(wait_ms=10)
    await settle_loop()
    calls.let_go()
    await settle_loop()
    assert not waiting.done()
    bench.clock.advance(10)
    await settle_loop()
    assert waiting.done()
    assert await waiting == []


async def test_a_failing_store_fails_the_claim_and_the_next_one_works() -> None:
    bench = Bench(with_faults(CountedStore(), SeededFaults(7, refuse=0.5)))
    await bench.open()
    inner = bench.store._inner  # type: ignore[attr-defined]  # the fault store's own
    await inner.directory.create_queue(REF, bench.clock.now_ms())
    await inner.enqueue(REF, [Draft(payload=b"x")], bench.clock.now_ms(), auto_create=True)
    outcomes = []
    for _ in range(20):
        try:
            outcomes.append(len(await bench.claim(wait_ms=0)))
        except StoreUnavailable:
            outcomes.append(-1)
    assert outcomes.count(1) == 1
    assert -1 in outcomes
    assert bench.dispatcher._waiters == {}
