"""Several servers on one PostgreSQL store: nothing twice, nothing lost, and each is notified of the others' changes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import asyncpg
import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.errors import OverQuota, RateLimited
from holdfast.model.ids import EPOCH_MS, node_of
from holdfast.model.names import QueueRef
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.service.policy_cache import REFRESH_MS
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.transactions.locks import SWEEP_LOCK
from holdfast.testing import ManualClock
from holdfast.testing.laws.operating.journal import events_of
from holdfast.testing.laws.waiting_tasks import finish, start_claim
from holdfast.testing.subject import fire_due
from tests.postgres.bounds import PATIENT
from tests.postgres.peers import until_peers_known
from tests.postgres.server import PostgresServer

WEEK_MS = 7 * 86_400_000


@pytest.fixture(scope="module", params=[1, 2], ids=["one database", "two databases"])
def databases(request: pytest.FixtureRequest, postgres: PostgresServer) -> list[str]:
    return postgres.make_databases(*(f"servers_{request.param}_{number}" for number in range(request.param)))


@pytest.fixture
def urls(postgres: PostgresServer, databases: list[str]) -> Iterator[list[str]]:
    yield databases
    postgres.empty(databases)


@asynccontextmanager
async def servers(urls: list[str], clock: ManualClock, number: int) -> AsyncIterator[list[AsyncHoldfast]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                open_on_loop(
                    "",
                    {},
                    clock=clock,
                    store=PostgresStore(
                        urls, SeededDice(seed), journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True
                    ),
                )
            )
            for seed in range(number)
        ]


@pytest.mark.spec("5.3")
async def test_an_enqueue_on_one_server_wakes_a_claim_that_waits_on_another(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 2) as [one, other]:
        await until_peers_known(one, other)
        # The clock stands still, so nobody looks by himself.
        for name in ("a", "b", "c"):
            await one.queue(name).set_policy()
            waiting = await start_claim(other.queue(name))
            [id] = await one.queue(name).enqueue(b"news")
            assert [each.id for each in await finish(waiting)] == [id]


@pytest.mark.spec("2.4", "5.3")
async def test_of_many_claimers_on_many_servers_each_message_goes_to_one(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 3) as every:
        queue = every[0].queue("q")
        for _ in range(20):
            await queue.enqueue([b""] * 25)

        async def claim(hf: AsyncHoldfast) -> list[str]:
            mine: list[str] = []
            while messages := await hf.queue("q").claim(limit=7):
                mine += [message.id for message in messages]
                results = await hf.queue("q").ack(messages)
                assert all(result.ok for result in results)
            return mine

        claimed = Counter(id for each in await asyncio.gather(*(claim(hf) for hf in every * 3)) for id in each)
        # Whoever saw nothing may have seen what another was about to hand back: nothing of it stays.
        claimed.update([message.id for message in await queue.claim(limit=1_000)])
        assert len(claimed) == 500
        assert set(claimed.values()) == {1}
        stats = await queue.stats()
        assert stats.ready == 0


async def test_a_verdict_on_another_server_settles_the_lease(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 2) as [one, other]:
        await one.queue("q").enqueue([b""] * 2)
        first, second = await one.queue("q").claim(limit=2)
        assert [each.ok for each in await other.queue("q").ack([first.receipt])] == [True]
        assert [each.ok for each in await one.queue("q").ack([first])] == [False]
        clock.advance(5_000)
        [again] = await other.queue("q").claim()
        assert again.id == second.id
        assert [each.ok for each in await one.queue("q").ack([second])] == [False]
        assert [each.ok for each in await one.queue("q").ack([again.receipt])] == [True]


async def test_a_policy_set_on_one_server_holds_on_the_other_at_once(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 2) as [one, other]:
        await one.queue("q").enqueue(b"", delay=1)
        await other.queue("q").claim()
        await one.queue("q").set_policy(ttl_ms=1_000, lease_ms=77)
        await other.queue("q").enqueue(b"")
        [message] = await other.queue("q").claim()
        assert message.lease_expires_at == clock.now_ms() + 77
        assert (await one.queue("q").get(message.id)).expires_at == clock.now_ms() + 1_000
        await one.queue("q").pause()
        await other.queue("q").enqueue(b"")
        assert await other.queue("q").claim() == []
        await one.queue("q").delete()
        with pytest.raises(Exception, match="being deleted"):
            await other.queue("q").enqueue(b"")


@pytest.mark.spec("3.5", "5.1")
async def test_keys_are_one_message_whoever_enqueues_first(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 3) as every:
        await every[0].queue("q").set_policy()
        answers = await asyncio.gather(
            *(hf.queue("q").enqueue(b"", key=f"k{number}") for number in range(20) for hf in every)
        )
        ids = [id for answer in answers for id in answer]
        assert len(set(ids)) == 20
        assert sum(not id.duplicate for id in ids) == 20
        assert (await every[0].queue("q").stats()).ready == 20


@pytest.mark.spec("3.9")
async def test_each_tick_fires_once_whichever_server_comes_first(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 3) as every:
        cores = [cast(Embedded, hf._transport).core for hf in every]
        for name in ("a", "b", "c"):
            await every[0].queue("q").schedule(name, every=1, payload=b"")
        for _ in range(4):
            clock.advance(1_000)
            await asyncio.gather(*(fire_due(core) for core in cores))
        fired = [(info.headers["schedule"], info.headers["scheduled-at"]) for info in await every[1].queue("q").list()]
        assert len(fired) == len(set(fired)) == 12


@pytest.mark.spec("8.9")
async def test_a_quota_is_never_passed_however_many_servers_enqueue(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 3) as every:
        await every[0].tenant("acme").set(quotas={"max_messages": 50})
        queues = [hf.queue(name, tenant="acme") for hf in every for name in ("a", "b", "c", "d")]
        for queue in queues[:4]:
            await queue.set_policy()

        async def enqueue(number: int) -> int:
            try:
                await queues[number % len(queues)].enqueue(b"")
            except OverQuota:
                return 0
            return 1

        accepted = sum(await asyncio.gather(*(enqueue(number) for number in range(120))))
        # One after the other the last ones find what room there is, to the very last.
        for number in range(60):
            accepted += await enqueue(number)
        assert accepted == 50
        assert (await every[1].tenant("acme").stats()).ready == 50


async def test_a_queue_s_first_grouped_message_waits_for_an_upkeep_that_knows_of_no_groups(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 1) as [hf]:
        await hf.queue("q").enqueue(b"")
        store = cast(PostgresStore, cast(Embedded, hf._transport).core.store)
        connection = await asyncpg.connect(urls[store.shard_of(QueueRef("default", "q"))])
        try:
            key = await connection.fetchval("SELECT key FROM holdfast.queues WHERE queue = 'q'")
            async with connection.transaction():
                await connection.execute(SWEEP_LOCK, key)
                first = asyncio.create_task(hf.queue("q").enqueue(b"", group="g"))
                await hf.queue("q").enqueue(b"", key="others do not wait")
                done, _ = await asyncio.wait([first], timeout=0.2)
                assert not done
            await finish(first)
            async with connection.transaction():
                await connection.execute(SWEEP_LOCK, key)
                await hf.queue("q").enqueue(b"", group="g")
        finally:
            await connection.close()


async def test_limits_set_on_one_server_hold_on_the_others_soon(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 2) as [one, other]:
        await one.queue("slow", tenant="acme").set_policy()
        await one.tenant("acme").set(weight=7, limits={"write_ops_per_s": 1})
        await one.queue("slow", tenant="zeta").set_policy(limits={"write_ops_per_s": 1})
        core = cast(Embedded, other._transport).core
        directory = core._directory
        assert not directory.tenant_limits
        for _ in range(6):  # every queue is looked at within so many passes
            clock.advance(REFRESH_MS)
            await core.runtime.idle()
        assert directory.weight_of("acme") == 7
        for tenant in ("acme", "zeta"):
            await other.queue("slow", tenant=tenant).enqueue(b"")
            with pytest.raises(RateLimited):
                await other.queue("slow", tenant=tenant).enqueue(b"")
        await one.tenant("acme").set(limits={"write_ops_per_s": None})
        clock.advance(REFRESH_MS)
        await core.runtime.idle()
        await other.queue("slow", tenant="acme").enqueue([b""] * 10)


@pytest.mark.spec("9.1")
async def test_a_journal_read_while_it_is_written_misses_nothing_and_repeats_nothing(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 3) as every:
        await every[0].queue("q").set_policy()
        is_over = False

        async def work(hf: AsyncHoldfast, name: str) -> None:
            for number in range(30):
                await hf.queue(name).enqueue([b""] * (1 + number % 5))
                await hf.queue(name).ack(await hf.queue(name).claim(limit=3))

        async def read() -> list[tuple[int, int, str]]:
            events: list[tuple[int, int, str]] = []
            after: str | None = None
            while True:
                was_over = is_over
                page = await every[2].journal(after=after, limit=50)
                events += [(event.shard, event.seq, f"{event.event} {event.id}") for event in page]
                after = page.next
                if not page and was_over:
                    return events

        reading = asyncio.create_task(read())
        await asyncio.gather(*(work(hf, name) for hf in every[:2] for name in ("q", "r", "s")))
        is_over = True
        seen = await reading
        assert seen == list(dict.fromkeys(seen))
        for shard in range(len(urls)):
            numbers = [seq for number, seq, _ in seen if number == shard]
            assert numbers == sorted(set(numbers))
        whole = await events_of(every[0])
        assert sorted(seen) == sorted((event.shard, event.seq, f"{event.event} {event.id}") for event in whole)


async def test_counts_stay_exact_while_lines_are_summed_up(urls: list[str]) -> None:
    clock = ManualClock()
    async with servers(urls, clock, 2) as every:
        sweepers = [cast(Embedded, hf._transport).core.sweeper for hf in every]
        for number in range(30):
            for hf in every:
                await hf.queue("q").enqueue([b"x" * 10] * 3)
            await asyncio.gather(*(sweeper.sweep_once() for sweeper in sweepers))
            stats = await every[number % 2].queue("q").stats()
            assert (stats.ready, stats.bytes) == (6 * (number + 1), 60 * (number + 1))


@pytest.mark.spec("1.4")
async def test_servers_on_one_store_have_node_numbers_of_their_own(urls: list[str]) -> None:
    async with servers(urls, ManualClock(), 3) as every:
        ids = [id for hf in every for _ in range(3) for id in await hf.queue("q").enqueue([b"", b""])]

    assert len({node_of(id.snowflake) for id in ids}) == 3
    assert len(set(ids)) == 18


@pytest.mark.spec("2.14")
async def test_the_clock_of_the_database_decides_and_that_of_no_server(urls: list[str]) -> None:
    async with AsyncExitStack() as stack:
        behind, ahead = [
            await stack.enter_async_context(
                open_on_loop(
                    "",
                    {},
                    clock=ManualClock(start_ms),
                    store=PostgresStore(urls, SeededDice(start_ms), journal_retention_ms=WEEK_MS, bounds=PATIENT),
                )
            )
            for start_ms in (EPOCH_MS, EPOCH_MS + 20 * 365 * 86_400_000)
        ]
        await behind.queue("q").enqueue(b"held")
        [held] = await behind.queue("q").claim(lease=3_600)
        await behind.queue("q").enqueue(b"delayed", delay=3_600)

        assert await ahead.queue("q").claim() == []
        assert [result.ok for result in await ahead.queue("q").ack([held.receipt])] == [True]


@pytest.mark.spec("5.1")
async def test_a_message_is_a_row_and_its_key_outlives_it(urls: list[str]) -> None:
    async with servers(urls, ManualClock(), 1) as [hf]:
        queue = hf.queue("mail", tenant="acme")
        [id] = await queue.enqueue(b"hello", key="order-7", priority=3)
        rows = "SELECT id, namespace, topic, status, priority, payload FROM items_by_name"
        assert await every_row(urls, rows) == [(id.snowflake, "acme", "mail", 0, 3, b"hello")]

        [message] = await queue.claim()
        await message.ack()

        assert await every_row(urls, rows) == []
        assert await every_row(urls, "SELECT id, key FROM seen_keys") == [(id.snowflake, "order-7")]
        assert [each.duplicate for each in await queue.enqueue(b"hello", key="order-7")] == [True]


async def every_row(urls: list[str], statement: str) -> list[tuple[object, ...]]:
    """Return the rows of this statement in all databases."""
    rows = []
    for url in urls:
        connection = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
        try:
            rows += await connection.fetch(statement)
        finally:
            await connection.close()
    return [tuple(row) for row in rows]
