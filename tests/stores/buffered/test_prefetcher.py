"""A reserved message is not claimed: it is ready in every respect, and claims find the same messages as without."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.model.answers import Delivery
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.requests import EVERYTHING, Cancel, ClaimRequest, Move, Purge, Reprioritise, Settle, Verdict
from holdfast.stores.buffered import prefetcher as prefetching
from holdfast.stores.buffered import redis_cache
from holdfast.stores.buffered.prefetcher import Prefetcher
from holdfast.stores.buffered.redis_keys import reserved_key
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.values import QueueChange
from tests.postgres.landing_calls import connected
from tests.postgres.server import PostgresServer
from tests.redis.buffered import REF, now_ms, put, take
from tests.redis.buffered import opened as opened_with
from tests.redis.server import RedisServer

OTHER = QueueRef("acme", "other")


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("prefetched")


@pytest.fixture
def urls(postgres: PostgresServer, redis_server: RedisServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)
    redis_server.flush()


@pytest.fixture(autouse=True)
def _machine_may_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the second that a reservation holds: it ends here where a test says so (`expire`)."""
    monkeypatch.setattr(redis_cache, "_RESERVED_MS", 600_000)
    monkeypatch.setattr(prefetching, "_BUSY_MS", 600_000)


def opened(urls: list[str], redis_url: str, path: Path, **terms: Any) -> AbstractAsyncContextManager[BufferedStore]:
    return opened_with(urls, redis_url, path, **{"prefetch_batch": 50, **terms})


def prefetcher(store: BufferedStore) -> Prefetcher:
    assert store._path is not None
    return store._path.prefetcher


async def fill(store: BufferedStore, *payloads: bytes, **options: Any) -> list[int]:
    """Stored, and reserved from the beginning of the queue."""
    ids = await put(store, *payloads, **options)
    await store.counts(*REF, now_ms())
    assert await prefetcher(store).reserve_once(REF) > 0
    return ids


async def claim(store: BufferedStore, limit: int = 1) -> list[Delivery]:
    claims = await store.claim(REF, [ClaimRequest(limit=limit)], now_ms())
    return claims.per_ask[0]


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [each.payload for each in deliveries]


def reserved(server: RedisServer) -> int:
    with redis.Redis(port=server.port, socket_timeout=5) as client:
        number: int = client.llen(reserved_key(REF))
        return number


def expire(server: RedisServer) -> None:
    """Expire the reservations, as a second would."""
    with redis.Redis(port=server.port, socket_timeout=5) as client:
        entries: list[bytes] = client.lrange(reserved_key(REF), 0, -1)
        client.delete(reserved_key(REF))
        for entry in entries:
            client.rpush(reserved_key(REF), b"0|" + entry.partition(b"|")[2])


# --- A claim from what is reserved ------------------------------------------------------------------------------------


