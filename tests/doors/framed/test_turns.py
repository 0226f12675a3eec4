"""Connections that wait for their turn while several tenants call at once."""

import asyncio

import msgspec

from holdfast.clock import SystemClock
from holdfast.doors.framed.connection import FramedConnection
from holdfast.service.limits.request_turns import MAX_AT_ONCE, MAX_AT_ONCE_EACH, UNIDENTIFIED, RequestTurns
from holdfast.testing import ManualClock
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ClientHello, write_hello
from tests.doors.connections.hand_loop import HandLoop
from tests.doors.connections.test_connection import RecordedTransport, settled
from tests.doors.framed.frames_by_hand import greeted
from tests.doors.framed.serving import FramedServer, serve_framed
from tests.doors.serving import Tokens, caller

TOKENS = Tokens({name: caller(name, "admin") for name in ("flood", "quiet", *(f"t{at}" for at in range(100)))})


def enqueue(number: int, payload: bytes = b"x") -> bytes:
    return write_frame(FrameKind.CALL, number, msgspec.msgpack.encode(["enqueue", None, "jobs", None, [[payload]]]))


class Turns:
    """A door whose turns a test gives by hand."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.turns = RequestTurns(lambda tenant: 1, self.loop.as_loop, now_s=lambda: 0.0)

    def connect(self, server: FramedServer, token: str) -> tuple[FramedConnection, RecordedTransport]:
        connection, transport = server.door.connect(), RecordedTransport()
        connection.connection_made(transport)
        connection.data_received(write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(1, token))))
        return connection, transport

    async def contend(self, server: FramedServer) -> None:
        """Let many tenants call, and use up what is read at once in this round."""
        connections = [self.connect(server, f"t{at}")[0] for at in range(MAX_AT_ONCE + 2)]
        for connection in connections:
            connection.data_received(enqueue(1))
            await settled()
        assert self.turns.is_contended
        for connection in connections:
            connection.connection_lost(None)


def answers_in(transport: RecordedTransport) -> list[int]:
    frames = FrameReader(1 << 30).feed(b"".join(transport.writes))
    return [number for kind, number, _ in frames if kind == FrameKind.RESULT]


async def test_frames_over_a_tenants_share_wait_for_turns_and_lose_nothing(clock: ManualClock) -> None:
    turns = Turns()
    async with serve_framed(clock, identity=TOKENS, turns=turns.turns) as server:
        connection, transport = turns.connect(server, "flood")
        await turns.contend(server)
        data = b"".join(enqueue(number) for number in range(1, 301))
        connection.data_received(data[:5_000])
        assert connection.calls_begun == 0
        assert not transport.is_reading_paused
        connection.data_received(data[5_000:])
        assert transport.is_reading_paused
        turns.loop.run()
        await settled()
        assert answers_in(transport) == list(range(1, 301))
        assert not transport.is_reading_paused
        connection.connection_lost(None)


async def test_a_quiet_tenants_frame_is_read_before_a_floods_backlog(clock: ManualClock) -> None:
    turns = Turns()
    async with serve_framed(clock, identity=TOKENS, turns=turns.turns) as server:
        flood, _ = turns.connect(server, "flood")
        quiet, written = turns.connect(server, "quiet")
        for connection in (flood, quiet):
            connection.data_received(enqueue(1))
            await settled()
        await turns.contend(server)
        flood.data_received(b"".join(enqueue(number) for number in range(2, 1_000)))
        turns.loop.run_round()
        before = flood.calls_begun
        quiet.data_received(enqueue(2))
        turns.loop.run_round()
        await settled()
        assert answers_in(written) == [1, 2]
        assert flood.calls_begun - before < 200
        for connection in (flood, quiet):
            connection.connection_lost(None)


async def test_a_large_frame_is_parsed_in_parts(clock: ManualClock) -> None:
    turns = Turns()
    async with serve_framed(clock, identity=TOKENS, turns=turns.turns) as server:
        connection, transport = turns.connect(server, "flood")
        await turns.contend(server)
        connection.data_received(enqueue(1) * 0 + enqueue(7, b"y" * 100_000) + enqueue(8))
        turns.loop.run()
        await settled()
        assert answers_in(transport) == [7, 8]
        connection.connection_lost(None)


async def test_a_connection_that_is_lost_while_it_waits_takes_no_turn(clock: ManualClock) -> None:
    turns = Turns()
    async with serve_framed(clock, identity=TOKENS, turns=turns.turns) as server:
        connection, _ = turns.connect(server, "flood")
        await turns.contend(server)
        connection.data_received(enqueue(1) + enqueue(2))
        connection.connection_lost(None)
        turns.loop.run()
        assert connection.calls_begun == 0


async def test_callers_that_cannot_say_who_they_are_share_one_turn(clock: ManualClock) -> None:
    turns = Turns()
    async with serve_framed(clock, identity=TOKENS, turns=turns.turns) as server:
        connection, _ = turns.connect(server, "made up")
        connection.data_received(enqueue(1))
        await settled()
        assert turns.turns.tenant == UNIDENTIFIED
        connection.connection_lost(None)


async def test_tenants_that_call_at_once_are_all_answered() -> None:
    async with serve_framed(SystemClock(), identity=TOKENS) as server:

        async def work(name: str) -> None:
            async with greeted(server.port, name) as peer:
                calls = [peer.open("enqueue", None, "jobs", None, [[b"x"]]) for _ in range(MAX_AT_ONCE_EACH * 20)]
                for call in calls:
                    await peer.result(call)

        await asyncio.gather(*(work(f"t{at}") for at in range(10)))
