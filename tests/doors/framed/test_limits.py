"""The limits of a connection: open calls, bytes in memory, callers that stall, fall silent, or do not read."""

import asyncio
import gc
from typing import Any

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.doors.framed.call import FramedCall
from holdfast.doors.framed.connection import FramedConnection
from holdfast.doors.framed.door import MAX_CALLS
from holdfast.doors.sockets import response_writer
from holdfast.model.names import QueueRef
from holdfast.testing import ManualClock
from holdfast.wire.framed import greetings
from holdfast.wire.framed.frames import CONNECTION, FrameKind, write_frame
from holdfast.wire.framed.greetings import ClientHello, write_hello
from tests.doors.connections.connections import Run
from tests.doors.connections.test_connection import RecordedTransport, settled
from tests.doors.framed.frames_by_hand import connected, greeted
from tests.doors.framed.serving import serve_framed
from tests.waiting import until as eventually


@pytest.mark.spec("8.15")
async def test_one_call_more_than_may_be_open_is_refused_and_the_others_stay(clock: ManualClock) -> None:
    async with serve_framed(clock, queue_max_consumers=MAX_CALLS + 1) as server, greeted(server.port) as peer:
        for _ in range(MAX_CALLS):
            peer.open_claim(None)
        error = await peer.refusal("stats", None, None, None)
        assert (error.code, error.facts["limit"]) == ("rate_limited", MAX_CALLS)
        peer.write(FrameKind.CANCEL, 1)
        assert await peer.claimed(1) == []
        await peer.enqueue(b"x")
        assert [each.payload for each in await peer.claimed(2)] == [b"x"]


@pytest.mark.spec("8.15")
def test_a_connection_with_too_much_in_memory_is_not_read_until_calls_are_answered(run: Run) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as peer:
            [connection] = server.door.connections
            server.door.max_bytes_in_hand = 1 << 20
            may_go_on = asyncio.Event()
            enqueue = server.core.messages.enqueue

            async def held_up(*given: Any) -> Any:
                await may_go_on.wait()
                return await enqueue(*given)

            server.core.messages.enqueue = held_up  # type: ignore[method-assign]  # a store that takes its time
            calls = [peer.open("enqueue", "acme", "jobs", None, [[b"x" * (256 << 10)]]) for _ in range(40)]
            await eventually(lambda: connection.reading.is_paused)
            assert connection.calls_begun < 20
            may_go_on.set()
            for call in calls:
                await peer.result(call)
            assert (await peer.stats())["ready"] == 40

    run(test())


@pytest.mark.spec("8.15")
def test_a_caller_that_does_not_read_is_not_read_from_and_loses_its_connection(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_writer, "UNREAD_PATIENCE_S", 0.3)

    async def test() -> None:
        async with serve_framed(SystemClock(), max_payload=8 << 20) as server, greeted(server.port) as watching:
            await watching.enqueue(b"x" * (8 << 20))
            async with greeted(server.port) as peer:
                for _ in range(8):
                    peer.open("browse", "acme", "jobs", None, {"payload": True})
                await eventually(lambda: any(each.reading.is_paused for each in server.door.connections))
                await eventually(lambda: len(server.door.connections) == 1)
                assert (await watching.stats())["ready"] == 1

    run(test())


def test_a_caller_that_reads_slowly_keeps_its_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_writer, "UNREAD_PATIENCE_S", 3.0)

    async def test() -> None:
        async with serve_framed(SystemClock(), max_payload=8 << 20) as server, greeted(server.port) as peer:
            await peer.enqueue(b"x" * (8 << 20))
            calls = [peer.open("browse", "acme", "jobs", None, {"payload": True}) for _ in range(8)]
            for call in calls:
                assert len(await peer.result(call)) > 8 << 20
            assert (await peer.stats())["ready"] == 1

    run(test())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(1))) + b"\0\0\x10\0\2",
        write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(1)))
        + write_frame(FrameKind.CALL, 1, b"x" * 99)[:-1],
    ],
    ids=["no hello", "half a hello", "half a head", "half a body"],
)
async def test_a_caller_that_stalls_in_a_frame_is_told_and_loses_its_connection(sent: bytes) -> None:
    async with serve_framed(SystemClock(), patience_s=0.1) as server, connected(server.port) as peer:
        peer.writer.write(sent)
        *_, (kind, number, body) = await peer.end()
        assert (kind, number) == (FrameKind.ERROR, CONNECTION)
        assert "did not arrive" in greetings.read_error(body).message


