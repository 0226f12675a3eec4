"""Messages from queue to queue, on one database and between two: their counts and quotas go with them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.dice import SeededDice
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.message import Draft, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.model.requests import EVERYTHING, ClaimRequest, Filter, Move, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.operations import message_moves
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.locks import SWEEP_LOCK, admit_groups
from holdfast.testing import ManualClock
from tests.postgres.bounds import PATIENT
from tests.postgres.landing_calls import WEEK_MS, Deaf, connected
from tests.postgres.server import PostgresServer

HERE = QueueRef("acme", "mail")


def another(name: str, *, is_near: bool) -> QueueRef:
    """A queue on the same database as `HERE`, or on the other."""
    refs = (QueueRef("acme", f"{name}{number}") for number in range(99))
    return next(ref for ref in refs if (slot_of(*ref) % 2 == slot_of(*HERE) % 2) is is_near)


NEAR, AWAY = another("near", is_near=True), another("away", is_near=False)


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("moving_a", "moving_b")


@pytest.fixture
def urls(postgres: PostgresServer, databases: list[str]) -> Iterator[list[str]]:
    yield databases
    postgres.empty(databases)


@asynccontextmanager
async def opened(urls: list[str], clock: ManualClock) -> AsyncIterator[PostgresStore]:
    runtime = LoopRuntime(clock)
    store = PostgresStore(urls, SeededDice(0), journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
    await store.open(Deaf(), runtime)
    try:
        yield store
    finally:
        await store.close()
        await runtime.aclose()


async def put(store: PostgresStore, now_ms: int, number: int, ref: QueueRef = HERE, **options: Any) -> None:
    await store.enqueue(ref, [Draft(payload=b"x", **options) for _ in range(number)], now_ms, auto_create=True)


async def move(
    store: PostgresStore, now_ms: int, source: QueueRef, target: QueueRef, which: Filter = EVERYTHING, **how: Any
) -> int:
    return (await store.alter(source, Move(to=target, **how), which, None, 1_000, now_ms)).changed


# --- A queue's first group -------------------------------------------------------------------------------------------


async def until_done_or_waiting(connection: Any, task: asyncio.Task[Any], number: int) -> bool:
    """Return whether this number of transactions wait for locks in this database before the task has ended."""
    async with asyncio.timeout(60):
        while not task.done():
            waiting = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if waiting >= number:
                return True
            await asyncio.sleep(0.002)
    return False


@pytest.mark.parametrize("target", [NEAR, AWAY], ids=["same database", "other database"])
async def test_a_move_that_brings_a_queue_its_first_group_waits_for_an_upkeep_that_knows_of_none(
    urls: list[str], target: QueueRef
) -> None:
    """Step by step: the upkeep has looked; the move comes; time passes; the upkeep shows what is due; another message
    of the group comes, whose enqueue shows the head too; the upkeep commits."""
    clock = ManualClock()
    now = clock.now_ms()
    later = now + 2_000
    async with opened(urls, clock) as store:
        await put(store, now, 1, group="g", delay_ms=1_000)
        await put(store, now, 1, target)
        url = urls[store.shard_of(target)]
        async with connected(url) as upkeep, connected(url) as watch:
            for connection in (upkeep, watch):
                await connection.execute("SET search_path TO holdfast")
            key = await upkeep.fetchval("SELECT key FROM queues WHERE queue = $1", target.queue)
            transaction = upkeep.transaction()
            await transaction.start()
            await upkeep.execute(SWEEP_LOCK, key)
            assert not (await upkeep.fetchrow(SQL["queue_by_key"], key, later))["has_groups"]

            moved = asyncio.create_task(move(store, now, HERE, target))
            is_waiting = await until_done_or_waiting(watch, moved, 1)
            await upkeep.fetch(SQL["promote"], key, later, 100)
            more = asyncio.create_task(put(store, later, 1, target, group="g"))
            await until_done_or_waiting(watch, more, 2 if is_waiting else 1)
            await transaction.commit()
            assert await moved == 1
            await more

            counted = await watch.fetchrow(
                "SELECT sum(waiting) AS waiting, sum(delayed) AS delayed FROM all_counts WHERE queue_key = $1", key
            )
            there = await watch.fetchrow(
                "SELECT count(*) AS waiting, count(*) FILTER (WHERE status = 5) AS delayed FROM items "
                "WHERE queue_key = $1",
                key,
            )
        assert tuple(counted) == tuple(there)
        assert is_waiting
        counts = await store.counts(*target, later)
        assert (counts.ready, counts.delayed) == (3, 0)


@pytest.mark.parametrize("target", [NEAR, AWAY], ids=["same database", "other database"])
async def test_an_upkeep_that_comes_while_a_queue_gets_its_first_group_waits_and_then_knows(
    urls: list[str], target: QueueRef
) -> None:
    """The other way round, and nobody waits in a circle."""
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await put(store, now, 1, target)
        shard = store._cluster.shards[store.shard_of(target)]
        async with connected(shard.url) as mover, connected(shard.url) as watch:
            await mover.execute("SET search_path TO holdfast")
            key = await mover.fetchval("SELECT key FROM queues WHERE queue = $1", target.queue)
            transaction = mover.transaction()
            await transaction.start()
            await admit_groups(mover, key)
            upkeep = asyncio.create_task(store._queue_sweep.end_on(shard, key, 100, now, Notices()))
            assert await until_done_or_waiting(watch, upkeep, 1)
            settling = asyncio.create_task(store.claim(target, [ClaimRequest()], now))
            claims = await settling
            assert len(claims.per_ask[0]) == 1, "a claim of a queue without groups goes on"
            await mover.execute(SQL["has_groups"], key, 1)
            await transaction.commit()
            async with asyncio.timeout(60):
                await upkeep


# --- Quotas ----------------------------------------------------------------------------------------------------------


async def kept(store: PostgresStore, now_ms: int) -> int:
    counts = await store.counts("acme", None, now_ms)
    return counts.ready + counts.delayed + counts.in_flight + counts.failed


async def fill(store: PostgresStore, now_ms: int, *refs: QueueRef) -> None:
    """One by one, until each of them refuses."""
    for ref in refs:
        for _ in range(100):
            try:
                await put(store, now_ms, 1, ref)
            except OverQuota:
                break


async def test_messages_that_go_to_another_database_take_their_part_of_the_quota_along(urls: list[str]) -> None:
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10, max_bytes=1_000)))
        await store.directory.create_queue(AWAY, now)
        await put(store, now, 10)
        assert await move(store, now, HERE, AWAY) == 10, "it is no more than before"
        await fill(store, now, HERE, AWAY)
        assert await kept(store, now) == 10
        [deliveries] = (await store.claim(AWAY, [ClaimRequest(limit=4)], now)).per_ask
        await store.settle(AWAY, [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in deliveries], now)
        await fill(store, now, HERE, AWAY)
        assert await kept(store, now) == 10
        for source, target in ((AWAY, HERE), (HERE, AWAY), (AWAY, HERE)):
            await move(store, now, source, target)
            await fill(store, now, AWAY, HERE)
            assert await kept(store, now) == 10


async def test_dead_letters_too(urls: list[str]) -> None:
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_bytes=5)))
        await store.directory.create_queue(AWAY, now)
        await put(store, now, 5)
        [deliveries] = (await store.claim(HERE, [ClaimRequest(limit=5)], now)).per_ask
        verdicts = [Verdict(settle=Settle.NACK, receipt=each.receipt, final=True) for each in deliveries]
        await store.settle(HERE, verdicts, now)
        assert await move(store, now, HERE, AWAY, state=State.FAILED) == 5
        await fill(store, now, HERE, AWAY)
        assert await kept(store, now) == 5


@pytest.mark.parametrize("step", ["_decide", "_finish"])
async def test_a_move_that_is_cut_off_passes_no_quota(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Cut(Exception):
        pass

    async def cut(*_: Any) -> None:
        raise Cut

    monkeypatch.setattr(message_moves, "_ABANDONED_S", 0.0)
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10)))
        await store.directory.create_queue(AWAY, now)
        await put(store, now, 8)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(store._moves, step, cut)
                with pytest.raises(Cut):
                    await move(store, now, HERE, AWAY)
            await fill(store, now, HERE, AWAY)
            await store.sweep(1_000, now)
            await fill(store, now, AWAY, HERE)
            assert await kept(store, now) == 10


async def test_of_a_move_only_what_went_takes_its_part_along(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what was announced and what is decided some are claimed."""
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10)))
        await store.directory.create_queue(AWAY, now)
        await put(store, now, 10)
        decide = store._moves._decide

        async def claimed_before(*args: Any) -> Any:
            await store.claim(HERE, [ClaimRequest(limit=7)], now)
            return await decide(*args)

        monkeypatch.setattr(store._moves, "_decide", claimed_before)
        assert await move(store, now, HERE, AWAY) == 3
        await fill(store, now, AWAY, HERE)
        assert await kept(store, now) == 10


