"""The connections of a Cap'n Proto client: one, and more once there is much to carry."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.client.capnp.connections import CALLS_PER_CONNECTION, MAX_CONNECTIONS, CapnpClientConnections
from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.clock import SystemClock
from tests.doors.capnp_serving import serve_capnp
from tests.doors.serving import Tokens, caller

PATIENCE_S = 30


def connections_of(hf: AsyncHoldfast) -> CapnpClientConnections:
    transport: Any = hf._transport
    connections: CapnpClientConnections = transport._calls.connections
    return connections


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


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


@pytest.mark.spec("8.5")
async def test_connections_that_are_no_longer_needed_are_closed() -> None:
    async with serve_capnp(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        connections = connections_of(hf)
        connections.idle_s = 0.05
        for number in range(3):
            await asyncio.gather(*(q.enqueue([n, n]) for n in range(3 * CALLS_PER_CONNECTION)))
            assert len(server.door.connections) >= 2
            await until(lambda: len(server.door.connections) == 1)
            # The first one stays, and carries the next call.
            assert (await q.stats()).ready == 6 * CALLS_PER_CONNECTION * (number + 1)
        assert len(server.door.connections) == 1


async def test_a_connection_that_is_used_again_in_time_stays() -> None:
    async with serve_capnp(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        connections = connections_of(hf)
        for _ in range(2):
            claims = await waiting(q, CALLS_PER_CONNECTION + 1)
            assert len(server.door.connections) == 2
            # The second connection is in use, so no timer closes it.
            assert not connections._idle
            await q.enqueue(list(range(len(claims))))
            await asyncio.gather(*claims)
            assert len(connections._idle) == 1


async def test_a_connection_with_an_upload_on_it_is_not_closed() -> None:
    async with serve_capnp(SystemClock(), max_payload="8MiB") as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        connections = connections_of(hf)
        connections.idle_s = 0.05
        claims = await waiting(q, CALLS_PER_CONNECTION)
        may_end = asyncio.Event()

        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * (2 << 20)
            await may_end.wait()
            yield b"y"

        upload = asyncio.create_task(q.upload(parts()))
        await until(lambda: any(each.uploads for each in server.door.connections))
        assert len(server.door.connections) == 2
        assert not connections._idle
        may_end.set()
        await upload
        await until(lambda: len(server.door.connections) == 1)
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)


async def test_a_client_that_closes_waits_for_nothing_idle() -> None:
    async with serve_capnp(SystemClock()) as server:
        async with holdfast.open_async(server.url) as hf:
            q = hf.queue("q")
            await asyncio.gather(*(q.enqueue([n, n]) for n in range(3 * CALLS_PER_CONNECTION)))
            assert connections_of(hf)._idle
        await until(lambda: not server.door.connections)
