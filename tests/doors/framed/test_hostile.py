"""Invalid bytes end only their own connection, with an error for the caller, and leave no lease."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.clock import SystemClock
from holdfast.testing import ManualClock
from holdfast.wire.framed import greetings
from holdfast.wire.framed.frames import CONNECTION, Frame, FrameKind, write_frame
from holdfast.wire.framed.greetings import ClientHello, write_hello
from tests.doors.framed.frames_by_hand import Peer, connected, greeted
from tests.doors.framed.serving import FramedServer, serve_framed
from tests.seeds import run_seed
from tests.waiting import until as eventually

HELLO = write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(1)))
encode = msgspec.msgpack.encode


def call(*places: Any, number: int = 1) -> bytes:
    return write_frame(FrameKind.CALL, number, encode(places))


@asynccontextmanager
async def attacked(caplog: pytest.LogCaptureFixture) -> AsyncIterator[FramedServer]:
    """A server with an honest client on it, which works before and after."""
    async with serve_framed(SystemClock()) as server, greeted(server.port) as honest:
        await honest.enqueue(b"before")
        caplog.clear()
        yield server
        await eventually(lambda: len(server.door.connections) == 1)
        await honest.enqueue(b"after")
        assert len(await honest.claim(10)) == 2
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def last_words(peer: Peer) -> str:
    """Return what the server says on call 0 before it closes the connection."""
    kind, number, body = (await peer.end())[-1]
    assert (kind, number) == (FrameKind.ERROR, CONNECTION)
    error = greetings.read_error(body)
    assert error.code == "invalid_argument"
    return error.message


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "framed protocol, not HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "not TLS"),
        (b"\0\0\0\0\1\0\0\0\0", "out of range"),
        (HELLO + b"\xff\xff\xff\xff\2\0\0\0\1", "out of range"),
        (call("stats", None, None, None), "first frame is not HELLO"),
        (write_frame(FrameKind.PING, 0), "first frame is not HELLO"),
        (write_frame(FrameKind.HELLO, 0, b"\xc1"), "the body of HELLO"),
        (write_frame(FrameKind.HELLO, 0, encode({"version": 1})), "the body of HELLO"),
        (write_frame(FrameKind.HELLO, 0, encode([2])), "speaks version 1"),
        (HELLO + write_frame(FrameKind.CALL, 1, b"\xc1"), "not MessagePack"),
        (HELLO + write_frame(FrameKind.CALL, 1, b""), "not MessagePack"),
        (HELLO + write_frame(FrameKind.CALL, 1, encode(["stats", None, None, None])[:-1]), "not MessagePack"),
        (HELLO + call("stats", None, None, None, number=0), "number of its own"),
        (HELLO + call("claim", None, None, None, [1], None) * 2, "number of its own"),
        (HELLO + write_frame(99, 1), "kind 99"),
        (HELLO + write_frame(FrameKind.RESULT, 1), "kind 9"),
        (HELLO + write_frame(FrameKind.CREDIT, 1, encode(5)), "kind 6"),
        (HELLO + write_frame(FrameKind.PING, 0, b"x" * 65), "PING"),
        (HELLO + call("claim", None, None, None, [1], None) + write_frame(FrameKind.DATA, 1, b"x"), "not an upload"),
    ],
)
async def test_what_is_not_the_protocol_is_told_and_ends_its_connection(
    caplog: pytest.LogCaptureFixture, sent: bytes, why: str
) -> None:
    async with attacked(caplog) as server, connected(server.port) as peer:
        peer.writer.write(sent)
        assert why in await last_words(peer)
        [logged] = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert logged.getMessage() == "connection_refused"


async def test_the_versions_that_the_server_speaks_are_told(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, connected(server.port) as peer:
        for _ in range(2):
            peer.write(FrameKind.HELLO, CONNECTION, encode([7]))
        [(_, _, body)] = await peer.end()
        assert greetings.read_error(body).facts["versions"] == [1]


async def test_calls_before_the_mistake_are_answered(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, connected(server.port) as peer:
        peer.writer.write(HELLO + call("enqueue", None, None, None, [[b"x"]]) + b"GET / HTTP/1.1\r\n")
        assert [frame[:2] for frame in await peer.end()] == [
            (FrameKind.HELLO, 0),
            (FrameKind.RESULT, 1),
            (FrameKind.ERROR, 0),
        ]


async def test_a_server_that_drains_has_nothing_more_to_say_to_a_refused_caller(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        [connection] = server.door.connections
        peer.writer.write(b"GET / HTTP/1.1\r\n")
        await eventually(lambda: connection.is_refused)
        server.door.begin_drain()
        assert [kind for kind, *_ in await peer.end()] == [FrameKind.ERROR]
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("places", "code"),
    [
        (("fly", None, None, None), "invalid_argument"),
        (("enqueue", "acme", "jobs", None, [["text"]]), "invalid_argument"),
        (("enqueue", "..", "jobs", None, []), "invalid_name"),
        (("enqueue", "acme", "a/b", None, []), "invalid_name"),
        (("enqueue", "acme", "jobs", None, [[b"x", "t", {}, 256]]), "invalid_argument"),
        (("enqueue", "acme", "jobs", None, [[b"x", "t", {}, 1, -1]]), "invalid_argument"),
        (("enqueue", "acme", "jobs", None, [[b"x"]] * 10_001), "invalid_argument"),
        (("enqueue", "acme", "jobs", None, [[b"x" * (1 << 20 | 1)]]), "payload_too_large"),
        (("claim", "acme", "jobs", None, [0]), "invalid_argument"),
        (("claim", "acme", "jobs", None, [1, 0]), "invalid_argument"),
        (("claim", "acme", "jobs", None, [1], -1), "invalid_argument"),
        (("claim", "acme", "jobs", None, [1 << 63]), "invalid_argument"),
        (("settle", "acme", "jobs", None, [["ack", [1, b"short", 1]]]), "invalid_argument"),
        (("settle", "acme", "jobs", None, [["nack", [1, b"t" * 16, 1], None, None, True, True]]), "invalid_argument"),
        (("read_part", "acme", "jobs", None, [1, b"t" * 16, 1], 0, 0), "invalid_argument"),
        (("read_part", "acme", "jobs", None, [1, b"t" * 16, 1], 0, 1), "stale_lease"),
        (("get", "acme", "jobs", None, {"id": "x"}), "invalid_argument"),
        (("get", "acme", "jobs", None, {"id": 7, "colour": 1}), "invalid_argument"),
        (("stats", "acme", "nowhere", None), "queue_not_found"),
        (("backup", None, None, None, {"target": "copy"}), "invalid_argument"),
        (("watch", None, None, None), "invalid_argument"),
    ],
)
async def test_a_wrong_call_is_refused_and_its_connection_continues(
    clock: ManualClock, places: tuple[Any, ...], code: str
) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        assert (await peer.refusal(*places)).code == code
        await peer.enqueue(b"x")


async def test_an_error_does_not_repeat_control_characters(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        error = await peer.refusal("fly\n\x1b[31m", None, None, None)
        assert error.message.isprintable()


async def test_a_server_that_fails_says_so_and_nothing_of_its_own(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*given: object) -> None:
        raise ZeroDivisionError("a secret")

    async with serve_framed(clock) as server, greeted(server.port) as peer:
        monkeypatch.setattr(server.core.messages, "enqueue", fail)
        error = await peer.refusal("enqueue", "acme", "jobs", {"correlation_id": "mine"}, [[b"x"]])
        assert error.code == "internal"
        assert "secret" not in error.message
        assert any(each.exc_info for each in caplog.records)
        assert await peer.claim() == []


# --- Fuzzing ---------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
names = st.sampled_from(["enqueue", "claim", "exchange", "settle", "subscribe", "upload", "read_part", "get", "browse"])
calls = st.lists(values, max_size=7) | st.tuples(names, st.none(), st.just("jobs"), st.none(), values, values)
bodies = st.binary(max_size=40) | calls.map(encode) | values.map(encode)
frames = st.tuples(st.integers(0, 14), st.integers(0, 3), bodies)


def damage(data: bytes, roll: random.Random) -> bytes:
    """Change, drop or repeat some of the bytes."""
    damaged = bytearray(data)
    for _ in range(roll.randrange(4)):
        at = roll.randrange(len(damaged)) if damaged else 0
        match roll.randrange(4):
            case 0 if damaged:
                damaged[at] = roll.randrange(256)
            case 1:
                del damaged[at:]
            case 2:
                damaged[at:at] = damaged[: roll.randrange(50)]
            case _:
                del damaged[at : at + roll.randrange(5)]
    return bytes(damaged)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(frames, max_size=12), roll=st.randoms(use_true_random=False))
def test_no_frames_whatever_end_the_server_or_leave_a_lease(
    caplog: pytest.LogCaptureFixture, sent: list[Frame], roll: random.Random
) -> None:
    async def test() -> None:
        async with serve_framed(SystemClock()) as server, greeted(server.port) as honest:
            await honest.enqueue(*[b"x"] * 5)
            async with connected(server.port) as peer:
                data = b"".join(write_frame(*each) for each in sent)
                peer.writer.write(HELLO + (damage(data, roll) if roll.randrange(2) else data))
                peer.writer.write_eof()
                await peer.end()
            await eventually(lambda: len(server.door.connections) == 1)
            assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
            stats = await honest.stats()
            assert stats["waiters"] == 0
            await honest.enqueue(b"y")

    asyncio.run(test())


async def test_a_recorded_conversation_cut_anywhere_leaves_nothing_waiting() -> None:
    roll = random.Random(run_seed())
    conversation = HELLO + b"".join(
        [
            call("enqueue", None, "jobs", None, [[b"x" * 300]], number=1),
            call("claim", None, "jobs", None, [5], None, number=2),
            call("subscribe", None, "other", None, [5], 5, number=3),
            call("upload", None, "jobs", None, [b""], number=4),
            write_frame(FrameKind.DATA, 4, b"y" * 300),
            write_frame(FrameKind.CANCEL, 3),
            write_frame(FrameKind.END, 4),
            call("stats", None, "jobs", None, number=5),
        ]
    )
    async with serve_framed(SystemClock()) as server:
        for _ in range(60):
            async with connected(server.port) as peer:
                peer.writer.write(conversation[: roll.randrange(len(conversation))])
                await peer.writer.drain()
                if roll.randrange(2):
                    peer.writer.transport.abort()
            await eventually(lambda: not server.door.connections)
        async with greeted(server.port) as peer:
            await peer.enqueue(b"last", tenant="default")
            assert (await peer.stats("default"))["waiters"] == 0
