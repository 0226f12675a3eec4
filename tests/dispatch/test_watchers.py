"""Watchers are called when a queue may have messages, and only then."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.dice import SeededDice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.answers import Delivery
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime, ThreadRuntime
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import ManualClock

REF = QueueRef("acme", "jobs")
WEEK_MS = 7 * 86_400_000


class Bench:
    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.runtime = LoopRuntime(self.clock, self.clock)
        self.store = store
        self.dispatcher = Dispatcher(store, self.runtime)
        self.sweeper = Sweeper(store, self.runtime)
        self.calls = 0

    def called(self) -> None:
        self.calls += 1

    async def watch(self, ref: QueueRef = REF) -> Callable[[], None]:
        unwatch = self.dispatcher.watch(ref, self.called)
        await settle_loop()
        return unwatch

    async def enqueue(self, ref: QueueRef = REF, **fields: Any) -> None:
        await self.store.enqueue(ref, [Draft(payload=b"x", **fields)], self.clock.now_ms(), auto_create=True)
        await settle_loop()

    async def claim(self, lease_ms: int = 3_600_000) -> list[Delivery]:
        deliveries = await self.dispatcher.claim(REF, ClaimRequest(lease_ms=lease_ms), 0)
        await settle_loop()
        return deliveries

    async def settle(self, delivery: Delivery, settle: Settle, **fields: Any) -> None:
        verdict = Verdict(settle=settle, receipt=delivery.receipt, **fields)
        await self.store.settle(REF, [verdict], self.clock.now_ms())
        await settle_loop()

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        await settle_loop()

    def new_calls(self) -> int:
        calls, self.calls = self.calls, 0
        return calls


async def settle_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(params=["memory", "rocks"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    store: Store = (
        MemoryStore(SeededDice(1), WEEK_MS)
        if request.param == "memory"
        else RocksStore(tmp_path / "store", SeededDice(1), durability=Durability.OS, journal_retention_ms=WEEK_MS)
    )
    made = Bench(store)
    await store.open(Wakeups(made.dispatcher, made.sweeper), made.runtime)
    yield made
    made.dispatcher.close()
    made.sweeper.close()
    await store.close()
    await made.runtime.aclose()


async def test_a_watcher_is_called_for_each_enqueue_and_not_for_another_queue_s(bench: Bench) -> None:
    await bench.watch()
    assert bench.new_calls() == 0
    for _ in range(3):
        await bench.enqueue()
        assert bench.new_calls() == 1
    await bench.enqueue(QueueRef("acme", "other"))
    await bench.enqueue(QueueRef("other", "jobs"))
    assert bench.new_calls() == 0


async def test_what_is_there_already_is_no_news(bench: Bench) -> None:
    await bench.enqueue()
    await bench.watch()
    assert bench.new_calls() == 0


async def test_it_is_never_called_within_the_store_s_step_and_once_for_news_that_comes_together(bench: Bench) -> None:
    await bench.watch()
    now_ms = bench.clock.now_ms()
    for _ in range(5):
        bench.dispatcher.ready(REF, now_ms)
    assert bench.new_calls() == 0
    await settle_loop()
    assert bench.new_calls() == 1


async def test_a_delayed_message_is_news_when_it_comes_due(bench: Bench) -> None:
    await bench.watch()
    await bench.enqueue(delay_ms=5_000)
    await bench.pass_ms(4_999)
    assert bench.new_calls() == 0
    await bench.pass_ms(1)
    assert bench.new_calls() == 1
    await bench.pass_ms(WEEK_MS)
    assert bench.new_calls() == 0


async def test_a_delay_set_before_the_watch_began_is_heard_of(bench: Bench) -> None:
    await bench.enqueue(delay_ms=5_000)
    await bench.watch()
    assert bench.new_calls() == 0
    await bench.pass_ms(5_000)
    assert bench.new_calls() == 1


async def test_a_delay_behind_messages_that_were_claimed_is_heard_of(bench: Bench) -> None:
    await bench.watch()
    await bench.enqueue(delay_ms=5_000)
    await bench.enqueue(delay_ms=9_000)
    await bench.pass_ms(5_000)
    assert bench.new_calls() == 1
    [first] = await bench.claim()
    await bench.pass_ms(3_999)
    assert bench.new_calls() == 0
    await bench.pass_ms(1)
    assert bench.new_calls() == 1
    await bench.settle(first, Settle.ACK)


async def test_a_message_that_comes_back_is_news(bench: Bench) -> None:
    await bench.watch()
    await bench.enqueue()
    [held] = await bench.claim(lease_ms=10_000)
    bench.new_calls()
    await bench.settle(held, Settle.RELEASE)
    assert bench.new_calls() == 1
    [held] = await bench.claim(lease_ms=10_000)
    await bench.settle(held, Settle.NACK, delay_ms=2_000)
    assert bench.new_calls() == 0
    await bench.pass_ms(2_000)
    assert bench.new_calls() == 1
    await bench.claim(lease_ms=10_000)
    await bench.pass_ms(9_999)
    assert bench.new_calls() == 0
    await bench.pass_ms(1)
    assert bench.new_calls() >= 1


async def test_the_store_is_told_that_somebody_wants_to_know_for_as_long_as_one_does(bench: Bench) -> None:
    assert not bench.dispatcher.is_waited_for(REF)
    first, second = await bench.watch(), await bench.watch()
    assert bench.dispatcher.is_waited_for(REF)
    first()
    first()
    assert bench.dispatcher.is_waited_for(REF)
    await bench.enqueue()
    assert bench.new_calls() == 1
    second()
    assert not bench.dispatcher.is_waited_for(REF)
    await bench.enqueue()
    assert bench.new_calls() == 0


async def test_one_that_stops_watching_leaves_no_alarm_behind(bench: Bench) -> None:
    unwatch = await bench.watch()
    await bench.enqueue(delay_ms=5_000)
    unwatch()
    await bench.pass_ms(10_000)
    assert bench.new_calls() == 0
    assert not bench.dispatcher._watchers


async def test_a_watcher_takes_nothing_from_those_who_claim(bench: Bench) -> None:
    await bench.watch()
    waiting = asyncio.create_task(bench.dispatcher.claim(REF, ClaimRequest(), None))
    await settle_loop()
    await bench.enqueue()
    [delivery] = await waiting
    assert delivery.attempt == 1


async def test_one_watcher_s_failure_is_not_the_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("of a watcher")

    bench.dispatcher.watch(REF, fail)
    await bench.watch()
    await bench.enqueue()
    assert bench.new_calls() == 1
    assert "watch_callback_failed" in caplog.text


def test_a_program_without_a_loop_can_watch_too() -> None:
    runtime = ThreadRuntime(SystemClock())
    store = MemoryStore(SeededDice(1), WEEK_MS)
    dispatcher, calls = Dispatcher(store, runtime), []

    async def enqueue_watched() -> None:
        await store.open(Wakeups(dispatcher, Sweeper(store, runtime)), runtime)
        dispatcher.watch(REF, lambda: calls.append(len(calls)))
        await store.enqueue(REF, [Draft(payload=b"x")], runtime.clock.now_ms(), auto_create=True)
        assert calls == []

    runtime.run(enqueue_watched())
    runtime.close()
    assert calls