async def test_a_quota_set_on_what_is_there_already_counts_it_on_every_database(urls: list[str]) -> None:
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await put(store, now, 8)
        await put(store, now, 1, AWAY)
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10)))
        await fill(store, now, AWAY, HERE)
        assert await kept(store, now) == 10


async def test_a_move_to_another_tenant_is_refused_beyond_its_quota_and_nothing_goes(urls: list[str]) -> None:
    clock = ManualClock()
    now = clock.now_ms()
    theirs = next(ref for n in range(99) if slot_of(*(ref := QueueRef("umbrella", f"q{n}"))) % 2 != slot_of(*HERE) % 2)
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("umbrella", TenantConfig(quotas=Quotas(max_messages=3)))
        await store.directory.create_queue(theirs, now)
        await put(store, now, 4)
        with pytest.raises(OverQuota):
            await move(store, now, HERE, theirs)
        assert (await store.counts(*HERE, now)).ready == 4


async def test_a_move_that_finds_no_room_again_and_again_is_called_unavailable(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    now = clock.now_ms()
    async with opened(urls, clock) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=10)))
        await store.directory.create_queue(AWAY, now)
        await put(store, now, 10)
        carry = store._grants.grant_for_move

        async def late(short: Any) -> Any:
            return (await carry(short))._replace(version=0)  # as if another grant had come since

        monkeypatch.setattr(store._grants, "grant_for_move", late)
        with pytest.raises(StoreUnavailable, match="gave up after"):
            await move(store, now, HERE, AWAY)
        assert (await store.counts(*HERE, now)).ready == 10
