"""The framed door of a whole server: its port, upgrades of the HTTP port, and the end of both."""

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.framed.frames import CONNECTION, FrameKind
from tests.doors.framed.frames_by_hand import Peer, connected, greeted
from tests.server.served import Served, urls_in

UPGRADE = b"GET /v1/framed HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: holdfast\r\n\r\n"


def framed_port(server: Served) -> int:
    return int(urls_in(server.line)["framed_url"].rsplit(":", 1)[1])


def health(server: Served) -> dict[str, Any]:
    with urllib.request.urlopen(urls_in(server.line)["url"] + "/healthz", timeout=10) as answer:
        said: dict[str, Any] = json.load(answer)
        return said


async def upgraded(peer: Peer) -> bytes:
    """Return the head of the answer."""
    peer.writer.write(UPGRADE)
    return await peer.reader.readuntil(b"\r\n\r\n")


@pytest.mark.spec("8.15")
async def test_the_line_and_healthz_name_the_framed_port(tmp_path: Path) -> None:
    with Served("--data", tmp_path / "store", "--framed-port", "0", "--log-format", "json") as server:
        port = framed_port(server)
        assert health(server) == {"status": "ok", "framed_port": port, "framed_upgrade": True}
        async with greeted(port) as peer:
            await peer.enqueue(b"hi")
            assert [each.payload for each in await peer.claim()] == [b"hi"]
        server.signal()
        assert server.end() == 0


@pytest.mark.spec("8.15")
async def test_without_a_port_of_its_own_it_is_reached_by_upgrade(tmp_path: Path) -> None:
    with Served("--data", tmp_path / "store", "--log-format", "json") as server:
        assert health(server) == {"status": "ok", "framed_upgrade": True}
        async with connected(server.port) as peer:
            assert (await upgraded(peer)).startswith(b"HTTP/1.1 101 ")
            await peer.hello()
            await peer.enqueue(b"hi")
            assert [each.payload for each in await peer.claim()] == [b"hi"]
            server.signal()
            assert (await peer.next_of(CONNECTION))[0] == FrameKind.GOING_AWAY
            assert await peer.end() == []
        assert server.end() == 0


@pytest.mark.spec("5.7")
async def test_a_server_that_drains_answers_what_waits_and_refuses_what_is_new(
    tmp_path: Path,
) -> None:
    with Served("--data", tmp_path / "store", "--framed-port", "0", "--log-format", "json") as server:
        async with greeted(framed_port(server)) as peer:
            waiting = peer.open_claim(None)
            await peer.enqueue(b"x", queue="other")
            server.signal()
            await peer.next_of(CONNECTION)
            late = peer.open("enqueue", "acme", "jobs", None, [[b"late"]])
            assert await peer.claimed(waiting) == []
            frames = await peer.end()
            assert all(frame[:2] == (FrameKind.ERROR, late) for frame in frames)
        assert server.end() == 0


async def test_two_ports_that_are_the_same_are_refused_by_the_flag(tmp_path: Path) -> None:
    with Served("--data", tmp_path / "one", "--framed-port", "0", "--log-format", "json") as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "serve", "--data", str(tmp_path / "two"), "--port", "0"),
            *("--framed-port", str(framed_port(server))),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode
        assert b"--framed-port" in said
