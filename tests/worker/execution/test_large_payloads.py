"""Handlers of large payloads: whole where they ask for the payload, part by part where they ask for the message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.payloads.part_reader import PART
from holdfast.dice import SeededDice
from holdfast.server.embedded import open_on_loop
from holdfast.stores.rocks import RocksStore
from holdfast.testing import with_faults
from tests.worker.execution import jobs
from tests.worker.passing import PATIENCE_S, Outage, until

MAX_PAYLOAD = 16 << 20
PAYLOAD = Random(0).randbytes(2 * PART + 5)


class Order(msgspec.Struct):
    note: str


@asynccontextmanager
async def opened(directory: Path, outage: Outage | None = None) -> AsyncIterator[AsyncHoldfast]:
    path = str(directory / "data")
    store = (
        None
        if outage is None
        else with_faults(RocksStore(path, SeededDice(0), journal_retention_ms=86_400_000), outage)
    )
    async with open_on_loop(path, {"durability": "os", "max_payload": MAX_PAYLOAD}, store=store) as hf:
        yield hf


class Seen:
    """The outcome of each message, in order."""

    def __init__(self, worker: holdfast.Worker) -> None:
        self.outcomes: list[holdfast.Outcome] = []
        worker.after(lambda _, outcome: self.outcomes.append(outcome))

    async def kinds(self, number: int = 1) -> list[str]:
        await until(lambda: len(self.outcomes) >= number)
        assert all(each.exception is None for each in self.outcomes if each.kind == "succeeded")
        return [str(each.kind) for each in self.outcomes]


async def handle_one(directory: Path, payload: Any, function: Any, **options: Any) -> list[str]:
    async with opened(directory) as hf:
        worker = holdfast.Worker(hf)
        seen = Seen(worker)
        worker.handler("q", retries=0, **options)(function)
        async with asyncio.timeout(PATIENCE_S), worker:
            await hf.queue("q").enqueue(payload, headers={"out": str(directory / "out")})
            return await seen.kinds()


async def test_a_typed_payload_is_decoded_whole_however_large(tmp_path: Path) -> None:
    got: list[Any] = []

    async def on_loop(order: Order) -> None:
        got.append(len(order.note))

    def in_thread(order: Order, message: holdfast.Message) -> None:
        got.append((len(order.note), message.size == len(message.payload)))

    payload = {"note": "x" * 2 * PART}
    assert await handle_one(tmp_path / "1", payload, on_loop) == ["succeeded"]
    assert await handle_one(tmp_path / "2", payload, in_thread) == ["succeeded"]
    assert got == [2 * PART, (2 * PART, True)]


async def test_a_large_payload_that_is_bad_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async def handle(order: Order) -> None:
        raise AssertionError

    assert await handle_one(tmp_path, PAYLOAD, handle) == ["failed"]


async def test_an_async_handler_has_the_payload_unless_it_asks_to_stream(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def plain(message: holdfast.AsyncMessage) -> None:
        got.append(message.payload)

    async def streaming(message: holdfast.AsyncMessage) -> None:
        with pytest.raises(holdfast.InvalidArgument, match="load"):
            _ = message.payload
        parts = [part async for part in message.chunks()]
        assert [len(part) for part in parts] == [PART, PART, 5]
        got.append(b"".join(parts))

    assert await handle_one(tmp_path / "1", PAYLOAD, plain) == ["succeeded"]
    assert await handle_one(tmp_path / "2", PAYLOAD, streaming, stream=True) == ["succeeded"]
    assert got == [PAYLOAD, PAYLOAD]


async def test_a_handler_in_a_thread_reads_when_it_asks(tmp_path: Path) -> None:
    got: list[Any] = []

    def handle(message: holdfast.BlockingMessage) -> None:
        got.append(message._held.delivery.payload)
        message.write_to(tmp_path / "out")
        got.append(message._held.delivery.payload)
        got.append(message.payload)

    assert await handle_one(tmp_path, PAYLOAD, handle) == ["succeeded"]
    assert got == [b"", b"", PAYLOAD]
    assert (tmp_path / "out").read_bytes() == PAYLOAD


@pytest.mark.slow
async def test_a_handler_in_a_process_reads_through_its_worker(tmp_path: Path) -> None:
    assert await handle_one(tmp_path, PAYLOAD, jobs.take_parts, process=True) == ["succeeded"]
    assert (tmp_path / "out").read_bytes() == PAYLOAD
    assert (tmp_path / "out.parts").read_text() == f"{PART} {PART} 5"
    path = tmp_path / "said"
    payload = {"path": str(path), "filling": "x" * PART}
    assert await handle_one(tmp_path / "typed", payload, jobs.take_whole, process=True) == ["succeeded"]
    _, filling, read, size = path.read_text().split()
    assert (int(filling), read) == (PART, size)


async def test_a_worker_over_a_blocking_client_reads_large_payloads_too(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def handle(message: holdfast.AsyncMessage) -> None:
        got.append(await message.load())

    with holdfast.open(str(tmp_path / "data"), durability="os", max_payload=MAX_PAYLOAD) as hf:
        hf.queue("q").enqueue(PAYLOAD)
        worker = holdfast.Worker(hf)
        seen = Seen(worker)
        worker.handler("q", stream=True)(handle)
        async with asyncio.timeout(PATIENCE_S), worker:
            assert await seen.kinds() == ["succeeded"]
    assert got == [PAYLOAD]


async def test_handlers_upload_through_whatever_their_worker_has(tmp_path: Path) -> None:
    """The worker's connection may be of another thread, or of another loop, than its handlers."""

    async def copy(message: holdfast.AsyncMessage) -> None:
        await worker.client.queue("copies").upload(message.chunks())

    def copy_blocking(message: holdfast.BlockingMessage) -> None:
        worker.blocking_client.queue("copies").upload(message.chunks())

    with holdfast.open(str(tmp_path / "data"), durability="os", max_payload=MAX_PAYLOAD) as hf:
        for queue in ("async", "blocking"):
            hf.queue(queue).enqueue(PAYLOAD)
        worker = holdfast.Worker(hf)
        seen = Seen(worker)
        worker.handler("async", stream=True)(copy)
        worker.handler("blocking")(copy_blocking)
        async with asyncio.timeout(PATIENCE_S), worker:
            assert await seen.kinds(2) == ["succeeded"] * 2
        assert [message.payload for message in hf.queue("copies").claim(limit=2)] == [PAYLOAD] * 2


