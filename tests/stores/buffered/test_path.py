"""Buffered messages are ready in every respect, and no answered call depends on Redis."""

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.dice import SystemDice
from holdfast.model.errors import Draining, InvalidArgument, StoreUnavailable
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.model.requests import EVERYTHING, Cancel, Move, Purge, Reprioritise
from holdfast.server.embedded import open_blocking
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.buffered.log.log_disk import Disk
from holdfast.stores.buffered.log.replay import WalPosition
from holdfast.stores.buffered.redis_keys import buffer_key, decode_position, encode_position
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.values import QueueChange
from holdfast.testing import ManualClock
from tests.postgres.bounds import PATIENT
from tests.postgres.peers import until_peers_known
from tests.postgres.server import PostgresServer
from tests.redis.buffered import REF, WEEK_MS, accepts, now_ms, opened, put, take
from tests.redis.server import RedisServer
from tests.worker.passing import passing, until


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("fast_path")


@pytest.fixture
def urls(postgres: PostgresServer, redis_server: RedisServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)
    redis_server.flush()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.close()


async def stored(urls: list[str]) -> int:
    """Rows in the databases, whatever the store says."""
    total = 0
    for url in urls:
        connection = await asyncpg.connect(url)
        try:
            total += await connection.fetchval("SELECT count(*) FROM holdfast.items")
        finally:
            await connection.close()
    return total


async def know(store: BufferedStore, ref: QueueRef = REF) -> None:
    """A queue's first message goes to the database directly."""
    await put(store, b"first", ref=ref)
    assert await take(store, ref=ref) == [b"first"]


# --- Answered from the log ------------------------------------------------------------------------------------------


