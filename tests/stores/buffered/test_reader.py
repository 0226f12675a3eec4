"""Jobs read a log while its server writes it, and each call is stored once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.reader import SegmentFile, read_calls, segment_files
from holdfast.stores.buffered.log.segments import LogDamaged
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.formats.logged_enqueue import LoggedBatch, encode_call, log_call
from holdfast.stores.postgres.landing.flushing import FlushResult, flush, landed
from holdfast.testing import ManualClock
from tests.postgres.landing_calls import REF, Log
from tests.postgres.server import PostgresServer
from tests.redis.buffered import now_ms, opened, put, take
from tests.redis.server import RedisServer
from tests.worker.passing import passing, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("read_log")


@pytest.fixture
def urls(postgres: PostgresServer, redis_server: RedisServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)
    redis_server.flush()


def call(text: bytes) -> bytes:
    from holdfast.model.message import Draft

    return encode_call(log_call(REF, 1, [Draft(payload=text)], [1], 0, None))


def append(wal: Wal, *texts: bytes, shard: int = 0) -> list[int]:
    """Append calls as one group."""
    bodies = [call(text) for text in texts]
    wal.make_room(sum(map(len, bodies)) + 100 * len(bodies))
    numbers = list(wal.take_numbers(shard, len(bodies)))
    wal.append([(shard, number, body) for number, body in zip(numbers, bodies, strict=True)])
    return numbers


def texts(batches: list[LoggedBatch]) -> list[bytes]:
    return [message.payload for batch in batches for _, each in batch.calls for message in each.messages]


def everything(path: Path, *, is_over: bool = False) -> list[bytes]:
    return [text for file in segment_files(path) for text in texts(read_calls(file, is_over=is_over).batches)]


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_what_the_next_record_has_confirmed_is_given_and_the_end_is_not(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a", b"b")
    assert everything(tmp_path) == [], "its caller may still be refused"
    append(wal, b"c")
    assert everything(tmp_path) == [b"a", b"b"]
    wal.void([])
    assert everything(tmp_path) == [b"a", b"b", b"c"]
    assert everything(tmp_path, is_over=True) == [b"a", b"b", b"c"]
    wal.close()


def test_what_was_voided_is_not_given_and_counts_as_read(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a", b"b", b"c")
    wal.void([(0, 1)])
    [file] = segment_files(tmp_path)
    [batch] = read_calls(file).batches
    assert texts([batch]) == [b"a", b"c"]
    assert batch.span == range(3)
    wal.close()


def test_a_void_in_the_next_segment_is_heeded(tmp_path: Path) -> None:
    wal = Wal(tmp_path, segment_bytes=400)
    [first] = append(wal, b"x" * 200)
    wal.void([(0, first)])  # there was no room for it behind
    append(wal, b"y" * 200)
    wal.void([])
    assert len(segment_files(tmp_path)) > 1
    assert everything(tmp_path) == [b"y" * 200]
    wal.close()


def test_a_reading_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a")
    append(wal, b"b")
    [file] = segment_files(tmp_path)
    first = read_calls(file)
    assert texts(first.batches) == [b"a"]
    append(wal, b"c")
    wal.void([])
    second = read_calls(file, first.end)
    assert texts(second.batches) == [b"b", b"c"]
    assert not second.is_whole
    assert read_calls(file, second.end).batches == []
    wal.close()


def test_lanes_are_apart_and_spans_are_without_gaps(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    for number in range(6):
        append(wal, b"%d" % number, shard=number % 2)
    wal.void([])
    [file] = segment_files(tmp_path)
    batches = {batch.shard: batch for batch in read_calls(file).batches}
    assert texts([batches[0]]) == [b"0", b"2", b"4"]
    assert texts([batches[1]]) == [b"1", b"3", b"5"]
    assert [batches[shard].span for shard in (0, 1)] == [range(3), range(3)]
    wal.close()


def test_a_torn_end_is_not_given(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a")
    append(wal, b"b")
    [file] = segment_files(tmp_path)
    wal.close()
    raw = file.path.read_bytes()
    file.path.write_bytes(raw[: len(raw) - 40] + b"\x00" * 40)
    assert everything(tmp_path, is_over=True) == [b"a"]


def test_damage_before_the_end_is_said(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    for text in (b"a", b"b", b"c"):
        append(wal, text)
    [file] = segment_files(tmp_path)
    raw = bytearray(file.path.read_bytes())
    at = raw.index(call(b"a"))
    raw[at + 3] ^= 1
    file.path.write_bytes(raw)
    with pytest.raises(LogDamaged):
        read_calls(file)
    wal.close()


def test_a_segment_that_was_removed_has_landed(tmp_path: Path) -> None:
    reading = read_calls(SegmentFile(tmp_path / "0000000000000007.wal", 7))
    assert reading.is_whole
    assert reading.batches == []


def test_an_older_opening_is_over(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a")
    wal.close()
    wal = Wal(tmp_path)
    assert everything(tmp_path) == [b"a"]
    assert [read_calls(file).is_whole for file in segment_files(tmp_path)] == [True, False]
    wal.close()


def test_reading_takes_no_lock(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a")
    everything(tmp_path)
    wal.close()
    everything(tmp_path)
    Wal(tmp_path).close()


# --- Landing ----------------------------------------------------------------------------------------------------------


async def _know(store: Any) -> None:
    await put(store, b"first")
    assert await take(store) == [b"first"]


def flush_all(urls: list[str], path: Path) -> FlushResult:
    """Flush the log once, as a job does."""
    total = FlushResult(0, 0, 0)
    for file in segment_files(path):
        done = flush(urls, read_calls(file).batches)
        total = FlushResult(*(one + other for one, other in zip(total, done, strict=True)))
    return total


async def rows(urls: list[str]) -> int:
    connection = await asyncpg.connect(urls[0])
    try:
        number: int = await connection.fetchval("SELECT count(*) FROM holdfast.items")
        return number
    finally:
        await connection.close()


@pytest.mark.spec("9.5")
async def test_a_server_whose_log_a_job_flushes_lands_nothing_by_itself(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    terms: dict[str, Any] = {"flusher": "spark", "flush_interval_ms": 1, "flush_batch": 1}
    async with opened(urls, redis_server.url, tmp_path, clock=clock, **terms) as store:
        await _know(store)
        for number in range(30):
            await put(store, b"%d" % number * 3_000)
        await store.sweep(100, now_ms())
        await passing(clock, 5_000)
        assert await rows(urls) == 0
        assert len(segment_files(tmp_path)) > 2
        assert (await asyncio.to_thread(flush_all, urls, tmp_path)).stored == 30
        assert await rows(urls) == 30
        # It learns of it by itself, and lets its log and Redis go.
        await until(lambda: len(segment_files(tmp_path)) == 1 and not redis_server.keys(), clock)
        assert len(await take(store)) == 30
        assert (await asyncio.to_thread(flush_all, urls, tmp_path)).stored == 0
        assert await take(store) == []


async def test_what_somebody_asks_for_lands_at_once_all_the_same(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path, flusher="spark") as store:
        await _know(store)
        await put(store, b"a", b"b")
        assert (await store.counts(*REF, now_ms())).ready == 2
        await put(store, b"c")
        assert await take(store) == [b"a", b"b", b"c"]
        done = await asyncio.to_thread(flush_all, urls, tmp_path)
        assert (done.stored, await rows(urls)) == (0, 0), "and the job does not bring it back"


@pytest.mark.spec("9.5")
async def test_a_job_and_the_server_and_another_job_at_once_store_everything_once(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    total = 200
    got: list[bytes] = []
    async with opened(urls, redis_server.url, tmp_path, flusher="spark") as store:
        await _know(store)
        is_done = asyncio.Event()

        async def produce() -> None:
            for number in range(total):
                await put(store, b"%d" % number)

        async def job() -> None:
            while not is_done.is_set():
                await asyncio.to_thread(flush_all, urls, tmp_path)

        async def consume() -> None:
            while len(got) < total:
                got.extend(await take(store, 7))
                await asyncio.sleep(0.01)
            is_done.set()

        async with asyncio.timeout(60):
            await asyncio.gather(produce(), job(), job(), consume())
        assert await take(store) == []
    assert sorted(map(int, got)) == list(range(total))


KILLED = """
import sys
from pathlib import Path
from holdfast.stores.buffered.log.reader import read_calls, segment_files
from holdfast.stores.postgres.landing.flushing import flush
while True:
    for file in segment_files(Path(sys.argv[2])):
        for batch in read_calls(file, is_over=True).batches:
            for at in range(0, len(batch.calls), 3):
                calls = batch.calls[at : at + 3]
                flush([sys.argv[1]], [batch._replace(calls=calls, span=range(calls[0][0], calls[-1][0] + 1))])
                print(at, flush=True)
