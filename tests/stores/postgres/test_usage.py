"""The usage of a tenant is exact, and reading it costs the same however many queues the tenant has."""

import json
import random
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.schema.migrations import migrate
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import QueueChange
from tests.postgres.landing_calls import connected, opened
from tests.postgres.server import PostgresServer
from tests.seeds import run_seed
from tests.worker.passing import until as wait_until

TENANTS = ("acme", "globex")
QUEUES = tuple(QueueRef(tenant, queue) for tenant in TENANTS for queue in ("a", "b", "c"))
RECOUNT = (
    "SELECT count(*) AS messages, coalesce(sum(items.bytes), 0)::bigint AS bytes "
    "FROM items JOIN queues ON key = queue_key WHERE tenant = $1"
)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    [url] = postgres.make_databases("usage")
    return url


def now_ms() -> int:
    return SystemClock().now_ms()


@pytest.mark.spec("8.9")
async def test_the_usage_is_that_of_a_recount_after_every_kind_of_change(url: str) -> None:
    chance = random.Random(run_seed())
    async with opened([url]) as store, connected(url) as connection:
        for _ in range(120):
            await change(store, chance.choice(QUEUES), chance)
            if chance.random() < 0.3:
                await connection.execute(SQL["fold"], chance.choice((1, 3, 5_000)))
            for tenant in TENANTS:
                usage = await connection.fetchrow(SQL["usage"], tenant)
                assert dict(usage) == dict(await connection.fetchrow(RECOUNT, tenant))


async def change(store: PostgresStore, ref: QueueRef, chance: random.Random) -> None:
    """Change a queue in one of the ways that change its counts."""
    drafts = [Draft(payload=b"x" * chance.randrange(100)) for _ in range(chance.randrange(1, 5))]
    match chance.randrange(4):
        case 0 | 1:
            await store.enqueue(ref, drafts, now_ms(), auto_create=True)
        case 2:
            [claimed] = (await store.claim(ref, [ClaimRequest(limit=3)], now_ms())).per_ask
            settle = chance.choice((Settle.ACK, Settle.NACK, Settle.RELEASE))
            await store.settle(ref, [Verdict(settle=settle, receipt=each.receipt) for each in claimed], now_ms())
        case _:
            if await store.directory.find_queue(ref) is not None:
                await store.directory.change_queue(ref, QueueChange(drain_until=now_ms()), now_ms())
                while await store.directory.find_queue(ref) is not None:
                    await store.sweep(1_000, now_ms())


async def test_an_older_store_gets_its_usage_with_the_migration(url: str) -> None:
    async with opened([url]) as store:
        for ref in QUEUES:
            await store.enqueue(ref, [Draft(payload=b"12345")] * 3, now_ms(), auto_create=True)
    async with connected(url) as connection:
        await connection.execute(SQL["fold"], 4)  # some lines are added up, and some are not
        await connection.execute("DROP TABLE usage; DROP FUNCTION note_usage CASCADE")
        await connection.execute("DELETE FROM migrations WHERE version = 7")
        await migrate([connection])
        for tenant in TENANTS:
            usage = await connection.fetchrow(SQL["usage"], tenant)
            assert dict(usage) == {"messages": 9, "bytes": 45}


async def test_reading_the_usage_of_a_tenant_with_many_queues_reads_a_few_pages(url: str) -> None:
    async with opened([url]) as store, connected(url) as connection:
        await store.enqueue(QUEUES[0], [Draft(payload=b"12345")], now_ms(), auto_create=True)
        few = await pages_read(connection)
        await connection.execute(
            "INSERT INTO queues (tenant, queue, tenant_id, queue_id, policy, lease_ms, max_lease_ms, keeps) "
            "SELECT tenant, 'many' || n, tenant_id, 100 + n, policy, lease_ms, max_lease_ms, keeps "
            "FROM queues, generate_series(1, 5000) AS n"
        )
        await connection.execute(
            "INSERT INTO counts SELECT key, 1, 0, 0, 0, 0, 10 FROM queues WHERE queue LIKE 'many%'"
        )
        assert dict(await connection.fetchrow(SQL["usage"], "acme")) == {"messages": 5_001, "bytes": 50_005}
        assert await pages_read(connection) <= few + 10


async def pages_read(connection: Any) -> int:
    """Return the number of pages that reading a usage takes."""
    [plan] = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {SQL['usage']}", "acme"))
    read: int = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return read


async def test_the_lines_of_producers_alone_are_added_up_while_they_go_on(url: str) -> None:
    async with opened([url]) as store, connected(url) as connection:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_messages=1_000)))
        for _ in range(250):
            await store.enqueue(QUEUES[0], [Draft(payload=b"")], now_ms(), auto_create=True)

        async def is_folded() -> bool:
            lines: int = await connection.fetchval("SELECT count(*) FROM count_lines")
            return lines < 100

        await wait_until(is_folded)
        assert dict(await connection.fetchrow(SQL["usage"], "acme")) == {"messages": 250, "bytes": 0}
