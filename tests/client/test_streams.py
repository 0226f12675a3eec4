"""Subscriptions that share a connection with calls: the reader is sent as much as it has room for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.clock import SystemClock
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed

PATIENCE_S = 30


@pytest.fixture(params=[serve_capnp, serve_framed])
def serving(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def hf(serving: Any) -> AsyncIterator[AsyncHoldfast]:
    async with serving(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        yield hf


async def in_flight(q: AsyncQueue) -> int:
    return (await q.stats()).in_flight


async def test_a_stream_claims_no_more_than_its_reader_has_room_for(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue(list(range(10)))
    async with asyncio.timeout(PATIENCE_S):
        messages = q.subscribe(prefetch=3)
        held = [await anext(messages) for _ in range(3)]
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.wait((waiting,), timeout=0.05)
        assert not waiting.done()
        assert await in_flight(q) == 3

        await held[1].ack()
        assert (await waiting).json() == 3
        assert await in_flight(q) == 3
        await messages.aclose()


async def test_every_verdict_makes_room_but_an_extension(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue(list(range(8)))
    async with asyncio.timeout(PATIENCE_S):
        messages = q.subscribe(prefetch=1, lease=3_600)
        seen = []
        for settle in ("ack", "nack", "release", "ack"):
            message = await anext(messages)
            seen.append(message.attempt)
            waiting = asyncio.ensure_future(anext(messages))
            await message.extend(7_200)
            await asyncio.wait((waiting,), timeout=0.02)
            assert not waiting.done()
            await getattr(message, settle)()
            follower = await waiting
            await q.ack([follower])
        assert seen == [1, 1, 1, 1]
        await messages.aclose()


async def test_a_lease_that_ran_out_makes_room(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue([1, 2])
    async with asyncio.timeout(PATIENCE_S):
        messages = q.subscribe(prefetch=1, lease=0.2)
        first = await anext(messages)
        second = await anext(messages)
        assert {first.json(), second.json()} <= {1, 2}
        await messages.aclose()


async def test_a_stream_that_waits_for_room_ends_with_its_client(serving: Any) -> None:
    async with serving(SystemClock()) as server, asyncio.timeout(PATIENCE_S):
        async with holdfast.open_async(server.url) as hf:
            q = hf.queue("q")
            await q.enqueue([1, 2])
            messages = q.subscribe(prefetch=1)
            await anext(messages)
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.wait((waiting,), timeout=0.02)
        with pytest.raises(StopAsyncIteration):
            await waiting