async def test_a_large_frame_that_continues_arriving_is_waited_for(clock: ManualClock) -> None:
    async with serve_framed(clock, patience_s=0.05) as server, greeted(server.port) as peer:
        frame = write_frame(FrameKind.CALL, 1, b"x" * (1 << 20))
        [connection] = server.door.connections
        for at in range(0, len(frame) - 1, 64 << 10):
            peer.writer.write(frame[at : min(at + (64 << 10), len(frame) - 1)])
            await eventually(lambda at=at: connection.reader.held > at)  # type: ignore[misc]  # a default has no type
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 10 * server.door.patience_s
        await eventually(lambda: loop.time() > until_s)
        assert not connection.is_refused


async def test_a_silent_connection_is_asked_whether_it_is_there_and_lost_if_it_is_not() -> None:
    async with serve_framed(SystemClock(), keepalive_s=0.1) as server, greeted(server.port) as watching:
        async with greeted(server.port) as peer:
            peer.open_claim(None)
            assert (await peer.next_of(CONNECTION))[0] == FrameKind.PING
            with pytest.raises((EOFError, ConnectionError)):
                await peer.next_of(CONNECTION)
        watching.write(FrameKind.PONG)
        assert {kind for kind, *_ in await watching.end()} == {FrameKind.PING}
        assert not server.core.dispatcher.count_waiters(QueueRef("acme", "jobs"))


async def test_a_connection_that_answers_is_kept() -> None:
    async with serve_framed(SystemClock(), keepalive_s=0.5) as server, greeted(server.port) as peer:
        call = peer.open_claim(None)
        for _ in range(4):  # longer than a silent one would be kept
            kind, _, body = await peer.next_of(CONNECTION)
            assert kind == FrameKind.PING
            peer.write(FrameKind.PONG, CONNECTION, body)
        await peer.enqueue(b"x")
        assert len(await peer.claimed(call)) == 1


async def test_a_ping_is_answered_with_its_bytes(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        peer.write(FrameKind.PING, CONNECTION, b"are you there")
        assert await peer.next_of(CONNECTION) == (FrameKind.PONG, CONNECTION, b"are you there")


# --- Writes and tasks ------------------------------------------------------------------------------------------------


async def test_the_calls_of_one_read_make_no_tasks_and_are_answered_by_one_write(clock: ManualClock) -> None:
    async with serve_framed(clock) as server:
        connection, transport = FramedConnection(server.door), RecordedTransport()
        connection.connection_made(transport)
        connection.data_received(write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(1))))
        transport.writes.clear()
        before = asyncio.all_tasks()
        body = msgspec.msgpack.encode(["enqueue", "acme", "jobs", None, [[b"x"]]])
        connection.data_received(b"".join(write_frame(FrameKind.CALL, number, body) for number in range(1, 21)))
        assert asyncio.all_tasks() == before
        await settled()
        assert len(transport.writes) == 1
        assert (await server.core.store.counts("acme", "jobs", clock.now_ms())).ready == 20
        connection.connection_lost(None)


async def test_calls_leave_nothing_to_the_garbage_collector(clock: ManualClock) -> None:
    """The collector stops every call while it runs."""
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await peer.enqueue(b"x")
                await peer.claim()
                await peer.stats()
                await peer.refusal("get", "acme", "jobs", None, {"id": "none"})
                call = peer.open_claim(None, queue="empty")
                await peer.enqueue(b"x")
                peer.write(FrameKind.CANCEL, call)
                await peer.claimed(call)
            assert not [each for each in gc.get_objects() if isinstance(each, FramedCall)]
        finally:
            gc.enable()
