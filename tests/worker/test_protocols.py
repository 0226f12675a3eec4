"""A worker given the URL of an HTTP port: it finds the framed protocol, or does without."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.client.choosing.transport import ChosenTransport
from holdfast.client.framed.transport import FramedTransport
from holdfast.client.http.transport import HttpTransport
from tests.client.answering import answering
from tests.client.choosing.gate import gate_before
from tests.server.served import Served, urls_in

PATIENCE_S = 30


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served("--store", "memory://", "--framed-port", "0") as served:
        yield served


@pytest.fixture
def url(served: Served) -> str:
    return urls_in(served.line)["url"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("protocol_chosen ")]


def current(client: holdfast.AsyncHoldfast) -> object:
    """Return the transport that a worker's client uses now."""
    transport = client._transport
    return transport.current if isinstance(transport, ChosenTransport) else transport


async def transport_of(url: str, **settings: Any) -> tuple[object, list[int]]:
    """Return the transport of a worker, and what it has done of one message."""
    done: list[int] = []
    is_done = asyncio.Event()
    worker = holdfast.Worker(url, **settings)

    @worker.handler("protocols")
    async def handle(number: int) -> None:
        done.append(number)
        is_done.set()

    async with asyncio.timeout(PATIENCE_S), worker:
        transport = current(worker.client)
        await worker.client.queue("protocols").enqueue(7)
        await is_done.wait()
    return transport, done


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")


async def test_it_uses_the_framed_port_where_there_is_one(
    served: Served, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport, done = await transport_of(url)
    assert (type(transport), done) == (FramedTransport, [7])
    assert lines(caplog) == [f"protocol_chosen protocol=framed url={urls_in(served.line)['framed_url']}"]


async def test_it_upgrades_the_http_port_where_there_is_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with Served("--store", "memory://") as served:
        transport, done = await transport_of(served.url)
    assert (type(transport), done) == (FramedTransport, [7])
    assert lines(caplog) == [f"protocol_chosen protocol=framed url={served.url}"]


async def test_it_uses_http_on_request(url: str, caplog: pytest.LogCaptureFixture) -> None:
    transport, done = await transport_of(url, protocol="http")
    assert (type(transport), done) == (HttpTransport, [7])


@pytest.fixture
async def narrow(served: Served) -> AsyncIterator[str]:
    """The URL of a proxy that forwards HTTP and nothing else: it closes a connection that asks for an upgrade."""
    port = int(urls_in(served.line)["url"].rpartition(":")[2])

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Upgrade: holdfast" in head:
            writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        behind, there = await asyncio.open_connection("127.0.0.1", port)
        # The answer names a port that nothing listens on from here.
        there.write(head)
        if b"/healthz" in head:
            answer = await behind.readuntil(b"}")
            framed = urls_in(served.line)["framed_url"].rpartition(":")[2].encode()
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                other = str(free.getsockname()[1]).encode()
            writer.write(answer.replace(framed, other.rjust(len(framed))))
        async with asyncio.TaskGroup() as both:
            both.create_task(forward(reader, there))
            both.create_task(forward(behind, writer))

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    listening.close()


@pytest.mark.spec("8.15")
async def test_it_falls_back_to_http_where_a_proxy_lets_nothing_else_through(
    narrow: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport, done = await transport_of(narrow)
    assert (type(transport), done) == (HttpTransport, [7])
    [line] = lines(caplog)
    assert line.startswith(f"protocol_chosen protocol=http url={narrow} reason=holdfast://127.0.0.1:")
    assert "does not upgrade to the framed protocol (HTTP/1.1 426 Upgrade Required)" in line


async def test_a_running_worker_falls_back_to_http_when_frames_no_longer_get_through() -> None:
    done: asyncio.Queue[int] = asyncio.Queue()
    with Served("--store", "memory://") as served:
        await handle_over_both(served, done)


async def handle_over_both(served: Served, done: "asyncio.Queue[int]") -> None:
    async with gate_before(served.port) as gate:
        worker = holdfast.Worker(gate.url)

        # A delivery to the connection that is cut comes back when its lease ends.
        @worker.handler("moved", concurrency=2, lease="2s")
        async def handle(number: int) -> None:
            await done.put(number)

        async with asyncio.timeout(PATIENCE_S), worker, holdfast.open_async(served.url) as direct:
            q = direct.queue("moved")
            await q.enqueue(1)
            assert await done.get() == 1
            assert type(current(worker.client)) is FramedTransport
            gate.lets_frames = False
            gate.cut()
            await q.enqueue(2)
            assert await done.get() == 2
            assert type(current(worker.client)) is HttpTransport


async def test_frames_that_were_asked_for_are_not_replaced_by_http(narrow: str) -> None:
    client = holdfast.Worker(narrow, protocol="framed")._open(narrow)
    with pytest.raises(holdfast.StoreUnavailable, match="cannot be used over the framed protocol"):
        await client.__aenter__()


async def test_a_server_that_offers_none_is_used_over_http(caplog: pytest.LogCaptureFixture) -> None:
    async with answering(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"ok"}') as url:
        client = holdfast.Worker(url)._open(url)
        async with client:
            assert type(current(client)) is HttpTransport
    assert lines(caplog) == [
        f"protocol_chosen protocol=http url={url} reason=the server does not offer the framed protocol"
    ]


def test_a_protocol_that_is_none_or_belongs_to_another_url_is_refused() -> None:
    for url, protocol in (("http://127.0.0.1:1", "capnp"), ("memory://", "http"), ("holdfast://127.0.0.1:1", "framed")):
        with pytest.raises(holdfast.InvalidArgument) as refused:
            holdfast.Worker(url, protocol=protocol)
        assert refused.value.facts["field"] == "protocol"