@pytest.mark.spec("5.4")
async def test_a_claim_pops_what_is_reserved(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b", b"c", b"d")
        assert reserved(redis_server) == 4
        [first] = await claim(store)
        assert (first.payload, first.attempt, first.receipt.version) == (b"a", 1, 1)
        assert payloads(await claim(store, 2)) == [b"b", b"c"]
        assert reserved(redis_server) == 1
        assert (prefetcher(store).served, prefetcher(store).missed) == (2, 0)


@pytest.mark.spec("5.4")
async def test_what_is_reserved_is_ready_in_every_respect(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        [first, _] = await fill(store, b"a", b"b")
        counts = await store.counts(*REF, now_ms())
        assert (counts.ready, counts.in_flight) == (2, 0)
        found = await store.get(REF, first)
        assert found is not None
        assert (found.life.state, found.life.attempt, found.life.version) == (State.READY, 0, 0)
        assert [each.envelope.payload for each in await store.peek(REF, 9, now_ms())] == [b"a", b"b"]
        page = await store.journal(None, 100, None, now_ms())
        assert {event.event.value for event in page.events} == {"enqueued"}


@pytest.mark.spec("5.4")
async def test_a_claim_of_more_than_is_reserved_goes_by_the_index(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path, prefetch_batch=2) as store:
        await fill(store, b"a", b"b", b"c")
        assert payloads(await claim(store, 3)) == [b"a", b"b", b"c"]
        assert prefetcher(store).served == 0
        assert await take(store) == []


async def test_reservations_continue_behind_the_last(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path, prefetch_batch=4) as store:
        await fill(store, *(b"%02d" % number for number in range(20)))
        got = []
        for _ in range(20):
            got += payloads(await claim(store))
            await asyncio.gather(*prefetcher(store)._under_way.values())
        assert got == [b"%02d" % number for number in range(20)]
        assert (prefetcher(store).served, prefetcher(store).missed) == (20, 0)


async def test_a_busy_queue_is_found_by_itself(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, *(b"%02d" % number for number in range(30)))
        got = []
        for _ in range(30):
            got += payloads(await claim(store))
            await asyncio.gather(*prefetcher(store)._under_way.values())
        assert got == [b"%02d" % number for number in range(30)]
        assert prefetcher(store).served >= 20


async def test_claims_that_come_together_are_served_together_each_with_its_own(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        ids = await fill(store, *(b"%02d" % number for number in range(12)))
        given = await asyncio.gather(*(claim(store, limit) for limit in (1, 3, 2, 1, 4)))
        assert [len(each) for each in given] == [1, 3, 2, 1, 4]
        assert [each.snowflake for deliveries in given for each in deliveries] == ids[:11]
        assert (prefetcher(store).served, prefetcher(store).missed) == (1, 0)
        # Of three more claims there is enough for the first; the others go by the index.
        given = await asyncio.gather(*(claim(store) for _ in range(3)))
        assert sorted(len(each) for each in given) == [0, 0, 1]


async def test_an_outage_is_reported_to_every_claim_of_a_round(
    urls: list[str], redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b", b"c")

        async def fail(*_: Any) -> None:
            raise StoreUnavailable("the database went away")

        with monkeypatch.context() as patched:
            patched.setattr(prefetcher(store)._reserver, "claim_reserved", fail)
            given = await asyncio.gather(*(claim(store) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in given] == [StoreUnavailable] * 3
        assert sorted(payloads(await claim(store, 3))) == [b"a", b"b", b"c"]


@pytest.mark.spec("5.4")
async def test_nothing_is_reserved_of_a_paused_queue_or_one_with_groups(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, b"a")
        await store.directory.change_queue(REF, QueueChange(is_paused=True), now_ms())
        assert await prefetcher(store).reserve_once(REF) == 0
        await store.directory.change_queue(REF, QueueChange(is_paused=False), now_ms())
        await put(store, b"b", group="g")
        assert await prefetcher(store).reserve_once(REF) == 0


async def test_nor_of_what_is_delayed(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, b"a", delay_ms=60_000)
        assert await prefetcher(store).reserve_once(REF) == 0


# --- Races ------------------------------------------------------------------------------------------------------------


async def test_a_reservation_of_one_server_is_popped_by_another(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with (
        opened(urls, redis_server.url, tmp_path / "a") as one,
        opened(urls, redis_server.url, tmp_path / "b") as other,
    ):
        await fill(one, b"a", b"b", b"c")
        assert await prefetcher(other).reserve_once(REF) == 0, "they are reserved"
        assert payloads(await claim(other)) == [b"a"]
        assert payloads(await claim(one)) == [b"b"]
        assert prefetcher(one).served == prefetcher(other).served == 1


async def test_a_direct_claim_takes_what_is_reserved_and_the_pop_does_not(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b", b"c")
        direct = await store._inner.claim(REF, [ClaimRequest(limit=1)], now_ms())
        assert payloads(direct.per_ask[0]) == [b"a"]
        assert payloads(await claim(store)) == [b"b"]
        assert prefetcher(store).missed == 1
        assert reserved(redis_server) == 0, "what is out of date is dropped"
        assert payloads(await claim(store)) == [b"c"]


@pytest.mark.spec("5.4")
async def test_a_popped_message_is_not_claimed_twice_though_its_reservation_is_over(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        popped = await prefetcher(store).pop(REF, [1])
        expire(redis_server)
        assert payloads(await claim(store, 2)) == [b"a", b"b"]
        asks = [ClaimRequest(limit=1)]
        assert await prefetcher(store).claim(REF, asks, popped, now_ms()) is None, "the pop came too late"


async def test_what_was_claimed_and_given_back_is_not_what_was_reserved(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        stale = await prefetcher(store).pop(REF, [1])
        [held] = (await store._inner.claim(REF, [ClaimRequest(limit=1)], now_ms())).per_ask[0]
        await store.settle(REF, [Verdict(settle=Settle.RELEASE, receipt=held.receipt)], now_ms())
        assert await prefetcher(store).claim(REF, [ClaimRequest(limit=1)], stale, now_ms()) is None
        [again] = await claim(store)
        assert (again.payload, again.receipt.version) == (b"a", 2), "it keeps its place, before what was reserved"


async def test_a_pause_after_the_reservation_holds(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        popped = await prefetcher(store).pop(REF, [1])
        await store.directory.change_queue(REF, QueueChange(is_paused=True), now_ms())
        assert await prefetcher(store).claim(REF, [ClaimRequest(limit=1)], popped, now_ms()) is None
        assert await claim(store) == []
        await store.directory.change_queue(REF, QueueChange(is_paused=False), now_ms())
        assert payloads(await claim(store)) == [b"a"], "what was popped in vain keeps its place"


@pytest.mark.spec("5.4")
@pytest.mark.parametrize("verb", [Purge(), Cancel(), Move(to=OTHER), Reprioritise(priority=200)])
async def test_operators_reach_what_is_reserved(
    urls: list[str], redis_server: RedisServer, tmp_path: Path, verb: Any
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, b"x", ref=OTHER)
        ids = await fill(store, b"a", b"b")
        which = EVERYTHING if isinstance(verb, Purge) else type(EVERYTHING)(ids=frozenset(ids[:1]))
        assert (await store.alter(REF, verb, which, None, 100, now_ms())).changed >= 1
        left = await take(store, 1)
        assert left == ([] if isinstance(verb, Purge) else [b"b"])
        assert prefetcher(store).served == 0


async def test_a_deleted_queue_gives_nothing_of_what_was_reserved(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        popped = await prefetcher(store).pop(REF, [1])
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms())
        assert await prefetcher(store).claim(REF, [ClaimRequest(limit=1)], popped, now_ms()) is None
        while await store.directory.find_queue(REF) is not None:
            await store.sweep(100, now_ms())
        await put(store, b"new")
        assert payloads(await claim(store)) == [b"new"]


# --- Order ------------------------------------------------------------------------------------------------------------


async def test_what_comes_before_the_reserved_is_claimed_before_them(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        await put(store, b"urgent", priority=0)
        assert payloads(await claim(store)) == [b"urgent"]
        assert payloads(await claim(store)) == [b"a"]


async def test_what_another_popped_is_not_waited_for(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", b"b")
        first = await prefetcher(store).pop(REF, [1])
        assert payloads(await claim(store)) == [b"b"], "as of two workers at once"
        claims = await prefetcher(store).claim(REF, [ClaimRequest(limit=1)], first, now_ms())
        assert claims is not None
        assert payloads(claims.per_ask[0]) == [b"a"]


async def test_the_end_of_a_lease_comes_before_the_reserved(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, b"a", b"b")
        first = await store.claim(REF, [ClaimRequest(limit=1)], now_ms())
        await prefetcher(store).reserve_once(REF)
        async with connected(urls[0]) as connection:
            await connection.execute("UPDATE items SET lease_expires_at = 0 WHERE status = 1")
        [again, second] = await claim(store, 2)
        assert {again.payload, second.payload} == {b"a", b"b"}
        assert {again.receipt.version, second.receipt.version} == {1, 2}
        assert first.per_ask[0][0].receipt.version == 1


# --- Redis is a cache -------------------------------------------------------------------------------------------------


@pytest.mark.spec("5.4")
async def test_what_redis_forgets_goes_back(urls: list[str], redis_server: RedisServer, tmp_path: Path) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, *(b"%02d" % number for number in range(20)))
        got = []
        for number in range(20):
            if number % 3 == 0:
                redis_server.flush()
            got += payloads(await claim(store))
            if number % 4 == 0:
                await prefetcher(store).reserve_once(REF)
        assert got == [b"%02d" % number for number in range(20)]


async def test_what_does_not_belong_in_a_reservation_is_not_believed(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path) as store:
        await put(store, b"a", b"b")
        for wrong in (b"9999999999999|1|2", b"9999999999999|7|0|0|0", b"9999999999999|x|y|z|0"):
            with redis.Redis(port=redis_server.port, socket_timeout=5) as client:
                client.rpush(reserved_key(REF), wrong)
            [given] = await claim(store)
            assert given.payload == b"a"
            assert reserved(redis_server) == 0
            await store.settle(REF, [Verdict(settle=Settle.RELEASE, receipt=given.receipt)], now_ms())


async def test_workers_of_two_servers_claim_each_message_once_whatever_redis_does(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    total = 400
    async with (
        opened(urls, redis_server.url, tmp_path / "a", prefetch_batch=10) as one,
        opened(urls, redis_server.url, tmp_path / "b", prefetch_batch=10) as other,
    ):
        for first in range(0, total, 100):
            await put(one, *(b"%d" % number for number in range(first, first + 100)))
        got: list[bytes] = []

        async def worker(store: BufferedStore, number: int) -> None:
            while taken := await take(store, 1 + number % 3):
                got.extend(taken)
                if len(got) % 50 == 0:
                    redis_server.flush()

        async with asyncio.timeout(60):
            await asyncio.gather(*(worker(store, number) for store in (one, other) for number in range(6)))
        assert sorted(map(int, got)) == list(range(total))
        assert prefetcher(one).served + prefetcher(other).served > 0


async def test_a_large_payload_comes_by_a_reservation_too_whole_or_part_by_part(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    large = bytes(range(256)) * (5 << 10)
    async with opened(urls, redis_server.url, tmp_path) as store:
        await fill(store, b"a", large, large, b"d")
        assert payloads(await claim(store, 2)) == [b"a", large]
        claims = await store.claim(REF, [ClaimRequest(limit=2, streams=True)], now_ms())
        apart, small = claims.per_ask[0]
        assert (apart.payload, small.payload) == (b"", b"d")
        assert apart.pieces is not None
        parts = [part async for part in await store.payloads.read(REF, apart.snowflake, apart.pieces)]
        assert b"".join(parts) == large
        assert prefetcher(store).served == 2
