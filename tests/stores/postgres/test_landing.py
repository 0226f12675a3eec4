"""Calls answered from a log are stored once, even if several servers store them or are interrupted."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from holdfast.clock import SystemClock
from holdfast.model.errors import Internal
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.formats.logged_enqueue import LoggedCall, decode_call, encode_call
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.landing.land import LogShard, land, landed_numbers
from holdfast.stores.values import QueueChange
from tests.postgres.landing_calls import LOG_SHARD, REF, Log, connected, journal_of, opened
from tests.postgres.server import PostgresServer
from tests.waiting import until


@pytest.fixture(scope="module")
def _databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("landing")


@pytest.fixture
def urls(postgres: PostgresServer, _databases: list[str]) -> Iterator[list[str]]:
    yield _databases
    postgres.empty(_databases)


def now_ms() -> int:
    return SystemClock().now_ms()


async def queue_id(store: PostgresStore, ref: QueueRef = REF) -> int:
    return (await store.directory.create_queue(ref, now_ms())).queue_id


async def drain_claims(store: PostgresStore) -> list[bytes]:
    claims = await store.claim(REF, [ClaimRequest(limit=10_000)], now_ms())
    await store.settle(REF, [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in claims.per_ask[0]], now_ms())
    return [each.payload for each in claims.per_ask[0]]


async def test_a_call_that_landed_is_stored_counted_and_announced(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        log, id = Log(), await queue_id(store)
        call = log.call(id, b"a", b"b", headers={"h": "1"}, priority=7, correlation_id="c", ttl_ms=60_000)
        later = log.call(id, b"later", delay_ms=60_000)
        landed = await land(connection, LOG_SHARD, [(0, call), (1, later)])
        assert [(each.ref, each.stored) for each in landed.queues] == [(REF, 3)]
        counts = await store.counts(*REF, now_ms())
        assert (counts.ready, counts.delayed, counts.bytes) == (2, 1, 2 + 2 * 2 + 5)
        found = await store.get(REF, call.messages[1].id)
        assert found is not None
        assert found.envelope.payload == b"b"
        assert (found.envelope.headers, found.envelope.given_correlation_id) == ({"h": "1"}, "c")
        assert (found.envelope.enqueued_at, found.life.priority) == (log.now_ms, 7)
        assert found.life.expires_at == log.now_ms + 60_000
        assert await journal_of(store) == [("enqueued", each.id) for each in (*call.messages, *later.messages)]
        assert await drain_claims(store) == [b"a", b"b"]


async def test_a_call_with_the_id_of_another_message_is_refused_and_stays_in_the_log(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        call = Log().call(await queue_id(store), b"first")
        await land(connection, LOG_SHARD, [(0, call)])
        other = LogShard(UUID(int=8), 11, 0)  # of another server, which has made the same id
        with pytest.raises(Internal, match="two servers made ids with the same node number"):
            await land(connection, other, [(0, call)])
        assert await landed_numbers(connection, other) == []
        assert await drain_claims(store) == [b"first"]


@pytest.mark.spec("5.5")
async def test_what_landed_lands_no_second_time_whole_or_in_part(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        calls = Log().calls(await queue_id(store), 10)
        await land(connection, LOG_SHARD, calls[2:4])
        await land(connection, LOG_SHARD, calls[6:7])
        assert (await land(connection, LOG_SHARD, calls)).skipped == 3
        assert (await land(connection, LOG_SHARD, calls, span=range(10))).skipped == 10
        assert sorted(await drain_claims(store)) == [b"%d" % number for number in range(10)]
        assert Counter(event for event, _ in await journal_of(store)) == {
            "enqueued": 10,
            "claimed": 10,
            "succeeded": 10,
        }
        assert await landed_numbers(connection, LOG_SHARD) == [range(10)]


@pytest.mark.spec("5.5")
async def test_what_was_stored_acked_and_deleted_never_comes_back(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        calls = Log().calls(await queue_id(store), 5)
        await land(connection, LOG_SHARD, calls)
        assert len(await drain_claims(store)) == 5
        for _ in range(3):
            await land(connection, LOG_SHARD, calls)
            assert await drain_claims(store) == []
        assert (await store.counts(*REF, now_ms())).ready == 0


async def test_another_opening_or_lane_of_the_log_is_not_the_same(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        log, id = Log(), await queue_id(store)
        for shard in (LOG_SHARD, LOG_SHARD._replace(epoch=12), LOG_SHARD._replace(shard=1)):
            await land(connection, shard, [(0, log.call(id, b"a"))])
        assert (await store.counts(*REF, now_ms())).ready == 3


async def test_a_span_says_that_its_gaps_have_nothing_to_store(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        calls = Log().calls(await queue_id(store), 4)
        await land(connection, LOG_SHARD, [calls[0], calls[2]], span=range(4))
        assert await landed_numbers(connection, LOG_SHARD) == [range(4)]
        assert (await land(connection, LOG_SHARD, calls)).skipped == 4


async def test_any_number_of_landers_at_once_store_each_message_once(urls: list[str]) -> None:
    dice = random.Random(5)
    async with opened(urls) as store, connected(urls[0]) as looking:
        calls = Log().calls(await queue_id(store), 60)
        parts = []
        for _ in range(24):
            first = dice.randrange(60)
            parts.append(calls[first : first + dice.randint(1, 30)])
        parts.append(calls)

        async def lander(mine: list[list[tuple[int, LoggedCall]]]) -> None:
            async with connected(urls[0]) as connection:
                for part in mine:
                    await land(connection, LOG_SHARD, part)

        await asyncio.gather(*(lander(parts[number::6]) for number in range(6)))
        assert await landed_numbers(looking, LOG_SHARD) == [range(60)]
        assert Counter(id for _, id in await journal_of(store)) == {call.messages[0].id: 1 for _, call in calls}
        assert (await store.counts(*REF, now_ms())).ready == 60
        assert len(await drain_claims(store)) == 60


class Interrupted(Exception):
    pass


class Fragile:
    """A connection that is cut before, or after, its `at`th call."""

    def __init__(self, connection: Any, at: int, *, after: bool) -> None:
        self._connection = connection
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._connection, name)
        if name not in ("execute", "fetch", "fetchrow", "fetchval", "copy_records_to_table"):
            return real

        async def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                self._cut()
            value = await real(*args, **options)
            if self._left == 0:
                self._cut()
            return value

        return call

    def _cut(self) -> None:
        self._connection.terminate()
        raise Interrupted


@pytest.mark.spec("5.5")
async def test_wherever_landing_is_cut_off_it_is_whole_or_not_at_all(urls: list[str]) -> None:
    async with opened(urls) as store:
        id = await queue_id(store)
        draining = QueueRef("acme", "old")
        gone_id = await queue_id(store, draining)
        await store.directory.change_queue(draining, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        cuts = 0
        for after in (False, True):
            at, was_cut = 0, True
            while was_cut:
                at, was_cut = at + 1, False
                shard = LOG_SHARD._replace(epoch=2 * at + after)
                log = Log()
                calls = [*log.calls(id, 3), (3, log.call(gone_id, b"x", ref=draining))]
                async with connected(urls[0]) as connection:
                    try:
                        await land(Fragile(connection, at, after=after), shard, calls)
                    except (Interrupted, asyncpg.InterfaceError):
                        was_cut = True
                        cuts += 1
                async with connected(urls[0]) as connection:
                    if was_cut:
                        assert await landed_numbers(connection, shard) == []
                        assert (await store.counts(*REF, now_ms())).ready == 0
                    await land(connection, shard, calls)
                assert len(await drain_claims(store)) == 3
        assert cuts > 10


async def test_a_queue_that_is_being_deleted_takes_nothing_and_the_journal_has_its_events(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        log, id = Log(), await queue_id(store)
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        call = log.call(id, b"a")
        landed = await land(connection, LOG_SHARD, [(0, call)])
        assert (landed.queues, landed.dropped) == ([], {REF: 1})
        assert await journal_of(store) == [("enqueued", call.messages[0].id), ("removed", call.messages[0].id)]
        assert (await land(connection, LOG_SHARD, [(0, call)])).dropped == {}, "once"
        assert (await store.counts(*REF, now_ms())).ready == 0


async def test_a_queue_made_again_gets_nothing_of_the_one_before(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        log, id = Log(), await queue_id(store)
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms())
        while await store.directory.find_queue(REF) is not None:
            await store.sweep(100, now_ms())
        again = await queue_id(store)
        assert again != id
        old, new = log.call(id, b"old"), log.call(again, b"new")
        landed = await land(connection, LOG_SHARD, [(0, old), (1, new)])
        assert landed.dropped == {REF: 1}
        assert await drain_claims(store) == [b"new"]
        assert [event for event, each in await journal_of(store) if each == old.messages[0].id] == [
            "enqueued",
            "removed",
        ]


async def test_a_queue_is_not_deleted_beside_a_landing(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        id = await queue_id(store)
        transaction = connection.transaction()
        await transaction.start()
        await land(connection, LOG_SHARD, [(0, Log().call(id, b"a"))])
        draining = asyncio.create_task(store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms()))

        async def is_blocked() -> int:
            return await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

        await until(is_blocked)
        assert not draining.done()
        await transaction.commit()
        await draining


async def test_a_message_whose_ttl_ran_out_on_its_way_ends_by_its_ttl(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as connection:
        log, id = Log(now_ms() - 10_000), await queue_id(store)
        await land(connection, LOG_SHARD, [(0, log.call(id, b"a", ttl_ms=1_000))])
        assert await drain_claims(store) == []
        assert (await store.counts(*REF, now_ms())).failed == 1


def test_a_call_is_read_as_it_was_logged() -> None:
    call = Log().call(3, b"a", b"\x00", headers={"a": "b"}, ttl_ms=4, correlation_id="x", max_retries=2, is_json=True)
    assert decode_call(encode_call(call)) == call


async def test_lanes_of_a_log_land_beside_each_other(urls: list[str]) -> None:
    async with opened(urls) as store, connected(urls[0]) as one, connected(urls[0]) as other:
        log, id = Log(), await queue_id(store)
        transaction = one.transaction()
        await transaction.start()
        await land(one, LOG_SHARD, [(0, log.call(id, b"a"))])
        second: LogShard = LOG_SHARD._replace(shard=1)
        await asyncio.wait_for(land(other, second, [(0, log.call(id, b"b"))]), 60)
        await transaction.commit()
        assert (await store.counts(*REF, now_ms())).ready == 2
