"""A caller that reads nothing fills no memory: its answers are bounded in bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import capnp
import pytest

from holdfast.clock import SystemClock
from holdfast.doors.capnp.answer_room import AnswerRoom
from holdfast.doors.capnp.connection import CapnpConnection
from tests.doors.capnp.test_calls import stock_client
from tests.doors.capnp_serving import CapnpServer, serve_capnp

PAYLOAD = b"x" * 20_000
# One answer, and all unread answers of a connection.
ANSWER_BYTES, UNREAD_BYTES = 100_000, 300_000


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def small(messages: int = 100) -> AsyncIterator[tuple[CapnpServer, Any]]:
    """A server with low limits and some messages, and an honest client of it."""
    async with serve_capnp(SystemClock()) as server:
        server.door.max_bytes, server.door.max_answer_bytes = ANSWER_BYTES, 3 * ANSWER_BYTES
        server.door.max_unread_bytes = UNREAD_BYTES
        async with stock_client(server) as queues:
            for _ in range(messages // 4):
                await queues.add(items=[PAYLOAD] * 4)
            yield server, queues


@asynccontextmanager
async def slow_client(server: CapnpServer) -> AsyncIterator[tuple[Any, CapnpConnection]]:
    """A client whose connection the test stops reading, and that connection at the server."""
    before = set(server.door.connections)
    async with stock_client(server) as queues:
        await queues.hello()
        [connection] = set(server.door.connections) - before
        yield queues, connection


class Stopped:
    """A connection whose socket takes nothing, as that of a caller that does not read."""

    def __init__(self, connection: CapnpConnection) -> None:
        self._connection = connection
        self.unread_bytes = 0
        self.highest = 0
        self._kept: list[bytes] = []
        stream: Any = connection.stream
        self._transport = stream._transport
        stream._transport = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._kept.append(data)
        self.unread_bytes += len(data)
        self.highest = max(self.highest, self.unread_bytes)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def read_all(self) -> None:
        """Let the caller read everything, now and from now on."""
        stream: Any = self._connection.stream
        stream._transport = self._transport
        for each in self._kept:
            self._transport.write(each)
        self._kept.clear()
        self.unread_bytes = 0
        stream.on_drained()


async def settled(stopped: Stopped) -> None:
    """Wait until nothing more is written."""
    quiet = 0
    while quiet < 50:
        before = stopped.unread_bytes
        await asyncio.sleep(0.001)
        quiet = quiet + 1 if stopped.unread_bytes == before else 0


@pytest.mark.spec("8.5")
@pytest.mark.parametrize("operation", ["peek", "browse"])
async def test_answers_that_a_caller_does_not_read_are_bounded_and_all_come_once_it_does(operation: str) -> None:
    arguments = {"peek": b'{"limit":3}', "browse": b'{"limit":3,"payload":true}'}[operation]
    async with small() as (server, honest), slow_client(server) as (queues, connection):
        stopped = Stopped(connection)
        calls = [asyncio.ensure_future(queues.operate(operation=operation, arguments=arguments)) for _ in range(60)]
        await until(lambda: stopped.unread_bytes >= UNREAD_BYTES)
        await settled(stopped)
        assert stopped.highest < UNREAD_BYTES + ANSWER_BYTES
        # Other callers do not notice.
        assert (await honest.stats()).stats.ready == 100

        stopped.read_all()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*calls)
        assert len({bytes(each.answer) for each in answers}) == 1
        assert not [each for each in answers if each.error.code]


@pytest.mark.spec("8.5")
async def test_messages_for_which_there_is_no_room_are_ready_for_others_and_uncounted() -> None:
    async with small() as (server, honest), slow_client(server) as (queues, connection):
        stopped = Stopped(connection)
        polls = [asyncio.ensure_future(queues.poll(numItems=4, leaseMs=3_600_000)) for _ in range(20)]
        await until(lambda: stopped.unread_bytes >= UNREAD_BYTES)
        await settled(stopped)
        stats = (await honest.stats()).stats
        assert stopped.highest < UNREAD_BYTES + ANSWER_BYTES
        assert (stats.inFlight, stats.ready) == (stopped.highest // (4 * len(PAYLOAD)) * 4, 100 - stats.inFlight)
        [other] = (await honest.poll()).messages
        assert other.attempt == 1

        stopped.read_all()
        async with asyncio.timeout(60):
            polled = await asyncio.gather(*polls)
        messages = [message for each in polled for message in each.messages]
        assert len(messages) == 80
        assert {message.attempt for message in messages} == {1}


@pytest.mark.spec("8.5")
async def test_a_poll_that_waits_has_a_message_as_soon_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small(4) as (server, honest), slow_client(server) as (queues, connection):
        assert len((await honest.poll(numItems=4)).messages) == 4
        waiting = asyncio.ensure_future(queues.poll(waitMs=60_000))
        while not (await honest.stats()).stats.waiters:
            await asyncio.sleep(0.001)
        stopped = Stopped(connection)
        stopped.unread_bytes = UNREAD_BYTES
        await honest.add(items=[b"late"])
        while (await honest.stats()).stats.ready != 1 or not connection.room._waiting:
            await asyncio.sleep(0.001)
        assert not waiting.done()

        stopped.read_all()
        async with asyncio.timeout(60):
            [message] = (await waiting).messages
        assert (message.contents, message.attempt) == (b"late", 1)


@pytest.mark.spec("8.5")
async def test_verdicts_of_a_poll_are_carried_out_though_there_is_no_room_for_messages() -> None:
    async with small(4) as (server, honest), slow_client(server) as (queues, connection):
        [held] = (await queues.poll(leaseMs=3_600_000)).messages
        stopped = Stopped(connection)
        stopped.unread_bytes = UNREAD_BYTES
        verdicts = [{"kind": "ack", "receipt": held.receipt}]
        poll = asyncio.ensure_future(queues.poll(verdicts=verdicts, numItems=1))
        while (await honest.stats()).stats.inFlight:
            await asyncio.sleep(0.001)
        stopped.read_all()
        async with asyncio.timeout(60):
            answer = await poll
        assert [each.ok for each in answer.results] == [True]
        assert len(answer.messages) == 0
        assert (await honest.stats()).stats.ready == 3


@pytest.mark.spec("8.5")
async def test_one_answer_has_the_messages_that_fit_and_the_others_stay_ready() -> None:
    async with small(20) as (_, queues):
        first = (await queues.poll(numItems=20, leaseMs=3_600_000)).messages
        assert 1 <= len(first) < 20
        assert sum(len(message.contents) for message in first) <= ANSWER_BYTES
        while (await queues.stats()).stats.inFlight != len(first):
            await asyncio.sleep(0.001)
        second = (await queues.poll(numItems=20)).messages
        assert {message.attempt for message in second} == {1}
        assert not {message.snowflake for message in first} & {message.snowflake for message in second}


@pytest.mark.spec("8.5")
async def test_a_message_that_is_larger_than_an_answer_comes_alone() -> None:
    async with small(4) as (server, queues):
        server.door.max_bytes = 1_000
        assert [len(message.contents) for message in (await queues.poll(numItems=4)).messages] == [len(PAYLOAD)]


@pytest.mark.spec("8.5")
async def test_the_rest_of_a_numbered_claim_comes_without_payloads_to_be_read_apart() -> None:
    async with small(20) as (_, queues):
        claim = {"consumer": "c", "number": 1, "numItems": 20, "leaseMs": 3_600_000}
        refused = await queues.poll(**claim)
        assert refused.error.code == "payload_too_large"
        for _ in range(2):
            messages = (await queues.poll(**claim, streams=True)).messages
            assert len(messages) == 20
            apart = [message for message in messages if message.isApart]
            assert 0 < len(apart) < 20
            assert sum(len(message.contents) for message in messages) <= ANSWER_BYTES
            part = await queues.readPart(receipt=apart[-1].receipt, offset=0, limit=1 << 20)
            assert (part.data, part.total, apart[-1].payloadBytes) == (PAYLOAD, len(PAYLOAD), len(PAYLOAD))


@pytest.mark.spec("8.5")
async def test_an_answer_that_is_too_large_is_refused_by_its_size() -> None:
    async with small(40) as (_, queues):
        refused = await queues.operate(operation="peek", arguments=b'{"limit":40}')
        assert refused.error.code == "payload_too_large"
        assert not (await queues.operate(operation="peek", arguments=b'{"limit":4}')).error.code


@pytest.mark.spec("8.5")
async def test_a_lost_connection_ends_the_calls_that_wait_for_room() -> None:
    async with small() as (server, honest):
        async with slow_client(server) as (queues, connection):
            Stopped(connection)
            calls = [asyncio.ensure_future(queues.poll(numItems=4, leaseMs=3_600_000)) for _ in range(20)]
            await until(lambda: bool(connection.room._waiting))
            connection.cut_off(None)
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert any(isinstance(each, capnp.KjException) for each in done)
            await until(lambda: not connection.in_hand())
        while (await honest.stats()).stats.ready != 100:
            await asyncio.sleep(0.001)


# --- The room itself -------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.5")
async def test_calls_get_their_turns_in_order_and_a_cancelled_one_passes_its_turn_on() -> None:
    unsent = 10
    room = AnswerRoom(10, lambda: unsent)
    order: list[int] = []

    async def call(number: int) -> None:
        async with room.turn():
            order.append(number)

    tasks = [asyncio.ensure_future(call(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert room.is_contended
    tasks[1].cancel()
    await asyncio.sleep(0)
    unsent = 0
    room.wake()
    tasks[0].cancel()  # it has its turn, and has not begun
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [2, 3]
    assert not room.is_contended


@pytest.mark.spec("8.5")
async def test_room_is_taken_up_to_the_limit_and_one_answer_more() -> None:
    room = AnswerRoom(10_000, lambda: 0)
    assert room.take(9_000)
    assert room.take(1_000_000)
    assert not room.take(1)
    await until(lambda: room.take(1))
