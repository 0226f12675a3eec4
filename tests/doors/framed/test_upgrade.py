"""The HTTP port upgraded to frames: a connection continues with the other protocol, or is refused as HTTP."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.doors.http.hosts import Hosts
from holdfast.testing.listening import stop_listening
from holdfast.wire.framed.greetings import UPGRADE_NAME, UPGRADE_PATH
from tests.doors.connections.connections import HELLO, App, Run
from tests.doors.credentials import Authority
from tests.doors.framed.frames_by_hand import Peer, connected
from tests.doors.framed.serving import FramedServer, serve_framed
from tests.doors.framed.test_identity import contexts
from tests.waiting import until as eventually

ASKED = (b"Connection: Upgrade", b"Upgrade: holdfast")


def upgrade(*headers: bytes, host: bytes = b"localhost", method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" /v1/framed HTTP/1.1", b"Host: " + host, *headers, b"", b""])


class Upgradable:
    def __init__(self, port: int, framed: FramedServer, group: HttpConnections) -> None:
        self.port = port
        self.framed = framed
        self.group = group


@asynccontextmanager
async def upgradable(tls: ssl.SSLContext | None = None) -> AsyncIterator[Upgradable]:
    """An HTTP server whose connections can be upgraded."""

    async with serve_framed(SystemClock()) as framed:
        app = App()
        offer = Upgrade(UPGRADE_PATH.encode(), UPGRADE_NAME.encode(), framed.door.connect, Hosts().check)
        group = HttpConnections(app, app.hot_calls, upgrade=offer)
        listening = await asyncio.get_running_loop().create_server(group.make, "127.0.0.1", 0, ssl=tls)
        try:
            yield Upgradable(listening.sockets[0].getsockname()[1], framed, group)
        finally:
            await stop_listening(listening)
            await group.close(1.0)


async def head_of(peer: Peer) -> bytes:
    return await peer.reader.readuntil(b"\r\n\r\n")


@pytest.mark.spec("8.15")
def test_a_connection_continues_with_frames(run: Run) -> None:
    async def test() -> None:
        async with upgradable() as server:
            async with connected(server.port) as peer:
                peer.writer.write(HELLO)
                await head_of(peer)
                await peer.reader.readuntil(b"}")
                peer.writer.write(upgrade(*ASKED))
                head = await head_of(peer)
                assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
                assert b"upgrade: holdfast\r\n" in head
                await peer.hello()
                await peer.enqueue(b"x" * 100_000)
                waiting = peer.open_claim(None, queue="other")
                assert [len(each.payload) for each in await peer.claim()] == [100_000]
                assert not server.group.open
                assert len(server.framed.door.connections) == 1
                assert waiting
            await eventually(lambda: not server.framed.door.connections)

    run(test())


@pytest.mark.spec("8.15")
def test_a_connection_over_tls_continues_with_frames(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        server_tls, client_tls = contexts(tmp_path, Authority(), None)
        async with (
            upgradable(server_tls) as server,
            connected(server.port, client_tls, server_hostname="localhost") as peer,
        ):
            peer.writer.write(upgrade(*ASKED))
            assert b" 101 " in await head_of(peer)
            await peer.hello()
            await peer.enqueue(b"x" * 1_000_000)
            assert [len(each.payload) for each in await peer.claim()] == [1_000_000]

    run(test())


def test_the_name_of_the_protocol_may_be_in_any_case_and_come_in_parts(run: Run) -> None:
    async def test() -> None:
        async with upgradable() as server, connected(server.port) as peer:
            for byte in upgrade(b"connection: keep-alive, UPGRADE", b"UPGRADE: Holdfast"):
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
            assert b" 101 " in await head_of(peer)
            await peer.hello()

    run(test())


@pytest.mark.spec("8.14", "8.15")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (upgrade(), b"200"),
        (upgrade(b"Connection: Upgrade", b"Upgrade: websocket"), b"200"),
        (upgrade(*ASKED, method=b"POST"), b"200"),
        (upgrade(*ASKED, host=b"evil.example"), b"403"),
        (upgrade(*ASKED, b"Origin: http://evil.example"), b"403"),
        (upgrade(*ASKED, b"Content-Length: 3") + b"abc", b"400"),
        (upgrade(*ASKED) + HELLO, b"400"),
        (upgrade(*ASKED) + b"\0\0\0\x05\x07\0\0\0\0", b"400"),
    ],
    ids=["not asked", "another protocol", "POST", "host", "origin", "body", "request behind", "frame behind"],
)
async def test_any_other_request_is_not_upgraded(sent: bytes, status: bytes) -> None:
    async with upgradable() as server, connected(server.port) as peer:
        peer.writer.write(sent)
        assert (await head_of(peer)).split()[1] == status
        assert not server.framed.door.connections


async def test_a_request_to_upgrade_behind_one_that_is_under_way_is_refused() -> None:
    async with upgradable() as server, connected(server.port) as peer:
        peer.writer.write(HELLO + upgrade(*ASKED))
        assert b" 101 " not in await peer.reader.read()
        assert not server.framed.door.connections
