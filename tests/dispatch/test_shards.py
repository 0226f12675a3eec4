"""The turns of each shard are served by themselves (SPEC 4.4)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.dice import SeededDice
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.wakeups import Wakeups
from holdfast.model.answers import Delivery
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import LoopRuntime
from holdfast.stores.memory import MemoryStore
from holdfast.stores.values import Claims
from holdfast.testing import ManualClock

SLOW, BESIDE, APART = QueueRef("acme", "slow"), QueueRef("acme", "beside"), QueueRef("acme", "apart")
SHARDS = {SLOW: 0, BESIDE: 0, APART: 1}


class SlowStore(MemoryStore):
    """A store that is slow for the claims of one queue."""

    capabilities = replace(MemoryStore.capabilities, claims_inline=False)

    def __init__(self) -> None:
        super().__init__(SeededDice(1), 10**9)
        self.go_on = asyncio.Event()
        self.passes: list[tuple[QueueRef, int]] = []

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        self.passes.append((ref, len(asks)))
        if ref == SLOW:
            await self.go_on.wait()
        return await super().claim(ref, asks, now_ms)


class Bench:
    def __init__(self, **options: Any) -> None:
        clock = ManualClock()
        self.now_ms = clock.now_ms
        self.runtime = LoopRuntime(clock, clock)
        self.store = SlowStore()
        self.dispatcher = Dispatcher(self.store, self.runtime, **options)
        self.sweeper = Sweeper(self.store, self.runtime)

    async def open(self) -> "Bench":
        await self.store.open(Wakeups(self.dispatcher, self.sweeper), self.runtime)
        return self

    async def enqueue(self, ref: QueueRef, number: int = 1) -> None:
        await self.store.enqueue(ref, [Draft(payload=b"x")] * number, self.now_ms(), auto_create=True)

    async def claim(self, ref: QueueRef) -> "asyncio.Task[list[Delivery]]":
        task = asyncio.create_task(self.dispatcher.claim(ref, ClaimRequest(), None))
        await settle_loop()
        return task

    async def close(self) -> None:
        self.store.go_on.set()
        self.dispatcher.close()
        self.sweeper.close()
        await self.runtime.aclose()


async def settle_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = await Bench(shard_of=SHARDS.__getitem__).open()
    yield made
    await made.close()


@pytest.mark.spec("4.4")
async def test_a_slow_pass_on_one_shard_delays_no_other_s_waiters(bench: Bench) -> None:
    slow = await bench.claim(SLOW)
    apart, beside = await bench.claim(APART), await bench.claim(BESIDE)
    await bench.enqueue(APART)
    await bench.enqueue(BESIDE)
    await settle_loop()
    assert len(await apart) == 1
    assert not beside.done()  # it waits on the shard of the slow queue
    await bench.enqueue(SLOW)
    bench.store.go_on.set()
    assert [len(await task) for task in (slow, beside)] == [1, 1]


async def test_on_each_shard_many_waiting_claims_are_served_by_one_pass_each_with_its_own_lease(bench: Bench) -> None:
    slow = await bench.claim(SLOW)
    waiting = [await bench.claim(APART) for _ in range(20)]
    bench.store.passes.clear()
    await bench.enqueue(APART, 20)
    deliveries = [(await task)[0] for task in waiting]
    assert bench.store.passes == [(APART, 20)]
    assert len({each.receipt.token for each in deliveries}) == 20
    assert not slow.done()


async def test_without_shards_there_is_one() -> None:
    bench = await Bench().open()
    slow, beside = await bench.claim(SLOW), await bench.claim(APART)
    await bench.enqueue(APART)
    await settle_loop()
    assert not beside.done()
    await bench.enqueue(SLOW)
    bench.store.go_on.set()
    assert [len(await task) for task in (slow, beside)] == [1, 1]
    await bench.close()
