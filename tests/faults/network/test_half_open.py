"""Connections whose other end is gone without a word, or hardly there: nobody waits for ever, nothing is stranded."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.http.connection import HttpClientConnection
from holdfast.client.remote.lost import Lost
from holdfast.clock import SystemClock
from holdfast.testing import ManualClock
from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import Server, serve
from tests.waiting import until

HANG_S = 30
TIMEOUT = "100ms"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[serve, serve_framed])
def serving(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def server(clock: ManualClock, serving: Any) -> AsyncIterator[Server]:
    async with serving(clock) as opened:
        yield opened


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.url, half_open_timeout_s=HANG_S) as opened:
        yield opened


# --- A client with a half-open server ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NetworkFaultKind.SILENCE, NetworkFaultKind.NO_REPLY])
async def test_a_client_comes_back_from_a_server_that_says_nothing(
    server: Server, proxy: FaultProxy, kind: NetworkFaultKind
) -> None:
    async with asyncio.timeout(HANG_S), holdfast.open_async(proxy.url, timeout=TIMEOUT) as hf:
        q = hf.queue("q")
        proxy.inject(Fault(kind))
        [id] = await q.enqueue("a", key="k")  # asked again on another connection
        assert id.duplicate == (kind is NetworkFaultKind.NO_REPLY)
        proxy.inject(Fault(kind))
        assert (await q.stats()).ready == 1
        proxy.inject(Fault(kind))
        with pytest.raises(holdfast.StoreUnavailable, match="may have been carried out"):
            await q.enqueue("b")
        assert (await q.stats()).ready == (1 if kind is NetworkFaultKind.SILENCE else 2)


@pytest.mark.parametrize("kind", [NetworkFaultKind.SILENCE, NetworkFaultKind.NO_REPLY])
async def test_a_claim_that_waits_asks_again_when_its_round_and_its_timeout_are_over(
    serving: Any, kind: NetworkFaultKind
) -> None:
    async with (
        asyncio.timeout(HANG_S),
        serving(SystemClock()) as server,
        FaultProxy(server.url) as proxy,
        holdfast.open_async(proxy.url, timeout=TIMEOUT, wait_round="50ms") as hf,
    ):
        q = hf.queue("q")
        await q.enqueue("first")
        async with (await q.claim())[0]:
            pass
        proxy.inject(Fault(kind))
        waiting = asyncio.create_task(q.claim(wait=None))
        await until(lambda: proxy.faults[kind] == 1)
        await until(lambda: proxy.exchanges >= 5)  # it waits on another connection now
        async with holdfast.open_async(proxy.url) as other:
            await other.queue("q").enqueue("a")
        [message] = await waiting
        assert message.json() == "a"


async def test_a_client_gives_up_on_a_server_that_never_answers(proxy: FaultProxy) -> None:
    async with asyncio.timeout(HANG_S), holdfast.open_async(proxy.url, timeout=TIMEOUT) as hf:
        proxy.inject(*[Fault(NetworkFaultKind.SILENCE)] * 100)
        with pytest.raises(holdfast.StoreUnavailable, match="no response within"):
            await hf.queue("q").stats()


async def test_slow_connections_serve_what_they_were_asked(proxy: FaultProxy) -> None:
    async with asyncio.timeout(HANG_S), holdfast.open_async(proxy.url) as hf:
        q = hf.queue("q")
        for fault in (
            Fault(NetworkFaultKind.LATENCY, ms=10),
            Fault(NetworkFaultKind.BANDWIDTH, bytes_per_s=200_000),
            Fault(NetworkFaultKind.SLOW_LORIS, ms=1),
        ):
            proxy.inject(fault, fault)
            await q.enqueue(bytes(20_000) if fault.kind is NetworkFaultKind.BANDWIDTH else b"a")
            [message] = await q.claim(lease=60)
            await message.ack()
        assert proxy.faults.total() == 6


async def test_a_connection_that_was_reset_just_now_is_left_like_any_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(HttpClientConnection, *listener.getsockname())
        accepted, _ = listener.accept()
        calling = asyncio.create_task(connection.call([b"request"], None))
        await asyncio.sleep(0)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()  # the kernel knows of the reset, the loop has not heard of it
        assert await connection.cancel(HANG_S) is None
        with pytest.raises(Lost):
            await calling


# --- A server with half-open clients -----------------------------------------------------------------------------


# Over frames the server is told: the cancel still gets through.
@pytest.mark.parametrize("serving", [serve])
@pytest.mark.slow
async def test_what_a_claim_takes_for_a_client_that_is_gone_without_a_word_comes_back_after_its_lease(
    server: Server, proxy: FaultProxy, clock: ManualClock
) -> None:
    async with holdfast.open_async(proxy.url, timeout=TIMEOUT) as gone, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.set_policy(lease_ms=5_000)
        proxy.inject(Fault(NetworkFaultKind.NO_REPLY))
        waiting = asyncio.create_task(gone.queue("q").claim(wait=60, lease=5))
        await until(lambda: proxy.faults[NetworkFaultKind.NO_REPLY] == 1)
        while not (await q.stats()).waiters:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await q.stats()).waiters == 1  # the server was not told
        await q.enqueue("a")
        assert await q.claim() == []  # it is the dead one's
        clock.advance(4_999)
        assert await q.claim() == []
        clock.advance(1)
        [message] = await q.claim()
        assert (message.attempt, (await q.get(message.id)).expiries) == (2, 1)


# Over frames they would share a few connections.
@pytest.mark.parametrize("serving", [serve])
async def test_a_hundred_slow_lorises_and_silent_ones_keep_nobody_else_waiting(server: Server) -> None:
    def plan(connection: int, exchange: int) -> Fault | None:
        return Fault(NetworkFaultKind.SILENCE) if connection % 2 else Fault(NetworkFaultKind.SLOW_LORIS, ms=1_000)

    async with (
        FaultProxy(server.url, plan) as proxy,
        holdfast.open_async(proxy.url, timeout="30s", pool=100) as slow,
        holdfast.open_async(server.url) as hf,
    ):
        await hf.queue("other").enqueue("x")
        calls = [asyncio.create_task(slow.queue(f"q{number}").enqueue("slow")) for number in range(100)]
        await until(lambda: proxy.faults.total() == 100)
        async with asyncio.timeout(HANG_S):
            for number in range(50):
                await hf.queue("q").enqueue(number)
                async with (await hf.queue("q").claim())[0]:
                    pass
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
