"""Slots and their queues move between databases while servers work, even if the move is interrupted anywhere."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, Quotas, TenantConfig
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.buffered.log.reader import read_calls, segment_files
from holdfast.stores.formats.logged_enqueue import LoggedBatch
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster import slot_moves
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.cluster.resharding import even_plan, reshard
from holdfast.stores.postgres.cluster.slot_moves import Resharding
from holdfast.stores.postgres.cluster.slots import SLOTS, slot_of, spread
from holdfast.stores.postgres.landing.flushing import flush
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.schema.migrations import migrate
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import QueueChange
from holdfast.testing import ManualClock
from tests.postgres.landing_calls import connected, opened
from tests.postgres.server import PostgresServer
from tests.redis.buffered import opened as buffered
from tests.redis.server import RedisServer
from tests.worker.passing import until

REF = QueueRef("acme", "mail")
SLOT = slot_of(*REF)
OTHER = next(
    ref for number in range(99) if slot_of(*(ref := QueueRef("acme", f"q{number}"))) % 2 == SLOT % 2 and ref != REF
)


def now_ms() -> int:
    return SystemClock().now_ms()


def _fresh(postgres: PostgresServer) -> list[str]:
    """New ones for each test: what it does to the slots would stay."""
    return postgres.make_databases("reshard_a", "reshard_b")


@pytest.fixture
def urls(postgres: PostgresServer) -> Iterator[list[str]]:
    return _fresh(postgres)


SOURCE = SLOT % 2
TARGET = 1 - SOURCE


async def put(store: Any, *payloads: bytes, ref: QueueRef = REF, **options: Any) -> list[int]:
    drafts = [Draft(payload=payload, **options) for payload in payloads]
    return [each.snowflake for each in await store.enqueue(ref, drafts, now_ms(), auto_create=True)]


async def take(store: Any, limit: int = 1_000, ref: QueueRef = REF) -> list[bytes]:
    claims = await store.claim(ref, [ClaimRequest(limit=limit)], now_ms())
    verdicts = [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in claims.per_ask[0]]
    assert all(result.ok for result in await store.settle(ref, verdicts, now_ms()))
    return [each.payload for each in claims.per_ask[0]]


async def move(urls: list[str], slot: int = SLOT, to: int = TARGET) -> None:
    await asyncio.to_thread(reshard, urls, {slot: to})


async def rows(url: str, table: str = "items") -> int:
    async with connected(url) as connection:
        number: int = await connection.fetchval(f"SELECT count(*) FROM {table}")
        return number


@pytest.mark.spec("5.2")
def test_an_even_plan_moves_no_more_than_it_must() -> None:
    for before, after in ((1, 2), (2, 3), (3, 4), (4, 3), (2, 2)):
        slots = spread(before)
        plan = even_plan(slots, after)
        for slot, to in plan.items():
            assert slots[slot] != to
            slots[slot] = to
        shares = [slots.count(number) for number in range(after)]
        assert max(shares) - min(shares) <= 1
        assert len(plan) <= SLOTS * abs(after - before) // max(after, before) + after


@pytest.mark.spec("5.2")
async def test_a_queue_goes_whole_and_servers_follow_it(urls: list[str]) -> None:
    async with opened(urls) as store, opened(urls) as other:
        await put(store, b"failed")
        [failed] = (await store.claim(REF, [ClaimRequest()], now_ms())).per_ask[0]
        await store.settle(REF, [Verdict(settle=Settle.NACK, receipt=failed.receipt, final=True)], now_ms())
        await put(store, *(b"%d" % number for number in range(5)), key=None)
        keyed = await put(store, b"keyed", key="k")
        await put(store, b"later", delay_ms=3_600_000)
        await store.directory.change_queue(REF, QueueChange(policy=QueuePolicy(max_retries=7)), now_ms())
        held = (await other.claim(REF, [ClaimRequest(limit=1, lease_ms=60_000)], now_ms())).per_ask[0]
        before = await store.counts(*REF, now_ms())

        await move(urls)

        assert await rows(urls[SOURCE]) == 0
        assert await rows(urls[TARGET]) == 8
        assert await store.counts(*REF, now_ms()) == before
        assert await put(other, b"again", key="k") == keyed, "keys have gone along"
        [result] = await other.settle(REF, [Verdict(settle=Settle.ACK, receipt=held[0].receipt)], now_ms())
        assert result.ok, "leases hold"
        row = await other.directory.find_queue(REF)
        assert row is not None
        assert row.policy.max_retries == 7
        assert await take(store) == [b"1", b"2", b"3", b"4", b"keyed"]
        assert [each.ref for each in await store.directory.list_queues("acme")] == [REF]
        await put(store, b"new")
        assert await take(other) == [b"new"]
        page = await store.journal(None, 1_000, None, now_ms())
        assert sum(event.event.value == "enqueued" for event in page.events) == 9


async def test_a_server_that_knows_of_nothing_makes_no_second_queue(urls: list[str]) -> None:
    async with opened(urls) as store, opened(urls) as late:
        await put(store, b"a")
        await move(urls)
        await put(late, b"b")
        assert await take(late) == [b"a", b"b"]
        [one] = await late.directory.list_queues("acme")
        assert one.ref == REF


async def test_calls_on_a_queue_on_its_way_are_refused_and_change_nothing(urls: list[str]) -> None:
    async with opened(urls) as store:
        await put(store, b"a")
        await put(store, b"elsewhere", ref=OTHER)
        [held] = (await store.claim(REF, [ClaimRequest()], now_ms())).per_ask[0]
        cluster = PostgresCluster(urls)
        await cluster.open()
        mover = Resharding(cluster, QuotaGrants(cluster))
        async with mover.lock():
            await mover._block_queues(SLOT, cluster.shards[SOURCE], cluster.shards[TARGET])
            calls = [
                lambda: put(store, b"b"),
                lambda: put(store, b"b", key="k"),
                lambda: store.claim(REF, [ClaimRequest()], now_ms()),
                lambda: store.settle(REF, [Verdict(settle=Settle.ACK, receipt=held.receipt)], now_ms()),
                lambda: store.settle(REF, [Verdict(settle=Settle.NACK, receipt=held.receipt)], now_ms()),
                lambda: store.directory.change_queue(REF, QueueChange(is_paused=True), now_ms()),
                lambda: store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms()),
                lambda: store.counts(*REF, now_ms()),
            ]
            for call in calls:
                with pytest.raises(StoreUnavailable, match="being moved"):
                    await call()
            await store.sweep(100, now_ms())
            assert await take(store, ref=OTHER) == [b"elsewhere"], "others go on"
        with pytest.raises(StoreUnavailable, match="another process"):
            async with mover.lock(), Resharding(cluster, QuotaGrants(cluster)).lock():
                pass
        await cluster.close()
        await move(urls)
        [result] = await store.settle(REF, [Verdict(settle=Settle.ACK, receipt=held.receipt)], now_ms())
        assert result.ok
        assert await take(store) == []


class _Cut(Exception):
    """The end of the process, as an exception."""


def _cutting(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The `after`th step on a database is the last: it is carried out, and nothing that follows."""
    left = [after]
    use = PostgresDatabase.use

    async def cut(self: PostgresDatabase, work: Any) -> Any:
        if left[0] <= 0:
            raise _Cut
        left[0] -= 1
        return await use(self, work)

    monkeypatch.setattr(PostgresDatabase, "use", cut)


