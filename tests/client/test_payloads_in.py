"""Large payloads on their way in: read as they are sent, from whatever holds them, and a message only when whole."""

import asyncio
import gzip
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.payloads.part_reader import PART
from holdfast.client.payloads.upload_sources import FileSource, IterableSource
from holdfast.testing import HandlerTest, ManualClock
from tests.client.large import MAX_PAYLOAD, PATIENCE_S, Place, staged

PAYLOAD = Random(0).randbytes(5 * PART // 2)


async def in_turns(parts: list[Any]) -> AsyncIterator[Any]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


def split(payload: bytes, size: int) -> list[bytes]:
    return [payload[start : start + size] for start in range(0, len(payload), size)]


async def read_back(hf: AsyncHoldfast) -> bytes:
    [message] = await hf.queue("q").claim(stream=True)
    payload = await message.load()
    await message.ack()
    return payload


@contextmanager
def made(source: Callable[[Path], Any], path: Path) -> Iterator[Any]:
    given = source(path)
    yield given
    if isinstance(given, io.IOBase):
        given.close()


async def assert_nothing_came(place: Place) -> None:
    assert await place.hf.queues() == []
    async with asyncio.timeout(PATIENCE_S):
        while await staged(place.core):  # a server hears of a caller that left, but not at once
            await asyncio.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "payload"
    path.write_bytes(PAYLOAD)
    return path


# --- What is uploaded ----------------------------------------------------------------------------------------------

SOURCES: dict[str, Callable[[Path], Any]] = {
    "a path": lambda path: path,
    "a path as text": str,
    "an open file": lambda path: path.open("rb"),
    "a file without a buffer": lambda path: path.open("rb", buffering=0),
    "a file in memory": lambda path: io.BytesIO(PAYLOAD),
    "a list": lambda path: split(PAYLOAD, 100_000),
    "one part": lambda path: [PAYLOAD],
    "small parts": lambda path: iter(split(PAYLOAD, 777)),
    "bytes by another name": lambda path: [bytearray(PAYLOAD[:PART]), memoryview(PAYLOAD)[PART:]],
    "empty parts": lambda path: [b"", PAYLOAD, b""],
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
async def test_a_payload_is_uploaded_from_a_path_a_file_or_an_iterable(
    hf: AsyncHoldfast, path: Path, source: Callable[[Path], Any]
) -> None:
    with made(source, path) as given:
        await hf.queue("q").upload(given)
    assert await read_back(hf) == PAYLOAD


@pytest.mark.parametrize("size", [777, PART, 5 * PART])
async def test_a_payload_is_uploaded_from_an_async_iterable(hf: AsyncHoldfast, size: int) -> None:
    await hf.queue("q").upload(in_turns(split(PAYLOAD, size)))
    assert await read_back(hf) == PAYLOAD


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_a_blocking_upload_takes_the_same(
    blocking: holdfast.Holdfast, path: Path, source: Callable[[Path], Any]
) -> None:
    q = blocking.queue("q")
    with made(source, path) as given:
        q.upload(given)
    [message] = q.claim()
    assert message.payload == PAYLOAD


@pytest.mark.parametrize("nothing", [b"", []], ids=["a file", "an iterable"])
async def test_an_empty_payload_is_a_payload(hf: AsyncHoldfast, nothing: Any) -> None:
    await hf.queue("q").upload(io.BytesIO(nothing) if isinstance(nothing, bytes) else nothing)
    assert await read_back(hf) == b""


async def test_an_upload_answers_one_id_and_takes_the_options_of_enqueue(hf: AsyncHoldfast, path: Path) -> None:
    q = hf.queue("q", tenant="acme")
    id = await q.upload(
        path,
        priority=7,
        ttl=60,
        key="film-7",
        group="g",
        headers={"kind": "film"},
        correlation_id="c-7",
        max_retries=3,
        content_type="video/mp4",
    )
    assert (type(id), id.duplicate, id.correlation_id) == (holdfast.MessageId, False, "c-7")
    info = await q.get(id)
    assert (info.snowflake, info.priority, info.group, info.headers) == (id.snowflake, 7, "g", {"kind": "film"})
    assert (info.content_type, info.is_json, info.bytes) == ("video/mp4", False, len(PAYLOAD) + 8)
    again = await q.upload(path, key="film-7")
    assert (again, again.duplicate) == (id, True)
    assert (await q.stats()).ready == 1
    await q.upload([b"later"], delay=5)
    assert (await q.stats()).delayed == 1


async def test_an_open_file_is_read_from_where_it_stands(hf: AsyncHoldfast, path: Path) -> None:
    with path.open("rb") as file:
        file.seek(1_000_000)
        await hf.queue("q").upload(file)
        assert not file.closed
    assert await read_back(hf) == PAYLOAD[1_000_000:]


async def test_what_a_file_unpacks_is_what_is_uploaded(hf: AsyncHoldfast, tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"x" * PART + PAYLOAD))
    with gzip.open(tmp_path / "packed") as file:
        await hf.queue("q").upload(file)
    assert await read_back(hf) == b"x" * PART + PAYLOAD


async def test_a_file_that_grows_is_uploaded_as_it_was(hf: AsyncHoldfast, path: Path) -> None:
    class Growing(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            with path.open("ab") as file:
                file.write(b"more")
            return super().read(size)

    with Growing(path) as file:
        await hf.queue("q").upload(file)
    assert await read_back(hf) == PAYLOAD


def test_small_parts_go_together_and_none_is_larger_than_one_part() -> None:
    together = [len(part) for part in IterableSource(split(PAYLOAD, 777)).parts()]
    assert all(PART >= size >= 32_000 for size in together[:-1])
    apart = list(IterableSource([PAYLOAD[:10], PAYLOAD[10:]]).parts())
    assert [len(part) for part in apart] == [PART, PART, PART // 2]
    assert b"".join(apart) == PAYLOAD


def test_a_length_is_known_only_where_it_is_certain(path: Path, tmp_path: Path) -> None:
    with path.open("rb") as file, gzip.open(path) as packed:
        assert FileSource(file).size == len(PAYLOAD)
        assert FileSource(packed).size is None
    assert FileSource(io.BytesIO(PAYLOAD)).size == len(PAYLOAD)
    assert FileSource(io.BufferedReader(io.BytesIO(PAYLOAD))).size is None


# --- What is not ---------------------------------------------------------------------------------------------------


class Endless(io.RawIOBase):
    def __init__(self, part: Any) -> None:
        self.part = part

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> Any:
        return self.part


def closed_file(path: Path) -> Any:
    with path.open("rb") as file:
        return file


NO_SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda path: None, "NoneType"),
    "a number": (lambda path: 7, "int"),
    "a class": (lambda path: bytes, "type"),
    "bytes": (lambda path: b"bytes", "enqueue"),
    "a text file": (lambda path: path.open(), "text mode"),
    "text in memory": (lambda path: io.StringIO("text"), "text mode"),
    "a closed file": (closed_file, "closed"),
    "a file to write": (lambda path: path.with_name("new").open("wb"), "reading"),
    "a file that reads text": (lambda path: Endless("text"), "binary mode"),
    "a file that has nothing yet": (lambda path: Endless(None), "blocking mode"),
    "a list of text": (lambda path: [PAYLOAD, "text"], "str"),
    "a list of numbers": (lambda path: [1, 2], "int"),
}


@pytest.mark.parametrize(("source", "word"), NO_SOURCES.values(), ids=NO_SOURCES.keys())
async def test_what_is_no_source_is_refused_and_changes_nothing(
    place: Place, path: Path, source: Callable[[Path], Any], word: str
) -> None:
    with made(source, path) as given, pytest.raises(holdfast.InvalidArgument, match=word) as refused:
        await place.hf.queue("q").upload(given)
    assert refused.value.facts["field"] == "source"
    await assert_nothing_came(place)


def test_a_blocking_upload_refuses_the_same(blocking: holdfast.Holdfast, path: Path) -> None:
    q = blocking.queue("q")
    for source, word in [*NO_SOURCES.values(), (lambda path: in_turns([b"x"]), "open_async")]:
        with made(source, path) as given, pytest.raises(holdfast.InvalidArgument, match=word):
            q.upload(given)
    with pytest.raises(FileNotFoundError):
        q.upload(path.with_name("missing"))
    with pytest.raises(holdfast.InvalidArgument, match="priority"):
        q.upload(path, priority=256)
    with pytest.raises(holdfast.InvalidArgument, match="colour"):
        q.upload(path, colour="red")
    assert blocking.queues() == []


def breaking(error: BaseException) -> Iterator[bytes]:
    yield PAYLOAD
    raise error


async def breaking_async(error: BaseException) -> AsyncIterator[bytes]:
    yield PAYLOAD
    raise error


@pytest.mark.parametrize("source", [breaking, breaking_async])
async def test_a_source_that_raises_enqueues_nothing(place: Place, source: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        await place.hf.queue("q").upload(source(ZeroDivisionError()), key="k")
    await assert_nothing_came(place)


def test_a_source_that_raises_in_a_blocking_upload_enqueues_nothing(blocking: holdfast.Holdfast) -> None:
    for error in (ZeroDivisionError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            blocking.queue("q").upload(breaking(error))
    assert blocking.queues() == []
    assert blocking.queue("q").enqueue("it goes on")


async def test_a_file_that_becomes_shorter_enqueues_nothing(place: Place, path: Path) -> None:
    class Shrinking(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            part = super().read(size)
            path.write_bytes(b"")
            return part

    with Shrinking(path) as file, pytest.raises(holdfast.InvalidArgument, match="shorter"):
        await place.hf.queue("q").upload(file)
    await assert_nothing_came(place)


async def test_an_upload_that_is_cancelled_enqueues_nothing(place: Place) -> None:
    has_begun = asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        yield PAYLOAD
        has_begun.set()
        await asyncio.sleep(PATIENCE_S)

    uploading = asyncio.ensure_future(place.hf.queue("q").upload(waiting()))
    await has_begun.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    await assert_nothing_came(place)


# --- Refused in the middle -----------------------------------------------------------------------------------------


class Counted:
    """A payload of unlimited length that counts the bytes taken from it."""

    def __init__(self, most: int = 16 * MAX_PAYLOAD) -> None:
        self.taken = 0
        self.most = most

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < self.most:
            self.taken += PART
            yield bytes(PART)


async def test_a_payload_over_the_limit_is_refused_while_it_is_sent(place: Place) -> None:
    source = Counted()
    with pytest.raises(holdfast.PayloadTooLarge):
        await place.hf.queue("q").upload(source, key="k")
    assert source.taken < source.most / 2
    await assert_nothing_came(place)
    assert await place.hf.queue("q").enqueue("it goes on")


def test_a_blocking_upload_over_the_limit_is_refused_while_it_is_sent(blocking: holdfast.Holdfast) -> None:
    source = Counted()
    with pytest.raises(holdfast.PayloadTooLarge):
        blocking.queue("q").upload(source)
    assert source.taken < source.most / 2


async def test_a_payload_over_the_quota_is_refused_while_it_is_sent(place: Place) -> None:
    await place.hf.tenant("default").set(quotas={"max_bytes": 3 * PART})
    source = Counted(MAX_PAYLOAD)
    with pytest.raises(holdfast.OverQuota):
        await place.hf.queue("q").upload(source, key="k")
    await assert_nothing_came(place)


async def test_a_file_over_the_limit_is_refused_by_its_length(place: Place, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb+") as file:
        file.truncate(100 * MAX_PAYLOAD)
        with pytest.raises(holdfast.PayloadTooLarge):
            await place.hf.queue("q").upload(file)
        assert file.tell() < 32 * PART  # what was under way before the refusal was heard
    await assert_nothing_came(place)


async def test_an_upload_over_its_rate_is_refused_by_its_name(place: Place, clock: ManualClock) -> None:
    q = place.hf.queue("q")
    await q.set_policy(limits={"write_ops_per_s": 1, "burst_s": 1})
    await q.enqueue("one")
    with pytest.raises(holdfast.RateLimited):
        await q.upload([PAYLOAD])
    assert (await q.stats()).ready == 1
    assert await staged(place.core) == []
    clock.advance(1_000)
    await q.upload([PAYLOAD])


# --- Who reads it --------------------------------------------------------------------------------------------------


def test_a_blocking_upload_may_read_from_its_own_client(blocking: holdfast.Holdfast) -> None:
    q, copies = blocking.queue("q"), blocking.queue("copies")
    q.enqueue(PAYLOAD)
    [message] = q.claim()
    copies.upload(message.chunks())
    [copy] = copies.claim()
    assert copy.payload == PAYLOAD


def test_a_source_that_takes_its_time_keeps_nobody_waiting(blocking: holdfast.Holdfast) -> None:
    q, threads = blocking.queue("q"), []

    def slow() -> Iterator[bytes]:
        yield PAYLOAD
        ids: list[Any] = []
        other = threading.Thread(target=lambda: ids.extend(q.enqueue("meanwhile")))
        other.start()
        other.join(PATIENCE_S)
        assert len(ids) == 1
        threads.append(threading.current_thread())
        yield PAYLOAD

    q.upload(slow())
    assert threads == [threading.current_thread()]
    assert q.stats().ready == 2


async def test_a_worker_under_test_shows_what_its_handlers_uploaded() -> None:
    worker = holdfast.Worker("memory://")

    @worker.handler("films")
    async def cut(message: holdfast.AsyncMessage) -> None:
        await worker.client.queue("scenes").upload(in_turns([b"a", b"b"]))

    async with HandlerTest(worker) as test:
        await test.enqueue("films", b"film")
        await test.run()
        assert [each.payload for each in test.enqueued] == [b"ab"]
