"""Callers that cancel, and callers that leave: what was not sent to them is claimable at once, uncounted."""

import asyncio
import socket
import struct

import pytest

from holdfast.clock import SystemClock
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers
from holdfast.wire.framed.frames import FrameKind
from tests.doors.connections.connections import Run
from tests.doors.framed.frames_by_hand import Peer, ask, connected, greeted
from tests.doors.framed.serving import FramedServer, serve_framed
from tests.waiting import until as eventually


def waiters(server: FramedServer) -> int:
    return sum(call.is_waiting for connection in server.door.connections for call in connection._calls)


@pytest.mark.spec("8.15")
async def test_a_cancelled_claim_answers_no_messages_and_claims_none(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = peer.open_claim(None)
        await eventually(lambda: waiters(server) == 1)
        peer.write(FrameKind.CANCEL, call)
        assert await peer.claimed(call) == []
        await peer.enqueue(b"x")
        assert (await peer.stats())["ready"] == 1


async def test_a_cancel_right_behind_its_claim_is_heard(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        calls = [peer.open_claim(None) for _ in range(50)]
        for call in calls:
            peer.write(FrameKind.CANCEL, call)
        for call in calls:
            assert await peer.claimed(call) == []
        await peer.enqueue(b"x")
        assert (await peer.stats())["ready"] == 1


async def test_a_cancel_that_comes_too_late_is_ignored(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"x")
        call = peer.open_claim(None)
        assert len(await peer.claimed(call)) == 1
        peer.write(FrameKind.CANCEL, call)
        peer.write(FrameKind.CANCEL, 99)
        assert (await peer.stats())["in_flight"] == 1


async def test_a_cancelled_enqueue_is_carried_out_and_answered(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = peer.open("enqueue", "acme", "jobs", None, [[b"x"]])
        peer.write(FrameKind.CANCEL, call)
        assert len(answers.read_enqueued(await peer.result(call))) == 1


async def test_a_cancelled_redrive_stops_and_says_so(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(*[b"x"] * 3)
        for delivery in await peer.claim(3):
            await peer.settle(["nack", delivery.receipt, "boom", None, False, True])
        call = peer.open("redrive", "acme", "jobs", None, {"rate_per_s": 0.001})
        await eventually(lambda: waiters(server) == 1)
        peer.write(FrameKind.CANCEL, call)
        kind, _, body = await peer.next_of(call)
        assert kind == FrameKind.ERROR
        assert b"cancelled" in body


def test_the_waiting_claims_of_a_caller_that_leaves_end_with_it(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as watching:
            async with greeted(server.port) as peer:
                for _ in range(10):
                    peer.open_claim(None)
                await eventually(lambda: waiters(server) == 10)
            await eventually(lambda: len(server.door.connections) == 1)
            await watching.enqueue(b"x")
            assert (await watching.stats())["ready"] == 1
            assert [outcome for *_, outcome in server.requests.seen].count("left") == 10

    run(test())


def test_what_a_caller_was_sent_before_it_left_stays_claimed(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as watching:
            await watching.enqueue(*[b"x"] * 20)
            for number in range(20):
                async with greeted(server.port) as peer:
                    [delivery] = await peer.claim()
                assert delivery.attempt == 1
                assert (await watching.stats())["in_flight"] == number + 1

    run(test())


def test_what_a_caller_was_sent_stays_claimed_when_its_connection_fails_later(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as watching:
            await watching.enqueue(b"x" * 100)
            async with greeted(server.port) as peer:
                await peer.claim()
                await peer.stats()  # the answer has left by then
                peer.open_claim(None, queue="other")
                await reset(peer)
            await eventually(lambda: len(server.door.connections) == 1)
            assert (await watching.stats())["in_flight"] == 1

    run(test())


async def reset(peer: Peer) -> None:
    """End a connection without reading what is on its way."""
    connected_socket: socket.socket = peer.writer.get_extra_info("socket")
    connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


def test_deliveries_that_did_not_fit_into_the_socket_go_back_uncounted(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock(), max_payload=32 << 20) as server, greeted(server.port) as watching:
            await watching.enqueue(b"x" * (16 << 20), queue="jobs")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 10)
            peer = Peer(reader, writer)
            await peer.hello()
            peer.open_claim(0)
            await eventually(lambda: ("claim", "ok") in [(name, outcome) for name, _, outcome in server.requests.seen])
            assert (await watching.stats())["in_flight"] == 1
            await reset(peer)
            await eventually(lambda: len(server.door.connections) == 1)
            again = await watching.claimed(watching.open_claim(None))
            assert [delivery.attempt for delivery in again] == [1]

    run(test())


def test_a_ledgers_claim_stays_when_its_caller_leaves(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock(), max_payload=32 << 20) as server, greeted(server.port) as watching:
            await watching.enqueue(b"x" * (16 << 20))
            async with connected(server.port) as peer:
                await peer.hello()
                peer.open("claim", "acme", "jobs", None, ask(ledger=("me", 1)))
                await eventually(lambda: len(server.requests.seen) == 2)
                await reset(peer)
            await eventually(lambda: len(server.door.connections) == 1)
            assert (await watching.stats())["in_flight"] == 1

    run(test())


async def test_an_operation_under_way_is_finished_when_its_caller_leaves(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as watching:
        async with greeted(server.port) as peer:
            peer.open("enqueue", "acme", "jobs", None, [[b"x"]] * 1_000)
            await peer.writer.drain()
        await eventually(lambda: len(server.door.connections) == 1)
        assert (await watching.stats())["ready"] == 1_000


def test_what_was_answered_when_the_server_closes_stays_with_its_caller(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as peer:
            await peer.enqueue(*[b"x" * 10_000] * 200)
            call = peer.open("claim", "acme", "jobs", None, [200])
            await eventually(lambda: len(server.requests.seen) == 2)
            assert await server.door.close(10.0) == 0
            assert len(await peer.claimed(call)) == 200
            counts = await server.core.store.counts("acme", "jobs", SystemClock().now_ms())
            assert (counts.in_flight, counts.ready) == (200, 0)

    run(test())
