"""Large payloads on their way out: read when they are asked for, part by part, and never a wrong one."""

import asyncio
import io
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from zlib import crc32

import msgspec
import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.payloads.part_reader import PART, PayloadCursor, opened, write_all
from holdfast.model.answers import Delivery
from holdfast.model.message import Pieces, Receipt
from holdfast.testing import ManualClock
from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind
from tests.client.large import PATIENCE_S
from tests.doors.serving import Server

PAYLOAD = Random(0).randbytes(5 * PART // 2)


class Order(msgspec.Struct):
    note: str


async def claimed(hf: AsyncHoldfast, payload: Any = PAYLOAD, **options: Any) -> AsyncMessage:
    await hf.queue("q").enqueue(payload)
    [message] = await hf.queue("q").claim(stream=True, lease=30, **options)
    return message


def reads(server: Server) -> int:
    return sum(1 for operation, _, _ in server.requests.seen if operation == "read_part")


# --- The async API -------------------------------------------------------------------------------------------------


async def test_a_large_payload_stays_where_it_is_until_it_is_read(hf: AsyncHoldfast) -> None:
    message = await claimed(hf)
    assert message.size == len(PAYLOAD)
    with pytest.raises(holdfast.InvalidArgument, match=r"await message.load\(\)"):
        _ = message.payload
    assert await message.load() == PAYLOAD
    assert (message.payload, message.size) == (PAYLOAD, len(PAYLOAD))
    await message.ack()
    assert message.payload == PAYLOAD


@pytest.mark.spec("10.2")
async def test_a_large_payload_comes_in_parts(hf: AsyncHoldfast) -> None:
    message = await claimed(hf)
    parts = [part async for part in message.chunks()]
    assert [len(part) for part in parts] == [PART, PART, PART // 2]
    assert b"".join(parts) == PAYLOAD
    assert b"".join([part async for part in message.chunks()]) == PAYLOAD  # as often as it is asked for


@pytest.mark.spec("10.2")
async def test_a_payload_is_written_to_a_file_or_to_a_path(hf: AsyncHoldfast, tmp_path: Path) -> None:
    for number, payload in enumerate((b"", b"small", PAYLOAD)):
        message = await claimed(hf, payload)
        file = io.BytesIO()
        assert await message.write_to(file) == len(payload)
        assert file.getvalue() == payload
        path = tmp_path / f"payload {number}"
        assert await message.write_to(path) == len(payload)
        assert await message.write_to(str(path)) == len(payload)
        assert path.read_bytes() == payload
        assert not list(tmp_path.glob("*.part"))
        await message.ack()


async def test_a_claim_without_stream_has_its_payloads_whole(hf: AsyncHoldfast) -> None:
    await hf.queue("q").enqueue([PAYLOAD, PAYLOAD[::-1]])
    assert [message.payload for message in await hf.queue("q").claim(limit=2)] == [PAYLOAD, PAYLOAD[::-1]]


async def test_a_subscription_may_leave_large_payloads_too(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue([PAYLOAD, b"small"])
    messages = q.subscribe(stream=True)
    first, second = await anext(messages), await anext(messages)
    assert (await first.load(), second.payload) == (PAYLOAD, b"small")
    await messages.aclose()


async def test_a_claim_of_a_ledger_may_leave_large_payloads_too(hf: AsyncHoldfast) -> None:
    message = await claimed(hf, ledger=("spark", 1))
    assert message.size == len(PAYLOAD)
    [again] = await hf.queue("q").claim(ledger=("spark", 1), stream=True)
    assert await again.load() == PAYLOAD


@pytest.mark.spec("10.2")
async def test_json_that_is_large_is_still_json(hf: AsyncHoldfast) -> None:
    note = "x" * (PART + 1)
    message = await claimed(hf, {"note": note})
    await message.load()
    assert message.json() == {"note": note}
    assert message.json(Order) == Order(note)


# --- The blocking API ----------------------------------------------------------------------------------------------


def test_a_blocking_claim_reads_a_large_payload_when_it_is_asked_for(
    blocking: holdfast.Holdfast, tmp_path: Path
) -> None:
    q = blocking.queue("q")
    q.enqueue([PAYLOAD, b"small", b"", {"note": "x" * PART}])
    large, small, empty, typed = q.claim(limit=4, lease=60)
    assert large._held.delivery.pieces is not None
    assert [len(part) for part in large.chunks()] == [PART, PART, PART // 2]
    assert large.write_to(tmp_path / "out") == len(PAYLOAD)
    assert (tmp_path / "out").read_bytes() == PAYLOAD
    assert large._held.delivery.payload == b""
    assert large.payload == PAYLOAD
    assert (list(small.chunks()), list(empty.chunks()), small.payload) == ([b"small"], [], b"small")
    assert typed.json(Order) == Order("x" * PART)
    assert [result.ok for result in q.ack([large, small, empty, typed])] == [True] * 4
    assert large.load() == PAYLOAD


def test_a_blocking_claim_can_ask_for_payloads_whole(blocking: holdfast.Holdfast) -> None:
    q = blocking.queue("q")
    q.enqueue(PAYLOAD)
    [message] = q.claim(stream=False)
    message.ack()
    assert message.payload == PAYLOAD


def test_a_blocking_subscription_reads_large_payloads_when_asked(blocking: holdfast.Holdfast) -> None:
    q = blocking.queue("q")
    q.enqueue(PAYLOAD)
    messages = q.subscribe()
    with next(messages) as message:
        assert message._held.delivery.pieces is not None
        assert message.payload == PAYLOAD
    messages.close()


def test_a_blocking_read_after_the_ack_is_refused(blocking: holdfast.Holdfast) -> None:
    q = blocking.queue("q")
    q.enqueue(PAYLOAD)
    [message] = q.claim()
    message.ack()
    with pytest.raises(holdfast.StaleLease):
        _ = message.payload


# --- The lease -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ack", "nack", "release", "lapse", "claimed again", "delete"])
async def test_nothing_is_read_once_the_lease_is_gone(
    hf: AsyncHoldfast, clock: ManualClock, tmp_path: Path, how: str
) -> None:
    message = await claimed(hf)
    q = hf.queue("q")
    parts = message.chunks()
    assert await anext(parts) == PAYLOAD[:PART]
    match how:
        case "ack":
            await q.ack([message.receipt])  # by somebody else: this message does not know
        case "nack":
            await q.nack([message.receipt], delay=0)
        case "release":
            await q.release([message.receipt])
        case "lapse":
            clock.advance(30_000)
        case "claimed again":
            clock.advance(30_000)
            [other] = await q.claim(stream=True, lease=30)
            assert await other.load() == PAYLOAD
        case "delete":
            await q.release([message.receipt])
            await q.delete()
    assert not message.is_lost
    with pytest.raises(holdfast.StaleLease):
        await anext(parts)
    assert message.is_lost
    path = tmp_path / "out"
    for target in (path, io.BytesIO()):
        with pytest.raises(holdfast.StaleLease):
            await message.write_to(target)
    assert not list(tmp_path.glob("out*"))


async def test_a_lease_that_is_extended_continues_giving(hf: AsyncHoldfast, clock: ManualClock) -> None:
    message = await claimed(hf)
    read = b""
    async for part in message.chunks():
        read += part
        clock.advance(20_000)
        await message.extend(30)
    assert read == PAYLOAD


# --- The way -------------------------------------------------------------------------------------------------------


async def test_small_messages_cost_no_request_more(server: Server) -> None:
    async with holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue([b"x" * PART, b"small"])
        before = len(server.requests.seen)
        first, second = await q.claim(limit=2, stream=True)
        assert (first.payload, second.payload) == (b"x" * PART, b"small")
        assert [part async for part in second.chunks()] == [b"small"]
        assert len(server.requests.seen) == before + 1


async def test_a_large_payload_is_not_sent_before_it_is_asked_for(server: Server) -> None:
    async with holdfast.open_async(server.url) as hf:
        message = await claimed(hf)
        assert reads(server) == 0
        await message.load()
        assert reads(server) == 3
        await message.load()
        assert reads(server) == 3


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_payload_whose_connection_is_cut_continues_where_it_was(server: Server, answers: int) -> None:
    async with FaultProxy(server.url) as proxy, holdfast.open_async(proxy.url) as hf:
        message = await claimed(hf)
        read = b""
        async for part in message.chunks():
            read += part
            proxy.stop_faults()
            proxy.inject(*[Fault(NetworkFaultKind.CUT_BEFORE_REPLY)] * answers)
        assert read == PAYLOAD
        proxy.stop_faults()
        async for _ in message.chunks():
            await proxy.cut()
        assert await message.load() == PAYLOAD


async def test_a_part_that_was_cut_in_the_middle_is_asked_for_again(server: Server) -> None:
    async with FaultProxy(server.url) as proxy, holdfast.open_async(proxy.url) as hf:
        message = await claimed(hf)
        proxy.inject(Fault(NetworkFaultKind.CUT_IN_REPLY))
        assert await asyncio.wait_for(message.load(), PATIENCE_S) == PAYLOAD
        assert proxy.faults[NetworkFaultKind.CUT_IN_REPLY] == 1
        assert proxy.connections > 1


async def test_a_server_that_stays_away_is_named(server: Server) -> None:
    async with FaultProxy(server.url) as proxy, holdfast.open_async(proxy.url, retries=1) as hf:
        message = await claimed(hf)
        proxy.inject(*[Fault(NetworkFaultKind.CUT_BEFORE_REPLY)] * 1_000)
        with pytest.raises(holdfast.StoreUnavailable, match="did not answer"):
            await message.load()
        proxy.stop_faults()
        assert await message.load() == PAYLOAD


# --- What came is what was enqueued --------------------------------------------------------------------------------


def delivery(payload: bytes, checksum: int) -> Delivery:
    return Delivery(
        snowflake=1,
        receipt=Receipt(1, bytes(16), 1),
        payload=b"",
        pieces=Pieces(0, len(payload), checksum),
        content_type="x",
        headers={},
        priority=0,
        attempt=1,
        enqueued_at=0,
        lease_expires_at=0,
    )


@pytest.mark.parametrize(
    "parts", [[b"abc", b"deX"], [b"abc", b"def", b"g"], [b"abc", b""], [b"abcdefg"], [b"Xbc", b"def"]]
)
def test_a_payload_that_is_not_the_one_enqueued_is_refused(parts: list[bytes]) -> None:
    reading = PayloadCursor(delivery(b"abcdef", crc32(b"abcdef")))
    *right, wrong = parts
    assert [reading.take(part) for part in right] == right
    with pytest.raises(holdfast.Internal, match="differs from the enqueued one"):
        reading.take(wrong)


def _write_half(file: BinaryIO) -> None:
    file.write(b"half")
    raise RuntimeError


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before")
    path.chmod(0o640)
    with pytest.raises(RuntimeError), opened(path) as file:
        _write_half(file)
    assert path.read_bytes() == b"before"
    with opened(path) as file:
        file.write(b"whole")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"whole", 0o640)
    (tmp_path / "link").symlink_to(path)
    with opened(tmp_path / "link") as file:
        file.write(b"through")
    assert path.read_bytes() == b"through"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "out"]


def test_a_file_that_takes_little_at_a_time_gets_everything() -> None:
    taken: list[bytes] = []

    class Slow(io.RawIOBase):
        def write(self, data: Any) -> int:
            taken.append(bytes(data[:3]))
            return len(taken[-1])

    assert write_all(Slow(), b"abcdefgh") == 8
    assert taken == [b"abc", b"def", b"gh"]