"""


@pytest.mark.spec("9.5")
def test_jobs_that_are_killed_and_done_again_store_everything_once(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    """The log of a server that died, by two jobs that die too, and then by one that does not."""
    total = 120

    async def prepare() -> int:
        async with opened(urls, redis_server.url, tmp_path / "server") as store:
            await _know(store)
            row = await store.directory.find_queue(REF)
            assert row is not None
            return row.queue_id

    queue_id = asyncio.run(prepare())
    log, wal = Log(), Wal(tmp_path / "dead", segment_bytes=4_096)
    for _, each in log.calls(queue_id, total):
        body = encode_call(each)
        wal.make_room(len(body) + 100)
        [number] = wal.take_numbers(0, 1)
        wal.append([(0, number, body)])
    wal.close()
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED, urls[0], str(tmp_path / "dead")], stdout=subprocess.PIPE, cwd=ROOT
        )
        for _ in range(2)
    ]
    for number, job in enumerate(jobs):
        assert job.stdout is not None
        for _ in range(2 + 3 * number):
            assert job.stdout.readline()
        os.kill(job.pid, signal.SIGKILL)
        job.communicate()
    files = segment_files(tmp_path / "dead")
    readings = [read_calls(file, is_over=True) for file in files]
    assert all(reading.is_whole for reading in readings)
    done = flush(urls, [batch for reading in readings for batch in reading.batches])
    assert done.stored + done.skipped == total
    assert done.skipped > 0
    assert asyncio.run(rows(urls)) == total
    [batch, *_] = readings[0].batches
    assert landed(urls, batch.node, batch.epoch, 0) == [range(total)]
    assert flush(urls, [batch for reading in readings for batch in reading.batches]) == (0, total, 0)


def test_a_lane_that_the_store_does_not_have_is_refused(urls: list[str]) -> None:
    with pytest.raises(Exception, match="database number 7"):
        flush(urls, [LoggedBatch(UUID(int=1), 1, 7, [], range(1))])


def test_a_database_that_is_down_is_said() -> None:
    with pytest.raises(StoreUnavailable):
        flush(["postgres://nobody@/nothing?host=/nowhere"], [])


async def test_who_waits_is_woken_by_what_a_job_lands(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    import holdfast

    other = QueueRef("default", "mail")
    async with holdfast.open_async(urls[0], queue_poll_interval="1h") as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"first")
        [first] = await queue.claim(wait=20)
        await first.ack()
        async with opened(urls, redis_server.url, tmp_path) as store:
            row = await store.directory.find_queue(other)
            assert row is not None
        calls = [(0, Log().call(row.queue_id, b"landed", ref=other))]
        waiting = asyncio.create_task(queue.claim(wait=None))

        async def is_waiting() -> bool:
            return (await queue.stats()).waiters == 1

        await until(is_waiting)
        await asyncio.to_thread(flush, urls, [LoggedBatch(UUID(int=9), 1, 0, calls, range(1))])
        async with asyncio.timeout(60):
            [message] = await waiting
        assert message.payload == b"landed"
        await message.ack()
