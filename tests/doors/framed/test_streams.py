"""Subscriptions: the server sends messages as they become ready, as many as there is room for."""

from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.model.answers import Delivery
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers
from holdfast.wire.framed.frames import FrameKind
from tests.doors.connections.connections import Run
from tests.doors.framed.frames_by_hand import Peer, ask, greeted
from tests.doors.framed.serving import serve_framed
from tests.doors.framed.test_leaving import reset, waiters
from tests.waiting import until as eventually


def subscribe(peer: Peer, prefetch: int = 2, **more: Any) -> int:
    """`more` are the places behind `prefetch`."""
    return peer.open("subscribe", "acme", "jobs", None, ask(limit=prefetch), prefetch, *more.values())


async def items(peer: Peer, call: int, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        kind, _, body = await peer.next_of(call)
        assert kind == FrameKind.ITEM
        deliveries += answers.read_claimed(body).deliveries
    return deliveries


@pytest.mark.spec("8.15")
async def test_messages_are_sent_as_they_come_up_to_prefetch(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = subscribe(peer)
        await peer.enqueue(b"1", b"2", b"3")
        first = await items(peer, call, 2)
        assert [each.payload for each in first] == [b"1", b"2"]
        assert (await peer.stats())["ready"] == 1
        await peer.settle(["ack", first[0].receipt])
        assert [each.payload for each in await items(peer, call, 1)] == [b"3"]


async def test_verdicts_of_another_connection_make_room_too(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer, greeted(server.port) as other:
        call = subscribe(peer, 1)
        await peer.enqueue(b"1", b"2")
        [first] = await items(peer, call, 1)
        await other.settle(["ack", first.receipt])
        assert [each.payload for each in await items(peer, call, 1)] == [b"2"]


async def test_a_cancelled_stream_ends_with_its_result_and_claims_no_more(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        call = subscribe(peer)
        await items(peer, call, 1)
        peer.write(FrameKind.CANCEL, call)
        assert await peer.result(call) == b"\xc0"
        await peer.enqueue(b"2")
        stats = await peer.stats()
        assert (stats["ready"], stats["in_flight"]) == (1, 1)


async def test_a_full_stream_can_be_cancelled(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1", b"2")
        call = subscribe(peer, 1)
        await items(peer, call, 1)
        await eventually(lambda: waiters(server) == 1)
        peer.write(FrameKind.CANCEL, call)
        assert await peer.result(call) == b"\xc0"


async def test_a_stream_with_a_wait_ends_when_nothing_comes(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = subscribe(peer, wait_ms=1_000)
        await eventually(lambda: waiters(server) == 1)
        clock.advance(1_000)
        assert await peer.result(call) == b"\xc0"


@pytest.mark.parametrize(("release", "ready"), [(False, 0), (True, 1)])
async def test_what_a_subscriber_holds_is_released_if_it_asked_for_that(
    clock: ManualClock, release: bool, ready: int
) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as watching:
        await watching.enqueue(b"1")
        async with greeted(server.port) as peer:
            await items(peer, subscribe(peer, wait_ms=None, release=release), 1)
        await eventually(lambda: ("subscribe", "left") in [(name, out) for name, _, out in server.requests.seen])
        assert (await watching.stats())["ready"] == ready


def test_items_that_did_not_fit_into_the_socket_go_back(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock(), max_payload=8 << 20) as server, greeted(server.port) as watching:
            for _ in range(4):
                await watching.enqueue(b"x" * (8 << 20))
            async with greeted(server.port) as peer:
                peer.open("subscribe", "acme", "jobs", None, ask(limit=1), 4)
                # The first fills the socket: no more is claimed for a caller that does not read.
                await eventually(lambda: any(each.responses.is_paused for each in server.door.connections))
                assert (await watching.stats())["in_flight"] < 4
                await reset(peer)
            await eventually(lambda: len(server.door.connections) == 1)
            for number in range(4):
                [delivery] = await watching.claim()
                assert (number, delivery.attempt) == (number, 1)

    run(test())


async def test_a_prefetch_out_of_range_is_refused(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        error = await peer.refusal("subscribe", "acme", "jobs", None, ask(), 0)
        assert (error.code, error.facts.get("field")) == ("invalid_argument", "prefetch")


async def test_streams_end_when_the_server_closes(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = subscribe(peer)
        await eventually(lambda: waiters(server) == 1)
        server.core.begin_drain()
        assert await peer.result(call) == b"\xc0"