@pytest.mark.spec("5.4")
async def test_an_enqueue_is_answered_before_it_is_stored(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        ids = await put(store, b"a", b"b")
        assert len(set(ids)) == 2
        assert await stored(urls) == 0
        assert redis_server.keys() == [b"holdfast:buffer:acme:mail"]
        assert await take(store) == [b"a", b"b"]
        assert redis_server.keys() == []


async def test_what_comes_after_a_claim_has_landed_the_rest_waits_for_others_as_well(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        for _ in range(3):
            await put(store, b"a")
            assert await take(store) == [b"a"]
        await put(store, b"b")
        for _ in range(30):
            assert await stored(urls) == 0
        assert redis_server.keys() == [b"holdfast:buffer:acme:mail"]


@pytest.mark.spec("5.4")
async def test_it_lands_by_itself_within_its_interval(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    clock = ManualClock()

    async def has_landed() -> bool:
        return await stored(urls) == 1 and not redis_server.keys()

    async with opened(urls, redis_server.url, tmp_path, clock=clock, flush_interval_ms=20) as store:
        await know(store)
        await put(store, b"a")
        await passing(clock, 19)
        assert not await has_landed()
        clock.advance(1)
        await until(has_landed)


@pytest.mark.spec("5.4")
@pytest.mark.parametrize("options", [{"key": "k"}, {"group": "g"}])
async def test_messages_with_a_key_or_a_group_are_stored_before_the_answer(
    urls: list[str], redis_server: RedisServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await put(store, b"a", **options)
        assert await stored(urls) == 1


async def test_a_tenant_with_quotas_is_held_to_them_exactly(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await put(store, b"a", b"b")
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=3)))
        await put(store, b"c")
        with pytest.raises(Exception, match="max_messages"):
            await put(store, b"d")


# --- Ready in every respect -----------------------------------------------------------------------------------------


@pytest.mark.spec("5.4")
async def test_what_is_buffered_is_counted_and_found(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        [id] = await put(store, b"abc")
        counts = await store.counts(*REF, now_ms())
        assert (counts.ready, counts.bytes) == (1, 3)
        await put(store, b"later", delay_ms=60_000)
        assert (await store.counts("acme", None, now_ms())).delayed == 1
        [other] = await put(store, b"x")
        assert await store.get(REF, other) is not None
        await put(store, b"y")
        assert [found.envelope.payload for found in await store.peek(REF, 9, now_ms())] == [b"abc", b"x", b"y"]
        await put(store, b"z")
        listing = await store.browse(REF, State.READY, EVERYTHING, id, 9, now_ms())
        assert [found.envelope.payload for found in listing.found] == [b"later", b"x", b"y", b"z"]


@pytest.mark.spec("5.4")
@pytest.mark.parametrize("verb", [Purge(), Cancel(), Reprioritise(priority=3), Move(to=QueueRef("acme", "other"))])
async def test_what_is_buffered_is_reached_by_operators(
    urls: list[str], redis_server: RedisServer, tmp_path: Path, verb: Any
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await know(store, QueueRef("acme", "other"))
        await put(store, b"a", b"b")
        assert (await store.alter(REF, verb, EVERYTHING, None, 100, now_ms())).changed == 2
        left = await take(store)
        assert left == ([b"a", b"b"] if isinstance(verb, Reprioritise) else [])


async def test_what_is_buffered_in_a_paused_queue_is_not_claimed(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await put(store, b"a")
        await store.directory.change_queue(REF, QueueChange(is_paused=True), now_ms())
        await put(store, b"b")
        assert await take(store) == []
        await store.directory.change_queue(REF, QueueChange(is_paused=False), now_ms())
        assert await take(store) == [b"a", b"b"]


# --- Two servers ----------------------------------------------------------------------------------------------------


async def test_what_one_server_buffered_another_finds_claims_and_acks_for_good(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with (
        opened(urls, redis_server.url, tmp_path / "a") as one,
        opened(urls, redis_server.url, tmp_path / "b") as other,
    ):
        await know(one)
        [id] = await put(one, b"a")
        assert (await other.counts(*REF, now_ms())).ready == 1
        [second] = await put(one, b"b")
        assert await other.get(REF, second) is not None
        assert await take(other) == [b"a", b"b"]
        # The first still has them, and lands them as its own.
        assert await take(one) == []
        assert await other.get(REF, id) is None
    async with opened(urls, redis_server.url, tmp_path / "a") as one:
        assert await take(one) == [], "nor do they come back by the log"


async def test_two_servers_that_land_the_same_at_once_store_it_once(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with (
        opened(urls, redis_server.url, tmp_path / "a") as one,
        opened(urls, redis_server.url, tmp_path / "b") as other,
    ):
        await know(one)
        await know(other)
        got: list[bytes] = []

        async def producer(store: BufferedStore, name: str) -> None:
            for number in range(60):
                await put(store, f"{name}{number}".encode())

        async def consumer(store: BufferedStore) -> None:
            while len(got) < 120:
                got.extend(await take(store, 7))

        async with asyncio.timeout(60):
            await asyncio.gather(producer(one, "a"), producer(other, "b"), consumer(one), consumer(other))
        assert sorted(got) == sorted(f"{name}{number}".encode() for name in "ab" for number in range(60))


async def test_a_queue_deleted_by_one_server_takes_nothing_by_another(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with (
        opened(urls, redis_server.url, tmp_path / "a") as one,
        opened(urls, redis_server.url, tmp_path / "b") as other,
    ):
        await know(one)
        await other.directory.change_queue(REF, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        with pytest.raises(Draining):
            await put(one, b"a")
        await other.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms())
        while await other.directory.find_queue(REF) is not None:
            await other.sweep(100, now_ms())
        await put(one, b"to the new one")
        assert await take(one) == [b"to the new one"]


async def test_what_does_not_belong_in_a_buffer_is_not_stored(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        other = QueueRef("other", "mail")
        await know(store, other)
        await put(store, b"theirs", ref=other)
        with redis.Redis(port=redis_server.port) as client:
            [(_, body)] = client.hgetall(buffer_key(other)).items()
            places = [WalPosition(UUID(int=number), 1, number, 0) for number in range(3)]
            for place, wrong in zip(places, (body, b"\xc1 not a call", body), strict=True):
                client.hset(buffer_key(REF), encode_position(place), wrong)
            client.hset(buffer_key(REF), "not a field", b"")
        assert await take(store) == []
        assert await take(store, ref=other) == [b"theirs"], "once"


# --- Redis goes -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("5.4")
async def test_what_redis_forgets_is_still_there(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        for number in range(20):
            await put(store, b"%d" % number)
            if number % 3 == 0:
                redis_server.flush()
        assert len(await take(store)) == 20


@pytest.mark.spec("5.6")
async def test_without_redis_writes_are_refused_and_store_nothing(
    urls: list[str], own_redis: RedisServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with opened(urls, own_redis.url, tmp_path, clock=clock) as store:
        await know(store)
        await put(store, b"before")
        own_redis.kill()
        for number in range(3):
            with pytest.raises(StoreUnavailable, match="Redis"):
                await put(store, b"refused %d" % number)
        assert await take(store) == [b"before"], "claims go on"
        own_redis.start()
        await until(lambda: accepts(store, b"after"), clock)
        assert await take(store) == [b"after"]
    async with opened(urls, own_redis.url, tmp_path) as store:
        assert await take(store) == [], "what was refused is not in the log either"


@pytest.mark.spec("5.6")
async def test_without_redis_writes_go_to_the_database_if_so_set(
    urls: list[str], own_redis: RedisServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with opened(urls, own_redis.url, tmp_path, clock=clock, on_redis_down="direct") as store:
        await know(store)
        await put(store, b"0")
        own_redis.kill()
        for number in range(1, 5):
            await put(store, b"%d" % number)
        assert await take(store) == [b"0", b"1", b"2", b"3", b"4"]
        own_redis.start()

        async def is_back() -> bool:
            await put(store, b"x")
            return bool(own_redis.keys())

        await until(is_back, clock)


async def test_a_redis_that_hangs_is_one_that_is_down(urls: list[str], own_redis: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, own_redis.url, tmp_path, on_redis_down="direct") as store:
        await know(store)
        assert own_redis.process is not None
        os.kill(own_redis.process.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                await put(store, b"a")
                assert await take(store) == [b"a"]
        finally:
            os.kill(own_redis.process.pid, signal.SIGCONT)


async def refused_late(store: BufferedStore, server: RedisServer) -> bool:
    """Enqueue while Redis hangs. Return whether Redis was sent the message, and takes it later. A store that
    noticed the failure before sends nothing."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="Redis"):
            await put(store, b"refused")
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    for _ in range(100):
        if server.keys():
            return True
        await asyncio.sleep(0.02)
    return False


async def clear(store: BufferedStore, server: RedisServer) -> None:
    """Wait until the store takes messages by Redis again, and none is left there."""
    await until(lambda: accepts(store, b"again"))
    assert b"refused" not in await take(store)
    await until(lambda: not server.keys())


async def test_what_was_refused_is_not_stored_though_redis_took_it_late(
    urls: list[str], own_redis: RedisServer, tmp_path: Path
) -> None:
    async with (
        opened(urls, own_redis.url, tmp_path / "a") as one,
        opened(urls, own_redis.url, tmp_path / "b") as other,
    ):
        await know(one)
        async with asyncio.timeout(60):
            while not await refused_late(one, own_redis):
                await clear(one, own_redis)
        assert await take(other) == []
        assert await stored(urls) == 0


# --- The log --------------------------------------------------------------------------------------------------------


async def test_a_log_that_failed_leaves_the_way_to_the_database(
    urls: list[str], redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await put(store, b"a")

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fail)
            with pytest.raises(StoreUnavailable, match="Input/output error"):
                await put(store, b"unknown")
        await put(store, b"b")
        assert await stored(urls) >= 1
        assert set(await take(store)) - {b"unknown"} == {b"a", b"b"}


async def test_a_log_that_failed_continues_by_itself_once_the_disk_works_again(
    urls: list[str],
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(urls, redis_server.url, tmp_path, reopen_after_ms=1) as store:
        await know(store)
        await put(store, b"a")

        def fail(self: Disk, *arguments: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        direct = 0
        with monkeypatch.context() as patched:
            patched.setattr(Disk, "sync", fail)
            patched.setattr(Disk, "sync_all", fail)
            with pytest.raises(StoreUnavailable, match="recovers by itself"):
                await put(store, b"unknown")
            for _ in range(5):
                await put(store, b"direct")
                direct += 1
        async with asyncio.timeout(60):
            while not store._required().is_open:
                await put(store, b"direct")
                direct += 1
        await put(store, b"b")
        assert not store._required().buffer.is_empty(), "it goes by the log again"
        found = await take(store)
        assert sorted(each for each in found if each != b"unknown") == sorted([b"a", b"b", *[b"direct"] * direct])
    names = [record.getMessage() for record in caplog.records]
    assert names.count("write_ahead_log_stopped") == 1
    assert names.count("write_ahead_log_recovered") == 1
    assert list(tmp_path.glob("*.wal"))


@pytest.mark.spec("5.5")
async def test_segments_go_once_their_messages_are_stored(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        for number in range(30):
            await put(store, b"%d" % number * 5_000)
        assert len(list(tmp_path.glob("*.wal"))) > 3
        assert len(await take(store)) == 30
        await until(lambda: len(list(tmp_path.glob("*.wal"))) == 1)


@pytest.mark.spec("5.7")
async def test_closing_stores_what_is_buffered(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await know(store)
        await put(store, b"a")
    assert await stored(urls) == 1


# --- Keys -----------------------------------------------------------------------------------------------------------

names = st.text(max_size=8) | st.sampled_from(["a", "a:b", "b:c", "c", "a%3Ab", "", "ab", "%"])


@given(st.tuples(names, names), st.tuples(names, names))
def test_no_two_queues_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    try:
        keys = [buffer_key(QueueRef(*each)) for each in (one, other)]
    except UnicodeEncodeError:
        return
    assert (keys[0] == keys[1]) == (one == other)
    assert all(key.count(":") == 3 for key in keys)


@given(st.builds(WalPosition, st.uuids(), st.integers(0, 2**63 - 1), st.integers(0, 65_535), st.integers(0, 2**63)))
def test_a_field_names_one_place(place: WalPosition) -> None:
    assert decode_position(encode_position(place).encode()) == place


@given(st.binary(max_size=40))
def test_any_field_is_a_place_or_none(field: bytes) -> None:
    decode_position(field)


# --- Callers with threads ---------------------------------------------------------------------------------------------


def test_threads_that_call_share_the_log(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    inner = PostgresStore(urls, SystemDice(), journal_retention_ms=WEEK_MS, bounds=PATIENT)
    store = BufferedStore(inner, FastPathOptions(redis_url=redis_server.url, wal_dir=str(tmp_path)))
    with open_blocking("", {}, store=store) as hf:
        queue = hf.queue("mail")
        queue.enqueue(b"first")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: queue.enqueue(b"%d" % number), range(100)))
        assert queue.stats().ready == 101
        assert len({message.id for message in queue.claim(limit=200, wait=0)}) == 101


# --- By its settings --------------------------------------------------------------------------------------------------


def test_a_store_is_opened_with_the_fast_path_by_its_settings(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {"redis_url": redis_server.url, "wal_dir": str(tmp_path), "flush_interval": "1h", "flush_batch": 9_999}
    with holdfast.open(urls[0], **settings) as hf:
        queue = hf.queue("mail")
        queue.enqueue(b"first")
        queue.enqueue(b"second")
        kept = redis_server.keys()
        assert b"holdfast:buffer:default:mail" in kept
        assert [message.payload for message in queue.claim(limit=9, wait=0)] == [b"first", b"second"]


@pytest.mark.parametrize("settings", [{"redis_url": "redis://h"}, {"wal_dir": "d"}])
@pytest.mark.parametrize("url", ["memory://", "postgres://h/d"])
def test_half_of_the_fast_path_or_one_over_another_store_is_refused(url: str, settings: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"redis_url|wal_dir"):
        holdfast.open(url, **settings)


async def test_who_waits_on_another_server_is_woken_by_what_is_buffered(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    def connect(name: str) -> holdfast.AsyncHoldfast:
        settings = {"redis_url": redis_server.url, "wal_dir": str(tmp_path / name), "flush_interval": "1h"}
        return holdfast.open_async(urls[0], queue_poll_interval="1h", flush_batch=9_999, **settings)

    async with connect("a") as one, connect("b") as other:
        await one.queue("mail").enqueue(b"first")
        [first] = await other.queue("mail").claim(wait=20)
        await first.ack()
        async with asyncio.timeout(60):
            waiting = asyncio.create_task(other.queue("mail").claim(wait=None))
            await until_peers_known(one, other)

            async def waits() -> bool:
                return (await other.queue("mail").stats()).waiters == 1

            await until(waits)
            await one.queue("mail").enqueue(b"second")
            [second] = await waiting
            assert second.payload == b"second"
            await second.ack()
