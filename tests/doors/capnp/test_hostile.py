"""Whatever is sent to the Cap'n Proto door, the connection it came on is all that is lost, and the log says so once."""

import asyncio
import logging
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import capnp
import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.doors.capnp.connection import MAX_UNFINISHED
from holdfast.wire.capnp.frames import Frames, Malformed
from holdfast.wire.capnp.schema import SCHEMA
from tests.doors.capnp.test_calls import stock_client
from tests.doors.capnp_serving import CapnpServer, serve_capnp
from tests.seeds import run_seed
from tests.waiting import until

_HERE = Path(capnp.__file__).parent
RPC = capnp.load(str(_HERE / "rpc.capnp"), imports=[str(_HERE.parent)])
CLOSED = "connection_refused"


@asynccontextmanager
async def attacked(caplog: pytest.LogCaptureFixture, lines: int | None = 1) -> AsyncIterator[CapnpServer]:
    """A server with an honest client on it, which works before and after; `lines` are logged in between."""
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        assert (await queues.add(items=[b"before"])).ids
        caplog.clear()
        yield server
        await until(lambda: len(server.door.connections) == 1)
        assert (await queues.add(items=[b"after"])).ids
        assert len((await queues.poll(numItems=10)).messages) == 2
        logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert all(record.message.startswith(CLOSED) for record in logged), logged
        assert lines is None or len(logged) == lines