@pytest.mark.slow
async def test_wherever_it_is_cut_off_the_next_call_finishes_it(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_everywhere(urls, monkeypatch, every=4)


@pytest.mark.proof
async def test_after_whichever_step_it_is_cut_off_the_next_call_finishes_it(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_everywhere(urls, monkeypatch, every=1)


@pytest.mark.slow
async def test_what_nobody_finishes_a_sweep_finishes_or_calls_off(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_moves, "_ABANDONED_S", 0.0)
    expected = [b"%d" % number for number in range(5)]
    owners = set()
    async with opened(urls) as store:
        await put(store, *expected)
        for cut in range(8, 64, 7):
            with monkeypatch.context() as patched:
                _cutting(patched, cut)
                with contextlib.suppress(_Cut):
                    await move(urls)
            for _ in range(3):
                await store.sweep(100, now_ms())
            assert [await rows(url, "slot_moves") for url in urls] == [0, 0]
            found = [await rows(url) for url in urls]
            assert sorted(found) == [0, 5], "on one of them, and whole"
            owners.add(found.index(5))
            peeked = await store.peek(REF, 100, now_ms())
            assert [each.envelope.payload for each in peeked] == expected
            await move(urls, to=SOURCE)
            assert await rows(urls[SOURCE]) == 5
        await put(store, b"more")
        assert await take(store) == [*expected, b"more"]
    assert owners == {SOURCE, TARGET}, "some were called off, and some finished"


async def test_a_move_that_was_called_off_cannot_be_decided(urls: list[str]) -> None:
    async with opened(urls) as store:
        await put(store, b"a")
        cluster = PostgresCluster(urls)
        await cluster.open()
        mover = Resharding(cluster, QuotaGrants(cluster))
        source, target = cluster.shards[SOURCE], cluster.shards[TARGET]
        async with mover.lock():
            await mover._block_queues(SLOT, source, target)
            await source.fetch(SQL["call_off_slot"], SLOT)
            with pytest.raises(StoreUnavailable, match="cancelled"):
                await mover._decide(SLOT, source, target)
        await cluster.close()
        await move(urls)
        assert await take(store) == [b"a"]
        assert await rows(urls[SOURCE], "slot_moves") == 0


async def cut_everywhere(urls: list[str], monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Move back and forth, each time interrupted some steps later, until a move is complete."""
    to, cuts = TARGET, 0
    async with opened(urls) as store:
        expected = [b"%d" % number for number in range(20)]
        await put(store, *expected, key=None)
        await put(store, b"keyed", key="k")
    while True:
        is_cut = False
        with monkeypatch.context() as patched:
            # The first steps only look which databases there are.
            _cutting(patched, 4 + cuts)
            try:
                await move(urls, to=to)
            except _Cut:
                is_cut, cuts = True, cuts + every
        await move(urls, to=to)
        async with opened(urls) as store:
            counts = await store.counts(*REF, now_ms())
            assert (counts.ready, counts.bytes) == (21, sum(map(len, expected)) + 5)
            assert await rows(urls[to]) == 21
            assert await rows(urls[1 - to]) == 0
            assert [await rows(url, "slot_moves") for url in urls] == [0, 0]
            peeked = await store.peek(REF, 100, now_ms())
            assert [each.envelope.payload for each in peeked] == [*expected, b"keyed"]
        if not is_cut:
            break
        to = 1 - to
    assert cuts > 15


@pytest.mark.spec("5.2")
async def test_nothing_is_lost_or_doubled_under_traffic(urls: list[str]) -> None:
    total = 300
    got: list[bytes] = []
    async with opened(urls) as one, opened(urls) as other:
        await put(one, b"first")
        assert await take(one) == [b"first"]

        async def patiently(call: Any) -> Any:
            while True:
                try:
                    return await call()
                except StoreUnavailable as error:
                    if "being moved" not in error.message:
                        raise
                    await asyncio.sleep(0.005)

        async def produce(store: PostgresStore, first: int) -> None:
            for number in range(first, total, 2):
                await patiently(lambda number=number: put(store, b"%d" % number, key=f"{number}"))

        async def consume(store: PostgresStore) -> None:
            while len(got) < total:
                claims = await patiently(lambda: store.claim(REF, [ClaimRequest(limit=5, lease_ms=60_000)], now_ms()))
                verdicts = [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in claims.per_ask[0]]
                if verdicts:
                    results = await patiently(lambda verdicts=verdicts: store.settle(REF, verdicts, now_ms()))
                    assert all(result.ok for result in results)
                    got.extend(each.payload for each in claims.per_ask[0])
                else:
                    await asyncio.sleep(0.005)

        async def shuttle() -> None:
            for to in (TARGET, SOURCE, TARGET):
                await move(urls, to=to)

        async with asyncio.timeout(90):
            await asyncio.gather(produce(one, 0), produce(other, 1), consume(one), consume(other), shuttle())
        assert sorted(map(int, got)) == list(range(total))
        assert await rows(urls[0]) + await rows(urls[1]) == 0


async def test_quotas_hold_when_their_messages_have_gone(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10)))
        await put(store, *(b"x" for _ in range(8)))
        await move(urls)
        await put(store, b"y", ref=OTHER)
        await put(store, b"y")
        for ref in (REF, OTHER):
            with pytest.raises(HoldfastError, match="max_messages"):
                await put(store, b"z", ref=ref)
        assert len(await take(store, 5)) == 5
        await put(store, *(b"z" for _ in range(5)), ref=OTHER)


async def test_what_is_in_a_log_lands_where_its_queue_has_gone(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    try:
        clock = ManualClock()

        def decided() -> list[LoggedBatch]:
            return [batch for file in segment_files(tmp_path) for batch in read_calls(file).batches]

        async with buffered(urls, redis_server.url, tmp_path, clock=clock, flusher="spark") as store:
            await put(store, b"first")
            assert await take(store) == [b"first"]
            await put(store, b"a")
            await until(lambda: len(decided()) == 1, clock)
            await move(urls)
            await put(store, b"b")
            await until(lambda: sum(len(batch.calls) for batch in decided()) == 2, clock)
            batches = decided()
            done = await asyncio.to_thread(flush, urls, batches)
            assert done.stored == 2
            assert await rows(urls[TARGET]) == 2
            assert (await asyncio.to_thread(flush, urls, batches)).stored == 0
            await put(store, b"c")
            assert await take(store) == [b"a", b"b", b"c"]
            assert (await asyncio.to_thread(flush, urls, batches)).stored == 0
            assert await take(store) == [], "and nothing comes back"
    finally:
        redis_server.flush()


async def test_a_draining_queue_is_not_moved(urls: list[str]) -> None:
    async with opened(urls) as store:
        await put(store, b"a")
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        with pytest.raises(StoreUnavailable, match="being deleted"):
            await move(urls)


async def test_payloads_in_pieces_go_along_though_it_is_cut_off_and_readers_follow(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = bytes(range(256)) * (6 << 10)
    async with opened(urls) as store:
        await put(store, payload, b"small")
        [delivery] = (await store.claim(REF, [ClaimRequest(streams=True, lease_ms=60_000)], now_ms())).per_ask[0]
        assert delivery.pieces is not None
        reader = await store.payloads.read(REF, delivery.snowflake, delivery.pieces)
        parts = [await anext(reader)]
        with monkeypatch.context() as patched:
            _cutting(patched, 24)  # in the middle of the pieces
            with contextlib.suppress(_Cut):
                await move(urls)
        assert 0 < await rows(urls[TARGET], "pieces") < 6
        await move(urls)
        assert [await rows(url, "pieces") for url in urls] == [0, 6][:: 1 if SOURCE == 0 else -1]
        parts += [part async for part in reader]
        assert b"".join(parts) == payload
        await move(urls, to=SOURCE)
        assert [await rows(url, "pieces") for url in urls] == [6, 0][:: 1 if SOURCE == 0 else -1]
        [result] = await store.settle(REF, [Verdict(settle=Settle.ACK, receipt=delivery.receipt)], now_ms())
        assert result.ok
        await store.sweep(100, now_ms())
        assert [await rows(url, table) for url in urls for table in ("pieces", "stages")] == [0, 0, 0, 0]
        assert await take(store) == [b"small"]


async def test_a_move_of_payloads_in_pieces_that_is_called_off_leaves_none_on_the_other_database(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_moves, "_ABANDONED_S", 0.0)
    payload = bytes(3 << 20)
    async with opened(urls) as store:
        await put(store, payload)
        with monkeypatch.context() as patched:
            _cutting(patched, 24)
            with contextlib.suppress(_Cut):
                await move(urls)
        assert await rows(urls[TARGET], "pieces") > 0
        for _ in range(3):
            await store.sweep(100, now_ms())
        assert [await rows(url, "pieces") for url in urls] == [12, 0][:: 1 if SOURCE == 0 else -1]
        assert await take(store) == [payload]


async def test_an_upload_whose_queue_goes_meanwhile_is_to_be_sent_again(urls: list[str]) -> None:
    async with opened(urls) as store:
        await put(store, b"first")
        writer = await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=True)
        await writer.write(bytes(2 << 20))
        draft = Draft(payload=b"", pieces=await writer.finish())
        await move(urls)
        with pytest.raises(StoreUnavailable, match="send it again"):
            await store.enqueue(REF, [draft], now_ms(), auto_create=True)
        assert await take(store) == [b"first"]


# --- Fewer databases -------------------------------------------------------------------------------------------------


async def _join(postgres: PostgresServer, urls: list[str], name: str) -> list[str]:
    """A store's databases with a new one, which owns nothing yet."""
    async with connected(postgres.url("postgres")) as connection:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name}")
    every = [*urls, postgres.url(name)]
    async with contextlib.AsyncExitStack() as stack:
        await migrate([await stack.enter_async_context(connected(url)) for url in every])
    return every


async def test_a_database_that_has_queues_or_tenants_cannot_be_left_out_and_they_are_named(urls: list[str]) -> None:
    async with opened(urls) as store:
        for number in range(40):
            await put(store, b"x", ref=QueueRef(f"t{number % 4}", f"q{number}"))
    for left_out in (0, 1):
        with pytest.raises(InvalidArgument) as refused:
            async with opened([urls[1 - left_out]]):
                pass
        error = refused.value
        assert f"number {left_out} was not given" in error.message
        assert error.facts["database"] == left_out
        named = error.facts["queues"]
        assert isinstance(named, list)
        assert named
        assert all(slot_of(*QueueRef(*name.split("/"))) % 2 == left_out for name in named)
        assert named[0] in error.message
        assert "512 of 1024 parts of the tenants" in error.message
        assert ("`holdfast pipeline reshard --onto 1`" in error.message) is (left_out == 1)


async def test_a_database_that_joined_can_be_emptied_and_left_out(postgres: PostgresServer) -> None:
    every = await _join(postgres, await asyncio.to_thread(postgres.make_databases, "shrink_a"), "shrink_b")
    async with opened(every) as store:
        await put(store, b"kept")
    await asyncio.to_thread(reshard, every, {SLOT: 1})
    with pytest.raises(InvalidArgument, match="with the queues acme/mail; `holdfast pipeline reshard --onto 1`"):
        async with opened(every[:1]):
            pass
    with pytest.raises(InvalidArgument, match="this store has 2 databases"):
        await asyncio.to_thread(reshard, every, onto=3)
    moved = await asyncio.to_thread(reshard, every, onto=1)
    assert [(each.slot, each.messages) for each in moved] == [(SLOT, 1)]
    async with opened(every[:1]) as store:
        await store.sweep(100, now_ms())
        await put(store, b"new")
        assert await take(store) == [b"kept", b"new"]


async def test_a_database_in_the_middle_is_not_taken_for_the_one_behind_it(postgres: PostgresServer) -> None:
    every = await _join(postgres, await asyncio.to_thread(postgres.make_databases, "middle_a"), "middle_b")
    every = await _join(postgres, every, "middle_c")
    async with opened(every) as store:
        await put(store, b"kept")
    await asyncio.to_thread(reshard, every, {SLOT: 2})
    with pytest.raises(InvalidArgument, match="number 1 was not given"):
        async with opened([every[0], every[2]]):
            pass
    async with opened(every) as store:
        assert await take(store) == [b"kept"]
