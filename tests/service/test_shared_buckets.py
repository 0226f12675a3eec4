"""Buckets in Redis: the servers together keep the limit, and each keeps its share while Redis is down."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model.limits import BLOCK_MS, Charge, TokenBucket, capacity_of
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.service.limits.redis_rates import RatesDown, RedisRates, TokensTaken
from holdfast.service.limits.shared_buckets import SharedBuckets
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.testing import ManualClock
from tests.redis.server import RedisServer
from tests.waiting import until

QUEUE = QueueRef("acme", "jobs")


def ops(amount: int = 1, per_s: float = 100, capacity: float = 10) -> Charge:
    return Charge("acme", "write_ops_per_s", per_s, capacity, amount)


class CountedRates(RedisRates):
    """Redis with the clock of the caller, which counts its calls."""

    asked = 0

    def __init__(self, url: str) -> None:
        super().__init__(url, goes_by_caller=True)

    async def take(self, *given: Any) -> TokensTaken:
        self.asked += 1
        return await super().take(*given)


class Server:
    def __init__(self, runtime: LoopRuntime, url: str) -> None:
        self.rates = CountedRates(url)
        self._link = LoopBridge(runtime)
        self.buckets = SharedBuckets(self.rates, self._link, runtime)
        self._clock = runtime.clock

    async def takes(self, *charges: Charge) -> bool:
        return await self.buckets.take(list(charges), self._clock.now_ms()) is None

    async def wait_ms(self, *charges: Charge) -> int:
        shortage = await self.buckets.take(list(charges), self._clock.now_ms())
        return 0 if shortage is None else shortage.wait_ms

    async def close(self) -> None:
        await self._link.close(self.buckets.close())


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    redis_server.flush()
    yield redis_server.url
    redis_server.flush()


@asynccontextmanager
async def servers(url: str, number: int = 2) -> AsyncIterator[tuple[ManualClock, LoopRuntime, list[Server]]]:
    clock = ManualClock()
    runtime = LoopRuntime(clock, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.aclose)
        every = []
        for _ in range(number):
            server = Server(runtime, url)
            stack.push_async_callback(server.close)
            every.append(server)
        for server in (*every, *every):  # twice, so that the first servers learn of the last one
            await server.buckets.start()
        yield clock, runtime, every


@pytest.mark.spec("8.7")
async def test_two_servers_let_in_together_what_the_limit_allows(redis_url: str) -> None:
    async with servers(redis_url) as (clock, _, [one, other]):
        let_in = 0
        for _ in range(300):
            for server in (one, other):
                for _ in range(3):
                    let_in += await server.takes(ops())
            clock.advance(10)
        # 3 s at 100/s and one bucket; each server has reserved at most one block of it.
        block = 100 * BLOCK_MS / 1_000
        assert 310 - 2 * block <= let_in <= 310


async def test_in_no_stretch_is_more_let_in_than_the_rate_a_bucket_and_a_block_for_each_server(redis_url: str) -> None:
    async with servers(redis_url) as (clock, _, every):
        moments: list[int] = []
        for step in range(200):
            # First one server is busy, then the other, then both.
            for server in every[:1] if step % 60 < 20 else every[1:] if step % 60 < 40 else every:
                while await server.takes(ops()):
                    moments.append(clock.now_ms())
            clock.advance(10 if step % 7 else 70)
        block = 100 * BLOCK_MS / 1_000
        for first, start in enumerate(moments):
            for last in range(first, len(moments)):
                allowed = 100 * (moments[last] - start) / 1_000 + 10 + 2 * block
                assert last - first + 1 <= allowed + 1e-6


async def test_a_busy_server_asks_redis_a_few_times_in_a_block_and_one_that_is_not_takes_no_more_than_it_needs(
    redis_url: str,
) -> None:
    async with servers(redis_url) as (clock, _, [busy, calm]):
        for _ in range(1_000):
            assert await busy.takes(ops(per_s=5_000, capacity=5_000))
            clock.advance(1)
        assert busy.rates.asked < 1_000 / BLOCK_MS * 12
        calm_charge = ops(per_s=5_000, capacity=5_000)._replace(owner="zeta")
        for _ in range(10):
            assert await calm.takes(calm_charge)
            clock.advance(1_000)
        assert calm.rates.asked == 10
        assert calm.buckets._allowances["zeta", "write_ops_per_s"].tokens == 0


async def test_a_call_is_charged_to_the_tenant_and_the_queue_whole_or_not_at_all(redis_url: str) -> None:
    async with servers(redis_url) as (_, _, [one, other]):
        tenant, queue = ops(3), Charge(QUEUE, "write_ops_per_s", 1, 3, 3)
        assert await one.takes(tenant, queue)
        assert await other.wait_ms(tenant, queue) == 3_000
        # The tenant was not charged for a call that the queue's limit refused.
        assert await other.takes(ops(7))
        assert not await one.takes(ops(1))


async def test_a_refusal_is_true_and_is_repeated_without_asking(redis_url: str) -> None:
    async with servers(redis_url) as (clock, _, [one, other]):
        assert await one.takes(ops(10, per_s=10))
        assert await other.wait_ms(ops(5, per_s=10)) == 500
        asked = other.rates.asked
        clock.advance(499)
        assert await other.wait_ms(ops(5, per_s=10)) == 1
        assert await other.wait_ms(ops(8, per_s=10)) == 1
        assert other.rates.asked == asked
        clock.advance(1)
        assert await other.wait_ms(ops(5, per_s=10)) == 0


async def test_what_one_server_owes_holds_up_the_other(redis_url: str) -> None:
    async with servers(redis_url) as (clock, runtime, [one, other]):
        one.buckets.owe([ops(30)], clock.now_ms())
        await runtime.idle()
        assert await other.wait_ms(ops(1)) == 210
        one.buckets.give_back([ops(25)], clock.now_ms())
        await runtime.idle()
        clock.advance(1_000)
        assert await other.takes(ops(10))


async def test_another_rate_holds_at_once_and_fills_nothing(redis_url: str) -> None:
    async with servers(redis_url) as (clock, _, [one, other]):
        assert await one.takes(ops(10, per_s=10))
        clock.advance(50)  # half a token was added at the old rate
        assert await other.wait_ms(ops(1, per_s=100, capacity=100)) == 5
        assert await one.wait_ms(ops(1, per_s=0, capacity=0)) == 60_000


async def test_a_caller_that_leaves_while_redis_is_asked_gives_back(redis_url: str) -> None:
    async with servers(redis_url) as (clock, runtime, [one, other]):
        for _ in range(20):
            leaves = asyncio.create_task(one.takes(ops(10, per_s=0.001)))
            for _ in range(3):
                await asyncio.sleep(0)
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
            await runtime.idle()
        assert await other.takes(ops(10, per_s=0.001))
        assert clock.now_ms() >= 0


@pytest.mark.services
async def test_without_redis_each_server_goes_by_its_share_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    redis = RedisServer()
    redis.start()
    try:
        async with servers(redis.url) as (clock, runtime, [one, other]):
            assert one.buckets.servers == other.buckets.servers == 2
            assert await one.takes(ops(per_s=10))
            redis.kill()
            let_in = 0
            for _ in range(200):
                for server in (one, other):
                    for _ in range(3):
                        let_in += await server.takes(ops(per_s=10))
                clock.advance(10)
            # 2 s at 10/s and a bucket of 10, shared by two servers; each admits whole operations.
            assert 28 <= let_in <= 30
            assert not one.buckets.is_shared
            assert sum("rates_not_shared servers=2" in text for text in caplog.messages) == 2
            await one.takes(ops(per_s=10))
            shortage = await one.buckets.take([ops(per_s=10)], clock.now_ms())
            assert shortage is not None
            assert shortage.charge.per_s == 10
            assert shortage.wait_ms <= 200

            await asyncio.to_thread(redis.start)
            for server in (one, other):
                await server.buckets.announce_once()
            assert one.buckets.is_shared
            assert sum(text.startswith("rates_shared") for text in caplog.messages) == 2
            # Redis has lost its data, so the shared buckets are full.
            assert await one.takes(ops(10, per_s=10))
            assert not await other.takes(ops(1, per_s=10))
            await runtime.idle()
    finally:
        redis.close()


@pytest.mark.services
async def test_redis_is_looked_for_and_servers_that_are_gone_are_forgotten() -> None:
    redis = RedisServer()
    redis.start()
    try:
        async with servers(redis.url, 3) as (clock, runtime, [one, other, third]):
            await third.close()
            redis.kill()
            with pytest.raises(RatesDown):
                await one.rates.announce("one", clock.now_ms())
            await one.buckets.announce_once()
            assert not one.buckets.is_shared
            await asyncio.to_thread(redis.start)
            clock.advance(250)
            await until(lambda: one.buckets.is_shared)
            await other.buckets.announce_once()
            await one.buckets.announce_once()
            assert one.buckets.servers == 2
            # The other server announces itself no more.
            for _ in range(4):
                clock.advance(4_000)
                await one.buckets.announce_once()
            await runtime.idle()
    finally:
        redis.close()


moves = st.tuples(
    st.sampled_from(["take", "owe", "give back"]),
    st.integers(0, 3_000),
    st.integers(0, 50),
    st.sampled_from([(10.0, 20.0), (0.5, 1.0), (0.0, 0.0), (1_000.0, 3.0)]),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(moves, min_size=1, max_size=25))
def test_the_script_is_the_bucket(redis_url: str, steps: list[tuple[str, int, int, tuple[float, float]]]) -> None:
    async def compare() -> None:
        rates = RedisRates(redis_url, goes_by_caller=True)
        tenant = uuid4().hex
        now_ms = 1_000_000
        bucket: TokenBucket | None = None
        for act, pause_ms, amount, (per_s, capacity) in steps:
            now_ms += pause_ms
            if bucket is None:
                bucket = TokenBucket(per_s, capacity, now_ms)
            bucket.change(per_s, capacity, now_ms)
            charge = Charge(tenant, "write_ops_per_s", per_s, capacity, amount)
            if act == "take":
                taken = await rates.take(tenant, [], [[charge]], [], now_ms)
                expected = bucket.shortage_ms(amount, now_ms)
                assert taken.waits == [(expected, 1 if expected else 0)]
                if not expected:
                    bucket.take(amount, now_ms)
            elif act == "owe":
                await rates.take(tenant, [charge], [], [], now_ms)
                bucket.take(amount, now_ms)
            else:
                await rates.take(tenant, [charge._replace(amount=-amount)], [], [], now_ms)
                bucket.give_back(amount, now_ms)
            if bucket.is_full(now_ms):
                bucket = None  # full, so it equals a new one
        await rates.leave("nobody")

    _run(compare())


async def test_a_clock_that_steps_back_fills_nothing(redis_url: str) -> None:
    rates = RedisRates(redis_url, goes_by_caller=True)
    charge = ops(10, per_s=10)
    assert (await rates.take("acme", [], [[charge]], [], 10_000)).waits == [(0, 0)]
    for now_ms in (9_000, 9_900, 10_000):
        assert (await rates.take("acme", [], [[charge]], [], now_ms)).waits == [(1_000, 1)]
    assert (await rates.take("acme", [], [[charge]], [], 11_000)).waits == [(0, 0)]
    await rates.leave("nobody")


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_bucket_that_is_full_takes_no_room(redis_server: RedisServer, redis_url: str) -> None:
    async def fill() -> None:
        rates = RedisRates(redis_url, goes_by_caller=True)
        charge = ops(5, per_s=5, capacity=capacity_of(5, 1))
        await rates.take("acme", [], [[charge]], [], 1_000)
        assert redis_server.keys() == [b"holdfast:rate:acme"]
        await rates.take("acme", [], [[charge._replace(amount=0)]], [], 2_000)
        assert redis_server.keys() == []
        await rates.leave("nobody")

    _run(fill())
