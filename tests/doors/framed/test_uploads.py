"""Uploads: payloads in DATA frames, within a window, stored as they come."""

from pathlib import Path

import msgspec
import pytest

from holdfast.doors.framed import uploads
from holdfast.doors.framed.uploads import MAX_UPLOADS, WINDOW_BYTES
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers, greetings
from holdfast.wire.framed.frames import FrameKind
from tests.doors.framed.frames_by_hand import Peer, ask, greeted
from tests.doors.framed.serving import serve_framed
from tests.waiting import until as eventually


def begin(peer: Peer) -> int:
    return peer.open("upload", "acme", "jobs", None, [b"", "text/plain"])


async def send(peer: Peer, call: int, payload: bytes, *, part_bytes: int = 64 << 10) -> int:
    """Send a payload as the window allows, without its end, and return the credit that was given."""
    window, credit = WINDOW_BYTES, 0
    while payload:
        part = payload[: min(part_bytes, window)]
        if not part:
            kind, _, body = await peer.next_of(call)
            assert kind == FrameKind.CREDIT, greetings.read_error(body)
            window += greetings.read_credit(body)
            credit += greetings.read_credit(body)
            continue
        peer.write(FrameKind.DATA, call, part)
        payload, window = payload[len(part) :], window - len(part)
    return credit


async def finish(peer: Peer, call: int) -> bytes:
    """Send the end, and return the body of the RESULT; raise the ERROR."""
    peer.write(FrameKind.END, call)
    while True:
        kind, _, body = await peer.next_of(call)
        if kind == FrameKind.RESULT:
            return body
        if kind == FrameKind.ERROR:
            raise greetings.read_error(body)


@pytest.mark.spec("8.15")
@pytest.mark.parametrize("size", [0, 1, WINDOW_BYTES, 5 << 20])
@pytest.mark.parametrize("stored", ["memory", "rocks"])
async def test_a_payload_in_parts_becomes_one_message(
    clock: ManualClock, tmp_path: Path, size: int, stored: str
) -> None:
    store = "memory://" if stored == "memory" else str(tmp_path / "data")
    async with serve_framed(clock, store=store, max_payload=8 << 20) as server, greeted(server.port) as peer:
        payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        call = begin(peer)
        await send(peer, call, payload)
        [enqueued] = answers.read_enqueued(await finish(peer, call))
        [delivery] = await peer.claim()
        assert (delivery.snowflake, delivery.content_type) == (enqueued.snowflake, "text/plain")
        assert delivery.payload == payload


async def test_a_large_payload_is_left_apart_and_read_in_parts(clock: ManualClock, tmp_path: Path) -> None:
    payload = bytes(range(256)) * (16 << 10)
    async with (
        serve_framed(clock, store=str(tmp_path / "data"), max_payload=8 << 20) as server,
        greeted(server.port) as peer,
    ):
        call = begin(peer)
        await send(peer, call, payload)
        await finish(peer, call)
        body = await peer.call("claim", "acme", "jobs", None, ask(streams=True))
        [delivery] = answers.read_claimed(body).deliveries
        assert (delivery.payload, delivery.pieces and delivery.pieces.size) == (b"", len(payload))
        parts = b""
        while len(parts) < len(payload):
            body = await peer.call("read_part", "acme", "jobs", None, delivery.receipt, len(parts), 1 << 20)
            parts += answers.read_part(body).data
        assert parts == payload


async def test_an_upload_in_one_write_needs_no_turns(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = begin(peer)
        peer.write(FrameKind.DATA, call, b"he")
        peer.write(FrameKind.DATA, call)
        peer.write(FrameKind.DATA, call, b"llo")
        await finish(peer, call)
        assert [each.payload for each in await peer.claim()] == [b"hello"]


async def test_more_than_the_window_is_refused_and_the_connection_continues(clock: ManualClock) -> None:
    async with serve_framed(clock, max_payload=8 << 20) as server, greeted(server.port) as peer:
        call = begin(peer)
        peer.write(FrameKind.DATA, call, b"x" * (WINDOW_BYTES + 1))
        with pytest.raises(greetings.HoldfastError, match="window") as caught:
            await finish(peer, call)
        assert caught.value.code == "invalid_argument"
        assert await peer.claim() == []


async def test_a_payload_that_is_too_large_is_refused_before_its_end(clock: ManualClock) -> None:
    async with serve_framed(clock, max_payload=1_000) as server, greeted(server.port) as peer:
        call = begin(peer)
        peer.write(FrameKind.DATA, call, b"x" * 1_001)
        kind, _, body = await peer.next_of(call)
        assert (kind, greetings.read_error(body).code) == (FrameKind.ERROR, "payload_too_large")
        # What was under way is dropped.
        peer.write(FrameKind.DATA, call, b"x")
        peer.write(FrameKind.END, call)
        assert await peer.claim() == []


async def test_a_cancelled_upload_enqueues_nothing(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = begin(peer)
        peer.write(FrameKind.DATA, call, b"x")
        peer.write(FrameKind.CANCEL, call)
        with pytest.raises(greetings.HoldfastError) as caught:
            await finish(peer, call)
        assert (caught.value.code, caught.value.facts["cancelled"]) == ("store_unavailable", True)
        assert await peer.claim() == []


async def test_an_upload_whose_caller_leaves_enqueues_nothing(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as watching:
        async with greeted(server.port) as peer:
            peer.write(FrameKind.DATA, begin(peer), b"x")
            await peer.writer.drain()
        await eventually(lambda: ("upload", "left") in [(name, out) for name, _, out in server.requests.seen])
        assert await watching.claim() == []


async def test_an_upload_that_does_not_continue_is_given_up(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_PATIENCE_S", 0.05)
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        kind, _, body = await peer.next_of(begin(peer))
        assert (kind, greetings.read_error(body).code) == (FrameKind.ERROR, "invalid_argument")


async def test_uploads_of_one_connection_are_bounded(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        for _ in range(MAX_UPLOADS):
            begin(peer)
        kind, _, body = await peer.next_of(begin(peer))
        assert (kind, greetings.read_error(body).code) == (FrameKind.ERROR, "rate_limited")


async def test_a_message_with_a_payload_of_its_own_is_no_upload(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        error = await peer.refusal("upload", "acme", "jobs", None, [b"x"])
        assert (error.code, error.facts["field"]) == ("invalid_argument", "payload")


async def test_an_upload_with_a_known_key_answers_the_message_that_has_it(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        draft = [b"", "t", {}, 100, 0, None, None, "the-key"]
        ids = []
        for _ in range(2):
            call = peer.open("upload", "acme", "jobs", None, draft)
            ids += answers.read_enqueued(await finish(peer, call))
        assert ids[0].snowflake == ids[1].snowflake
        assert [each.duplicate for each in ids] == [False, True]
        assert msgspec.structs.asdict(ids[1])["duplicate"] is True
