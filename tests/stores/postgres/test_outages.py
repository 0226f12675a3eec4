"""A database that goes away and comes back: what was answered is kept, and nobody has to be restarted."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import SystemClock
from holdfast.model.answers import Enqueued
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.model.requests import ClaimRequest
from holdfast.stores.postgres.cluster.slots import home_of, slot_of, spread
from holdfast.stores.postgres.schema.migrations import migrate
from holdfast.testing import ManualClock
from tests.postgres.landing_calls import opened as opened_store
from tests.postgres.server import PostgresServer, run
from tests.worker.passing import until as wait_until

pytestmark = [pytest.mark.slow, pytest.mark.services]

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def pair() -> Iterator[list[PostgresServer]]:
    """Two servers, each with one database of a store; they sync, for they are stopped in the middle of their work."""
    both: list[PostgresServer] = []
    try:
        for _ in range(2):
            both.append(PostgresServer(fsync=True))
            both[-1].start()
        yield both
    finally:
        for server in both:
            server.close()


@pytest.fixture
def urls(pair: list[PostgresServer]) -> Iterator[list[str]]:
    async def make() -> None:
        connections = []
        for server in pair:
            admin = await asyncpg.connect(server.url("postgres"))
            await admin.execute("DROP DATABASE IF EXISTS outages WITH (FORCE)")
            await admin.execute("CREATE DATABASE outages")
            await admin.close()
            connections.append(await asyncpg.connect(server.url("outages")))
        await migrate(connections)
        for connection in connections:
            await connection.close()

    run(make())
    yield [server.url("outages") for server in pair]
    for server in pair:
        if server.process is None:
            server.start()


@asynccontextmanager
async def opened(urls: list[str]) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(",".join(urls)) as hf:
        yield hf


def names(shard: int, number: int = 1) -> list[str]:
    """Queues of the tenant `default` that this shard owns."""
    return [name for name in (f"q{n}" for n in range(1_000)) if slot_of("default", name) % 2 == shard][:number]


async def until(call: Callable[[], Awaitable[object]]) -> object:
    """Its answer, once the store gives one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


@pytest.mark.spec("5.6")
async def test_a_store_continues_by_itself_after_its_database_was_restarted(
    pair: list[PostgresServer], urls: list[str]
) -> None:
    [name] = names(0)
    async with opened(urls) as hf:
        queue = hf.queue(name)
        ids = await queue.enqueue([b""] * 10)
        [held] = await queue.claim(lease=600)
        pair[0].stop(signal.SIGQUIT)
        with pytest.raises(StoreUnavailable):
            await queue.enqueue(b"")
        await asyncio.to_thread(pair[0].start)
        await until(lambda: queue.stats())
        await held.ack()
        assert [each.id for each in await queue.claim(limit=20)] == ids[1:]


@pytest.mark.spec("5.6")
async def test_one_shard_that_is_down_leaves_the_others_queues_working(
    pair: list[PostgresServer], urls: list[str]
) -> None:
    [here], [there] = names(0), names(1)
    async with opened(urls) as hf:
        for name in (here, there):
            await hf.queue(name).enqueue(b"before")
        pair[1].stop(signal.SIGQUIT)
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await hf.queue(there).enqueue(b"")
            await hf.queue(here).enqueue(b"meanwhile")
        for message in await hf.queue(here).claim(limit=10):
            await message.ack()
        assert (await hf.queue(here).stats()).ready == 0
        assert [each.queue for each in await hf.queues()] == [here]
        await asyncio.to_thread(pair[1].start)
        [message] = await until(lambda: hf.queue(there).claim())
        assert message.payload == b"before"


@pytest.mark.spec("5.6")
async def test_a_server_starts_while_a_shard_is_down_and_has_it_when_it_is_back(
    pair: list[PostgresServer], urls: list[str]
) -> None:
    [here], [there] = names(0), names(1)
    async with opened(urls) as hf:
        await hf.queue(there).enqueue(b"kept")
    pair[1].stop(signal.SIGQUIT)
    async with opened(urls) as hf:
        await hf.queue(here).enqueue(b"")
        with pytest.raises(StoreUnavailable):
            await hf.queue(there).claim()
        await asyncio.to_thread(pair[1].start)
        [message] = await until(lambda: hf.queue(there).claim())
        assert message.payload == b"kept"