async def send(server: CapnpServer, *parts: bytes, closes: bool = False) -> bytes:
    """Send bytes, and return all that the server answered before it closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if closes:
            return b""
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def bootstrap(question: int = 0) -> bytes:
    message = RPC.Message.new_message()
    message.init("bootstrap").questionId = question
    return bytes(message.to_bytes())


def add_call(items: list[bytes], question: int = 1, words: int = 1_024) -> bytes:
    message = RPC.Message.new_message(words)
    call = message.init("call")
    call.questionId = question
    call.target.init("promisedAnswer").questionId = 0
    call.interfaceId = SCHEMA.Queues.schema.node.id
    call.methodId = 0
    call.params.content.as_struct(SCHEMA.Add).items = items
    return bytes(message.to_bytes())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        struct.pack("<II", 600, 1) + b"\0" * 4_096,  # segments
        struct.pack("<II", 0, 0xFFFF_FFFF),  # words
        struct.pack("<II", 0, 1 << 22) + b"\0" * 64,
        struct.pack("<II", 0, 0),  # nothing
        struct.pack("<II", 0, 1) + b"\0" * 8,  # no root
        struct.pack("<II", 0, 1) + struct.pack("<iHH", 1 << 20, 1, 1),  # a root beyond the end
        struct.pack("<II", 0, 1) + struct.pack("<iHH", -8, 1, 1),  # and before the beginning
        struct.pack("<II", 0, 1) + b"\x03" + b"\xff" * 7,  # a capability for a root
    ],
    ids=["http", "ones", "segments", "words", "large", "empty", "rootless", "beyond", "before", "capability"],
)
async def test_what_is_no_cap_n_proto_closes_its_connection_alone(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with attacked(caplog) as server:
        await send(server, sent)


async def test_a_message_of_a_kind_that_nobody_sends_closes_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with attacked(caplog, lines=None) as server:
        for kind in range(16):
            # A root of one data word and one pointer, which leads nowhere.
            words = struct.pack("<iHH", 0, 1, 1) + struct.pack("<Q", kind) + struct.pack("<iHH", 1 << 10, 7, 7)
            await send(server, struct.pack("<II", 0, 3) + words, closes=kind in (0, 6, 13))


async def test_a_truncated_message_closes_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked(caplog) as server:
        whole = bootstrap() + add_call([b"never"])
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(whole[:-3])
        writer.write_eof()
        await reader.read()
        writer.close()


async def test_a_message_whose_pointers_lead_to_the_same_bytes_again_and_again_is_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    size, items = 1 << 20, 200
    frame = bytearray(add_call([b"x" * size] + [b""] * (items - 1), words=1 << 18))
    # The list of items is a row of pointers, the first of which has the size of the only payload.
    [first] = [at for at in range(8, 400, 8) if struct.unpack_from("<I", frame, at + 4)[0] == size << 3 | 2]
    offset = struct.unpack_from("<i", frame, first)[0] >> 2
    for n in range(1, items):
        struct.pack_into("<iI", frame, first + 8 * n, (offset - n) << 2 | 1, size << 3 | 2)
    async with attacked(caplog) as server:
        await send(server, bootstrap(), bytes(frame))


async def test_a_caller_that_never_lets_go_of_its_answers_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked(caplog) as server:
        await send(server, b"".join(bootstrap(question) for question in range(MAX_UNFINISHED + 1)))


async def test_a_message_that_does_not_continue_arriving_closes_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with attacked(caplog) as server:
        server.door.patience_s = 0.01
        await send(server, bootstrap() + add_call([b"never"])[:-3])
        # One that is idle between two messages is left alone.
        server.door.patience_s = 0.001
        async with stock_client(server) as queues:
            for _ in range(3):
                await asyncio.sleep(0.01)
                assert (await queues.hello()).version == 1


async def test_callers_that_come_and_go_at_once_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked(caplog, lines=0) as server:
        for n in range(100):
            await send(server, bootstrap() if n % 2 else b"", closes=True)


async def test_a_caller_that_does_not_read_its_answers_is_not_read_either() -> None:
    async with serve_capnp(SystemClock(), max_payload="8MiB") as server, stock_client(server) as queues:
        await queues.add(items=[b"x" * (1 << 20)] * 8)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.transport.pause_reading()
        writer.write(bootstrap())
        for question in range(1, 6):
            writer.write(peek_call(question))
        await until(lambda: any(each.stream.is_read_paused for each in server.door.connections))
        assert (await queues.stats()).stats.ready == 8
        writer.transport.abort()
        await until(lambda: len(server.door.connections) == 1)


def peek_call(question: int) -> bytes:
    message = RPC.Message.new_message()
    call = message.init("call")
    call.questionId = question
    call.target.init("promisedAnswer").questionId = 0
    call.interfaceId = SCHEMA.Queues.schema.node.id
    call.methodId = 17
    operate = call.params.content.as_struct(SCHEMA.Operate)
    operate.operation = "peek"
    operate.arguments = b'{"limit": 8}'
    return bytes(message.to_bytes())


async def test_bytes_that_were_changed_on_their_way_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(run_seed())
    whole = bootstrap() + add_call([b"payload " * 8, b"another"])
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        for _ in range(150):
            changed = bytearray(whole)
            for _ in range(dice.randrange(1, 6)):
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            await send(server, bytes(changed[: dice.randrange(1, len(changed) + 1)]), closes=True)
        await asyncio.sleep(0)
        assert (await queues.add(items=[b"after"])).ids
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_text_that_is_no_text_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked(caplog, lines=0) as server, stock_client(server) as queues:
        refused = await queues.add(ref={"tenant": "../etc"}, items=[b"x"])
        assert refused.error.code == "invalid_name"
        assert (await queues.operate(operation="get", arguments=b"\xff")).error.code == "invalid_argument"
        assert (await queues.operate(operation="get", arguments=b"[" * 10_000)).error.code == "invalid_argument"


async def test_an_answer_that_did_not_leave_gives_its_deliveries_back() -> None:
    async with serve_capnp(SystemClock(), max_payload="8MiB") as server, stock_client(server) as queues:
        await queues.add(items=[os.urandom(1 << 20) for _ in range(8)])
        # The system would take in all of it for a caller that does not read.
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.connect(("127.0.0.1", server.port))
        _, writer = await asyncio.open_connection(sock=narrow)
        writer.transport.pause_reading()
        writer.write(bootstrap() + poll_call(1, 8))
        await until(lambda: ("claim", holdfast.QueueRef(), "ok") in server.requests.seen)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await until(lambda: len(server.door.connections) == 1)

        async with asyncio.timeout(60):
            while (await queues.stats()).stats.ready != 8:
                await asyncio.sleep(0.01)
        [message, *_] = (await queues.poll(numItems=8)).messages
        assert message.version == 2


def poll_call(question: int, number: int) -> bytes:
    message = RPC.Message.new_message()
    call = message.init("call")
    call.questionId = question
    call.target.init("promisedAnswer").questionId = 0
    call.interfaceId = SCHEMA.Queues.schema.node.id
    call.methodId = 1
    poll = call.params.content.as_struct(SCHEMA.Poll)
    poll.numItems = number
    poll.leaseMs = 3_600_000
    return bytes(message.to_bytes())


def test_frames_come_out_whole_however_they_came_in() -> None:
    whole = bootstrap() + add_call([b"a" * 1_000, b"b"]) + bootstrap(3)
    dice = random.Random(run_seed())
    for _ in range(50):
        frames, out, at = Frames(1 << 20, 10), b"", 0
        while at < len(whole):
            step = dice.randrange(1, 200)
            out += frames.take(whole[at : at + step])
            at += step
        assert out == whole
        assert frames.is_between_frames


def test_a_finish_is_handed_on_unless_its_answer_said_that_it_needs_none() -> None:
    frames = Frames(1 << 20, 10)
    asked = bootstrap() + add_call([b"a"], question=1) + add_call([b"b"], question=2)
    assert frames.take(asked) == asked
    frames.note_sent(answer(1, needs_finish=False) + answer(2, needs_finish=True))

    assert frames.take(finish(1)) == b""
    assert frames.take(finish(1)[:20]) == b""
    assert frames.take(finish(1)[20:] + finish(2) + finish(1) + bootstrap(3)) == finish(2) + bootstrap(3)
    assert frames.is_between_frames


def test_calls_that_are_not_answered_are_full_beyond_the_bytes_of_the_largest_one() -> None:
    call = add_call([b"a" * 600], question=1)
    frames = Frames(len(call) * 2, 10)
    assert frames.take(call + add_call([b"b" * 600], question=2))
    assert not frames.is_full
    assert frames.take(add_call([b"c" * 600], question=3))
    assert frames.is_full
    frames.note_sent(answer(1, needs_finish=True))  # and not let go of yet
    assert not frames.is_full
    frames.take(add_call([b"d" * 600], question=4))
    assert frames.is_full
    frames.take(finish(2))  # dropped by its caller
    assert not frames.is_full
    frames.take(add_call([b"e" * 600], question=5))
    assert frames.is_full
    frames.note_sent(answer(3, needs_finish=False))
    assert not frames.is_full


async def test_a_caller_whose_calls_are_not_answered_yet_is_read_no_further_than_one_message_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_capnp(SystemClock()) as server:
        door, may_go_on = server.door, asyncio.Event()
        anyone = door.sessions.anyone

        async def session_of(*_: object) -> object:
            await may_go_on.wait()
            return anyone

        monkeypatch.setattr(door.sessions, "anyone", None)
        monkeypatch.setattr(door.sessions, "identify", session_of)
        call = [bytes(1 << 20)] * 5
        async with stock_client(server) as queues:
            calls = [queues.add(items=call) for _ in range(20)]
            await until(lambda: any(each.stream.is_read_paused for each in door.connections))
            [in_hand] = {len(each.in_hand()) for each in door.connections}
            assert 1 < in_hand * sum(map(len, call)) <= 2 * door.max_bytes
            may_go_on.set()
            assert [len((await each).ids) for each in calls] == [5] * 20
            assert not any(each.stream.is_read_paused for each in door.connections)


def answer(question: int, *, needs_finish: bool) -> bytes:
    message = RPC.Message.new_message()
    told = message.init("return")
    told.answerId = question
    told.noFinishNeeded = not needs_finish
    return bytes(message.to_bytes())


def finish(question: int) -> bytes:
    message = RPC.Message.new_message()
    message.init("finish").questionId = question
    return bytes(message.to_bytes())


def test_a_frame_that_is_too_large_is_refused_by_its_table_alone() -> None:
    with pytest.raises(Malformed, match="the limit is 1024"):
        Frames(1_024).take(struct.pack("<II", 0, 128))
