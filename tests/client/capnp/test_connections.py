"""The connections of a Cap'n Proto client: one, and more once there is much to carry."""

import asyncio

import holdfast
from holdfast.client.capnp.connections import CALLS_PER_CONNECTION, MAX_CONNECTIONS
from holdfast.client.queue import AsyncQueue
from holdfast.clock import SystemClock
from tests.doors.capnp_serving import serve_capnp
from tests.doors.serving import Tokens, caller

PATIENCE_S = 30


async def waiting(q: AsyncQueue, number: int) -> "list[asyncio.Task[list[holdfast.AsyncMessage]]]":
    """Start this number of waiting claims. The server has received all of them."""
    await q.enqueue("makes the queue")
    [message] = await q.claim()
    await message.ack()
    claims = [asyncio.create_task(q.claim(wait=PATIENCE_S)) for _ in range(number)]
    async with asyncio.timeout(PATIENCE_S):
        while (await q.stats()).waiters < number:
            await asyncio.sleep(0)
    return claims


async def test_few_calls_at_once_go_over_one_connection() -> None:
    async with serve_capnp(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await asyncio.gather(*(q.enqueue([n, n]) for n in range(CALLS_PER_CONNECTION)))

        assert len(server.door.connections) == 1
        assert (await q.stats()).ready == 2 * CALLS_PER_CONNECTION


async def test_many_calls_at_once_go_over_some_connections_more() -> None:
    async with serve_capnp(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await asyncio.gather(*(q.enqueue([n, n]) for n in range(CALLS_PER_CONNECTION + 1)))
        assert len(server.door.connections) == 2

        await asyncio.gather(*(q.enqueue([n, n]) for n in range(10 * CALLS_PER_CONNECTION)))
        assert len(server.door.connections) == MAX_CONNECTIONS
        assert (await q.stats()).ready == 2 * (11 * CALLS_PER_CONNECTION + 1)


async def test_what_waits_on_a_connection_that_is_lost_waits_on_over_another() -> None:
    async with (
        serve_capnp(SystemClock()) as server,
        holdfast.open_async(server.url) as hf,
        holdfast.open_async(server.url) as producer,
    ):
        claims = await waiting(hf.queue("q"), 2 * CALLS_PER_CONNECTION + 1)
        assert len(server.door.connections) == 3

        full = max(server.door.connections, key=lambda connection: len(connection.in_hand()))
        assert len(full.in_hand()) == CALLS_PER_CONNECTION
        full.stream.cut_off(None)
        # Of another client: an enqueue that is lost with its connection is not repeated.
        await producer.queue("q").enqueue(list(range(len(claims))))

        async with asyncio.timeout(PATIENCE_S):
            claimed = [message.json() for messages in await asyncio.gather(*claims) for message in messages]
        assert sorted(claimed) == list(range(len(claims)))


async def test_every_connection_says_who_calls() -> None:
    identity = Tokens({"secret": caller("acme", "read", "write")})
    async with (
        serve_capnp(SystemClock(), identity=identity) as server,
        holdfast.open_async(server.url, token="secret") as hf,
    ):
        q = hf.queue("q", tenant="acme")
        claims = await waiting(q, CALLS_PER_CONNECTION + 1)
        assert len(server.door.connections) == 2

        await q.enqueue(list(range(len(claims))))
        async with asyncio.timeout(PATIENCE_S):
            assert all(await asyncio.gather(*claims))