async def test_a_waiting_claim_outlives_a_restart_of_its_database(pair: list[PostgresServer], urls: list[str]) -> None:
    [name] = names(1)
    async with opened(urls) as hf:
        await hf.queue(name).set_policy()
        waiting = asyncio.create_task(until(lambda: hf.queue(name).claim(wait=None)))

        async def waits() -> bool:
            return (await hf.queue(name).stats()).waiters == 1

        await wait_until(waits)
        pair[1].stop(signal.SIGQUIT)
        await asyncio.to_thread(pair[1].start)
        await until(lambda: hf.queue(name).enqueue(b"after"))
        async with asyncio.timeout(PATIENCE_S):
            assert [each.payload for each in await waiting] == [b"after"]


@pytest.mark.spec("1.4")
async def test_a_server_makes_no_ids_once_its_node_number_may_be_given_to_another(
    pair: list[PostgresServer], urls: list[str]
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    [there] = names(1)
    ref = QueueRef("default", there)
    async with opened_store(urls, clock=clock) as store:

        async def enqueue(payload: bytes) -> list[Enqueued]:
            return await store.enqueue(ref, [Draft(payload=payload)], SystemClock().now_ms(), auto_create=True)

        await enqueue(b"before")
        pair[0].stop(signal.SIGQUIT)
        clock.advance(9 * 60_000)
        await enqueue(b"while the number is still this server's")
        clock.advance(1)
        with pytest.raises(StoreUnavailable):
            await enqueue(b"refused")
        # What needs no id goes on.
        [claimed] = (await store.claim(ref, [ClaimRequest(limit=10)], SystemClock().now_ms())).per_ask
        assert [each.payload for each in claimed] == [b"before", b"while the number is still this server's"]
        await asyncio.to_thread(pair[0].start)
        await until(lambda: enqueue(b"after"))


async def test_a_database_that_is_not_there_is_said_so_without_its_password() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        async with opened(["postgres://user:canary@127.0.0.1:1/none"]):
            pass
    assert "127.0.0.1:1/none" in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.spec("5.1")
async def test_a_database_without_its_tables_is_refused_with_what_to_do(pair: list[PostgresServer]) -> None:
    with pytest.raises(StoreUnavailable, match="run `holdfast db migrate`"):
        async with opened([pair[0].url("postgres")]):
            pass


async def test_a_configuration_changed_while_a_database_is_down_reaches_it_when_it_is_back(
    pair: list[PostgresServer], urls: list[str]
) -> None:
    tenant = next(name for name in (f"t{number}" for number in range(99)) if home_of(name, spread(2)) == 0)
    queue = next(name for name in (f"q{number}" for number in range(99)) if slot_of(tenant, name) % 2 == 1)
    ref = QueueRef(tenant, queue)
    async with opened_store(urls) as store:
        await store.enqueue(ref, [Draft(payload=b"a")], SystemClock().now_ms(), auto_create=True)
        pair[1].stop(signal.SIGQUIT)
        for number in (5, 1):
            await store.directory.put_tenant(tenant, TenantConfig(quotas=Quotas(max_messages=number)))
        found = await store.directory.find_tenant(tenant)
        assert found is not None
        assert found.config.quotas.max_messages == 1
        await asyncio.to_thread(pair[1].start)

        async def is_refused() -> bool:
            try:
                await store.sweep(100, SystemClock().now_ms())
                await store.enqueue(ref, [Draft(payload=b"b")], SystemClock().now_ms(), auto_create=True)
            except OverQuota:
                return True
            except StoreUnavailable:
                pass
            return False

        await wait_until(is_refused)
        connection = await asyncpg.connect(urls[0])
        assert await connection.fetchval("SELECT count(*) FROM holdfast.tenant_copies") == 0
        await connection.close()
