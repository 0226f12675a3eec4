"""The connections of a framed client: greeted, shared, kept alive, and left when the server goes."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.wire.framed.frames import FrameKind
from tests.client.framed.scripted import ID, Peer, scripted
from tests.doors.framed.serving import serve_framed
from tests.waiting import until

PATIENCE_S = 30


def enqueues(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
    if kind is FrameKind.CALL:
        peer.result(call, [[ID + call]])


def tokens(peer: Peer) -> list[str | None]:
    return [value[1] for kind, _, value in peer.seen if kind is FrameKind.HELLO]


async def test_one_connection_carries_the_calls_of_a_turn_in_one_write() -> None:
    async with scripted(enqueues) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").enqueue([0, 0])
        reads = server.peers[0].reads
        await asyncio.gather(*(hf.queue("q").enqueue([n, n]) for n in range(20)))
    [peer] = server.peers
    assert peer.calls() == ["enqueue"] * 21
    # The first of them leaves at once.
    assert peer.reads <= reads + 2


async def test_many_calls_at_once_go_over_some_connections_more() -> None:
    async with serve_framed(SystemClock()) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(q.enqueue([n, n]) for n in range(300)))
        assert 1 < len(server.door.connections) <= 4
        assert (await q.stats()).ready == 600


async def test_calls_beyond_those_that_a_server_takes_get_another_connection() -> None:
    open_calls: list[tuple[Peer, int]] = []

    def keep(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL:
            open_calls.append((peer, call))

    async with scripted(keep, max_calls=40) as server, holdfast.open_async(server.url) as hf:
        sending = []
        for number in range(200):
            sending.append(asyncio.create_task(hf.queue("q").enqueue([number, number])))
            await asyncio.sleep(0)
            await until(lambda number=number: len(open_calls) == number + 1)
        assert len(server.peers) == 5
        for peer, call in open_calls:
            peer.result(call, [[ID, ID + 1]])
        await asyncio.gather(*sending)


async def test_a_token_is_told_once_and_again_when_it_changes() -> None:
    given = iter(["first", "first", "second", "second"])
    async with scripted(enqueues) as server, holdfast.open_async(server.url, token=lambda: next(given)) as hf:
        for number in range(4):
            await hf.queue("q").enqueue(number)
    [peer] = server.peers
    assert tokens(peer) == ["first", "second"]
    assert peer.kinds() == [
        FrameKind.HELLO,
        FrameKind.CALL,
        FrameKind.CALL,
        FrameKind.HELLO,
        FrameKind.CALL,
        FrameKind.CALL,
    ]


async def test_a_server_that_is_going_away_gets_no_more_calls_and_answers_those_it_has() -> None:
    held: list[tuple[Peer, int]] = []

    def leave(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is not FrameKind.CALL:
            return
        if value[0] == "claim":
            held.append((peer, call))
            peer.send(FrameKind.GOING_AWAY)
        else:
            peer.result(call, [[ID]])

    async with scripted(leave) as server, holdfast.open_async(server.url) as hf:
        waiting = asyncio.create_task(hf.queue("q").claim(wait=PATIENCE_S))
        await until(lambda: bool(held))
        for _ in range(3):
            await asyncio.sleep(0)
        await hf.queue("q").enqueue(1)
        [(peer, call)] = held
        peer.result(call, [[]])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert [each.calls() for each in server.peers] == [["claim"], ["enqueue"]]


async def test_a_draining_server_finishes_a_framed_callers_wait() -> None:
    async with serve_framed(SystemClock()) as server, holdfast.open_async(server.url, retries=0) as hf:
        q = hf.queue("q")
        await q.set_policy()
        waiting = asyncio.create_task(q.claim(wait=0.2))
        async with asyncio.timeout(PATIENCE_S):
            while not (await q.stats()).waiters:
                await asyncio.sleep(0)
        server.core.begin_drain()
        server.door.begin_drain()
        assert await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), PATIENCE_S)


async def test_a_ping_is_answered_with_its_own_bytes() -> None:
    def ping(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL:
            peer.send(FrameKind.PING, raw=b"still there?")
        elif kind is FrameKind.PONG:
            peer.result(1, [[ID]])

    async with scripted(ping) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").enqueue(1)
    assert (FrameKind.PONG, 0, b"still there?") in server.seen


async def test_a_ping_to_a_blocking_caller_that_waits_is_answered() -> None:
    def ping(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL:
            peer.send(FrameKind.PING, raw=b"still there?")
        elif kind is FrameKind.PONG:
            peer.result(1, [[]])

    def claim(url: str) -> int:
        with holdfast.open(url) as hf:
            return len(hf.queue("q").claim(wait=0.001))

    async with scripted(ping) as server:
        assert await asyncio.to_thread(claim, server.url) == 0
    assert (FrameKind.PONG, 0, b"still there?") in server.seen


async def silent(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
    """Say nothing, on the first connection."""
    if peer.number and kind is FrameKind.CALL:
        peer.result(call, [[]])


async def test_a_server_that_is_silent_is_asked_and_then_left_for_another_connection() -> None:
    async with scripted(silent, keepalive_ms=40) as server, holdfast.open_async(server.url, wait_round=None) as hf:
        async with asyncio.timeout(PATIENCE_S):
            assert await hf.queue("q").claim(wait=PATIENCE_S * 10) == []
    assert FrameKind.PING in server.peers[0].kinds()
    assert server.peers[1].calls() == ["claim"]


async def test_a_blocking_caller_leaves_a_silent_server_too() -> None:
    def claim(url: str) -> int:
        with holdfast.open(url, wait_round=None) as hf:
            return len(hf.queue("q").claim(wait=PATIENCE_S * 10))

    async with scripted(silent, keepalive_ms=40) as server, asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(claim, server.url) == 0
    assert FrameKind.PING in server.peers[0].kinds()
    assert server.peers[1].calls() == ["claim"]


async def test_a_call_that_times_out_leaves_the_others_of_its_connection_alone() -> None:
    calls: list[int] = []

    def slow(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL and value[2] == "fast":
            peer.result(call, [[ID]])
        elif kind is FrameKind.CALL:
            calls.append(call)

    async with scripted(slow) as server, holdfast.open_async(server.url, timeout=0.3, retries=0) as hf:
        slow_one = asyncio.create_task(hf.queue("slow").enqueue(1))
        while not slow_one.done():
            await hf.queue("fast").enqueue(1)
            await asyncio.sleep(0.01)
        with pytest.raises(holdfast.StoreUnavailable, match=r"no response within 0\.3 s"):
            await slow_one
        await hf.queue("fast").enqueue(1)
    assert len(server.peers) == 1
    assert (FrameKind.CANCEL, calls[0], b"") in server.seen


async def test_a_refusal_of_the_connection_is_named() -> None:
    def refuse(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        peer.refuse(0, InvalidArgument("this server speaks versions 2-3 of the framed protocol", versions=[2, 3]))
        peer.writer.close()

    async with scripted(refuse, says_hello=False) as server, holdfast.open_async(server.url, retries=0) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="versions 2-3") as refused:
            await hf.queue("q").enqueue(1)
    assert refused.value.facts["outcome"] == "nothing happened"


async def enqueue(url: str, payload: Any = 1, **settings: Any) -> None:
    async with holdfast.open_async(url, **settings) as hf:
        await hf.queue("q").enqueue(payload)


async def enqueue_in_thread(url: str, payload: Any = 1, **settings: Any) -> None:
    def call() -> None:
        with holdfast.open(url, **settings) as hf:
            hf.queue("q").enqueue(payload)

    await asyncio.to_thread(call)


BOTH_WAYS = pytest.mark.parametrize("call", [enqueue, enqueue_in_thread])


@BOTH_WAYS
async def test_a_port_of_another_protocol_is_told_apart(call: Any) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    with pytest.raises(holdfast.StoreUnavailable, match="does not speak Holdfast's framed protocol"):
        await call(f"holdfast://127.0.0.1:{port}", retries=0)
    listening.close()


@BOTH_WAYS
async def test_a_call_longer_than_the_server_reads_is_refused_before_it_is_sent(call: Any) -> None:
    async with scripted(enqueues, max_frame_bytes=200_000) as server:
        with pytest.raises(holdfast.PayloadTooLarge, match="200000 in one"):
            await call(server.url, [b"x" * 100_000] * 3)
    assert [kind for kind, _, _ in server.seen] == [FrameKind.HELLO]


@BOTH_WAYS
async def test_a_call_that_a_closing_server_did_not_begin_is_made_again(call: Any) -> None:
    def once(peer: Peer, kind: FrameKind, number: int, value: Any) -> None:
        if kind is FrameKind.CALL and not peer.number:
            peer.send(FrameKind.GOING_AWAY)
            peer.refuse(number, StoreUnavailable("this server is closing", closing=True))
        elif kind is FrameKind.CALL:
            peer.result(number, [[ID]])

    async with scripted(once) as server:
        await call(server.url)
    assert [peer.calls() for peer in server.peers] == [["enqueue"], ["enqueue"]]


@pytest.mark.parametrize(
    "url", ["holdfast://localhost", "holdfast://localhost:7078/path", "holdfast://user:word@localhost:7078"]
)
def test_a_url_that_names_no_port_alone_is_refused(url: str) -> None:
    for opens in (holdfast.open, holdfast.open_async):
        with pytest.raises(holdfast.InvalidArgument) as refused:
            opens(url)
        assert refused.value.facts["field"] == "url"
        assert "word" not in refused.value.message.replace("password", "")