async def test_a_payload_that_cannot_be_read_for_now_counts_no_failure(tmp_path: Path) -> None:
    outage = Outage()
    got: list[int] = []

    async def handle(payload: bytes) -> None:
        got.append(len(payload))

    async with opened(tmp_path, outage) as hf:
        worker = holdfast.Worker(hf)
        seen = Seen(worker)
        worker.handler("q", retries=0)(handle)
        outage.begin("payloads.read")
        async with asyncio.timeout(PATIENCE_S), worker:
            await hf.queue("q").enqueue(PAYLOAD)
            assert set(await seen.kinds()) == {"released"}
            outage.end()
            await until(lambda: bool(got))
            assert got == [len(PAYLOAD)]
            await until(lambda: str(seen.outcomes[-1].kind) == "succeeded")
            assert {str(each.kind) for each in seen.outcomes[:-1]} == {"released"}


async def test_a_handler_is_not_begun_once_its_lease_was_lost_while_its_payload_was_read(tmp_path: Path) -> None:
    class Stealing(Outage):
        """Acks what is read, as somebody else would who has the receipt."""

        async def before(self, call: str) -> None:
            if call == "payloads.read" and self.error is None:
                self.error = AssertionError("once")
                [info] = await hf.queue("q").list(state="in_flight")
                await hf.queue("q").remove(info.id)

    async def handle(payload: bytes) -> None:
        raise AssertionError

    async with opened(tmp_path, Stealing()) as hf:
        worker = holdfast.Worker(hf)
        seen = Seen(worker)
        worker.handler("q", retries=0)(handle)
        async with asyncio.timeout(PATIENCE_S), worker:
            await hf.queue("q").enqueue(PAYLOAD)
            assert await seen.kinds() == ["lost"]
