"""Each fault of the proxy is the one it is named after, as both ends see it."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind, scripted, seeded
from tests.waiting import until

HANG_S = 30
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n0123456789"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabcdefghij"


class Upstream:
    """Answers each whole request with the reply, and keeps what it read and how each connection ended."""

    def __init__(self) -> None:
        self.read = bytearray()
        self.pieces = 0
        self.answered = 0
        self.ends: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = "closed"
        try:
            while data := await reader.read(1 << 16):
                self.read += data
                self.pieces += 1
                if len(self.read) % len(REQUEST) == 0:
                    writer.write(REPLY)
                    self.answered += 1
        except ConnectionResetError:
            end = "reset"
        self.ends.append(end)
        writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """The reply, as far as it came."""
        self.writer.write(REQUEST)
        return await self.hear()

    async def hear(self) -> bytes:
        came = b""
        async with asyncio.timeout(HANG_S):
            while len(came) < len(REPLY):
                part = await self.reader.read(1 << 16)
                if not part:
                    break
                came += part
        return came


async def connect(proxy: FaultProxy) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2])))


async def test_without_a_fault_every_exchange_passes_whole(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url) as proxy:
        client = await connect(proxy)
        assert [await client.ask() for _ in range(3)] == [REPLY] * 3
        assert (proxy.connections, proxy.exchanges, proxy.faults) == (1, 3, {})
        client.writer.close()
        await until(lambda: upstream.ends == ["closed"])


async def test_the_client_s_half_close_is_passed_on_and_the_reply_still_comes(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url) as proxy:
        client = await connect(proxy)
        client.writer.write(REQUEST)
        client.writer.write_eof()
        assert await client.hear() == REPLY
        await until(lambda: upstream.ends == ["closed"])
        client.writer.close()


@pytest.mark.parametrize(
    ("kind", "arrived", "came"),
    [
        (NetworkFaultKind.CUT_BEFORE_REQUEST, b"", b""),
        (NetworkFaultKind.CUT_IN_REQUEST, REQUEST[:-5], b""),
        (NetworkFaultKind.CUT_BEFORE_REPLY, REQUEST, b""),
        (NetworkFaultKind.CUT_IN_REPLY, REQUEST, REPLY[:-5]),
    ],
)
async def test_a_cut_happens_where_its_name_says(
    upstream: Upstream, kind: NetworkFaultKind, arrived: bytes, came: bytes
) -> None:
    async with FaultProxy(upstream.url, scripted({(0, 0): Fault(kind)})) as proxy:
        client = await connect(proxy)
        assert await client.ask() == came
        assert bytes(upstream.read) == arrived
        assert upstream.answered == (arrived == REQUEST)
        await until(lambda: len(upstream.ends) == 1)
        assert proxy.faults == {kind: 1}
        client.writer.close()


async def test_a_reset_follows_the_whole_reply(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url, scripted({(0, 0): Fault(NetworkFaultKind.RESET)})) as proxy:
        client = await connect(proxy)
        assert await client.ask() == REPLY
        with pytest.raises(ConnectionResetError) as refused:
            await client.hear()
        assert refused.value.errno == errno.ECONNRESET
        await until(lambda: upstream.ends == ["reset"])
        client.writer.close()


async def test_a_silent_connection_passes_nothing_and_signals_no_end(upstream: Upstream) -> None:
    async with FaultProxy(
        upstream.url, scripted({(0, 0): Fault(NetworkFaultKind.SILENCE)}), half_open_timeout_s=0.05
    ) as proxy:
        client = await connect(proxy)
        asking = asyncio.create_task(client.ask())
        await until(lambda: proxy.faults == {NetworkFaultKind.SILENCE: 1})
        client.writer.write_eof()
        await asyncio.sleep(0)
        assert not asking.done()
        assert not upstream.ends
        assert await asking == b""  # forgotten
        assert not upstream.read
        client.writer.close()


async def test_without_replies_the_server_does_not_learn_that_the_client_has_closed(
    upstream: Upstream,
) -> None:
    async with FaultProxy(
        upstream.url, scripted({(0, 0): Fault(NetworkFaultKind.NO_REPLY)}), half_open_timeout_s=0.05
    ) as proxy:
        client = await connect(proxy)
        client.writer.write(REQUEST)
        await until(lambda: upstream.answered == 1)
        client.writer.transport.abort()
        await asyncio.sleep(0.01)
        assert not upstream.ends
        await until(lambda: len(upstream.ends) == 1)  # forgotten


async def test_latency_and_bandwidth_delay_bytes_and_lose_none(upstream: Upstream) -> None:
    slow = {
        (0, 0): Fault(NetworkFaultKind.LATENCY, ms=5),
        (1, 0): Fault(NetworkFaultKind.BANDWIDTH, bytes_per_s=10_000),
    }
    async with FaultProxy(upstream.url, scripted(slow)) as proxy:
        loop = asyncio.get_running_loop()
        for least_s in (0.010, 2 * len(REPLY) / 10_000 * 0.9):
            client = await connect(proxy)
            began = loop.time()
            assert await client.ask() == REPLY
            assert loop.time() - began >= least_s
            client.writer.close()


async def test_a_slow_loris_sends_its_request_in_small_pieces(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url, scripted({(0, 0): Fault(NetworkFaultKind.SLOW_LORIS, ms=1)})) as proxy:
        client = await connect(proxy)
        assert await client.ask() == REPLY
        assert upstream.pieces >= 3
        client.writer.close()


async def test_a_scripted_fault_applies_only_to_its_own_exchange(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url, scripted({(1, 2): Fault(NetworkFaultKind.CUT_BEFORE_REPLY)})) as proxy:
        first, second = await connect(proxy), await connect(proxy)
        assert [await first.ask() for _ in range(4)] == [REPLY] * 4
        assert [await second.ask() for _ in range(3)] == [REPLY, REPLY, b""]
        first.writer.close()
        second.writer.close()


async def test_an_injected_fault_applies_to_the_next_exchange_on_any_connection(upstream: Upstream) -> None:
    async with FaultProxy(upstream.url) as proxy:
        client = await connect(proxy)
        assert await client.ask() == REPLY
        proxy.inject(Fault(NetworkFaultKind.CUT_BEFORE_REPLY), Fault(NetworkFaultKind.CUT_BEFORE_REQUEST))
        assert await client.ask() == b""
        client.writer.close()
        for came in (b"", REPLY):
            client = await connect(proxy)
            assert await client.ask() == came
            client.writer.close()


async def test_after_stop_faults_exchanges_pass_whole(upstream: Upstream) -> None:
    async with FaultProxy(
        upstream.url, lambda connection, exchange: Fault(NetworkFaultKind.CUT_BEFORE_REPLY) if exchange else None
    ) as proxy:
        client = await connect(proxy)
        assert await client.ask() == REPLY
        proxy.inject(Fault(NetworkFaultKind.RESET))
        proxy.stop_faults()
        assert [await client.ask() for _ in range(3)] == [REPLY] * 3
        client.writer.close()


async def test_a_connection_ends_when_the_server_does_not_listen() -> None:
    async with FaultProxy("http://127.0.0.1:1") as proxy:
        client = await connect(proxy)
        assert await client.hear() == b""
        client.writer.close()


def test_a_seed_gives_the_same_faults_again_and_all_kinds() -> None:
    def planned(seed: int) -> list[Fault | None]:
        plan = seeded(seed)
        return [plan(number // 4, number % 4) for number in range(1_000)]

    assert planned(7) == planned(7)
    assert planned(7) != planned(8)
    assert {fault.kind for fault in planned(7) if fault is not None} == set(NetworkFaultKind)
    assert 600 < planned(7).count(None) < 800


async def test_connections_that_arrive_as_the_proxy_ends_are_closed_too(upstream: Upstream) -> None:
    """Wherever they have got to: accepted and without a task yet, or being connected to the server."""
    for turns in range(12):
        async with FaultProxy(upstream.url) as proxy:
            port = int(proxy.url.rpartition(":")[2])
            late = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
        assert not proxy._tasks
        for each in late:
            each.settimeout(HANG_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(each.recv, 1) == b"", turns
            each.close()
