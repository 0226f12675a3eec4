"""A database that is down keeps its own queues from being written to, and no others; and nothing is lost by it."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.postgres.schema.migrations import migrate
from tests.postgres.server import PostgresServer, run
from tests.redis.buffered import accepts, opened, put, take
from tests.redis.server import RedisServer
from tests.worker.passing import until

Servers = tuple[PostgresServer, PostgresServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    pair = PostgresServer(), PostgresServer()
    try:
        for server in pair:
            server.start()
        yield pair
    finally:
        for server in pair:
            server.close()


@pytest.fixture
def urls(servers: Servers, redis_server: RedisServer) -> Iterator[list[str]]:
    async def make() -> list[str]:
        connections = [await asyncpg.connect(server.url("postgres")) for server in servers]
        try:
            await migrate(connections)
        finally:
            for connection in connections:
                await connection.close()
        return [server.url("postgres") for server in servers]

    yield run(make())
    redis_server.flush()


async def two_queues(store: BufferedStore) -> list[QueueRef]:
    """One on each database, both known."""
    found: dict[int, QueueRef] = {}
    for number in range(100):
        ref = QueueRef("acme", f"q{number}")
        found.setdefault(store.shard_of(ref), ref)
    refs = [found[0], found[1]]
    for ref in refs:
        await put(store, b"first", ref=ref)
        assert await take(store, ref=ref) == [b"first"]
    return refs


@pytest.mark.spec("5.6")
@pytest.mark.slow
async def test_one_database_down_leaves_the_queues_of_the_others(
    servers: Servers, urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    terms = {"flush_interval_ms": 10}
    async with opened(urls, redis_server.url, tmp_path, **terms) as store:
        there, here = await two_queues(store)
        await asyncio.to_thread(servers[1].stop, signal.SIGQUIT)
        answered = []
        async with asyncio.timeout(60):
            for number in range(1_000):
                try:
                    await put(store, b"%d" % number, ref=here)
                    answered.append(b"%d" % number)
                    await asyncio.sleep(0.01)
                except StoreUnavailable:
                    break
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await put(store, b"refused", ref=here)
            await put(store, b"there", ref=there)
            assert await take(store, ref=there) == [b"there"]
        await asyncio.to_thread(servers[1].start)
        got: list[bytes] = []
        async with asyncio.timeout(60):
            await until(lambda: accepts(store, b"back", here))
            while b"back" not in got or not set(answered) <= set(got):
                got += await take(store, ref=here)
        assert sorted(got) == sorted([*answered, b"back"]), "each once, and nothing that was refused"


@pytest.mark.slow
async def test_closing_does_not_wait_for_a_database_that_is_down_and_the_log_has_the_rest(
    servers: Servers, urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    async with opened(urls, redis_server.url, tmp_path, drain_ms=500) as store:
        there, here = await two_queues(store)
        for number in range(20):
            await put(store, b"%d" % number, ref=here)
            await put(store, b"%d" % number, ref=there)
        await asyncio.to_thread(servers[1].stop, signal.SIGQUIT)
        began = time.monotonic()
    assert time.monotonic() - began < 15
    redis_server.flush()
    # It opens without that database, and has what is on the other.
    async with opened(urls, redis_server.url, tmp_path, drain_ms=500, flush_interval_ms=10) as store:
        assert len(await take(store, ref=there)) == 20
        await asyncio.to_thread(servers[1].start)
        got: list[bytes] = []
        async with asyncio.timeout(60):
            while len(got) < 20:
                try:
                    got += await take(store, ref=here)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
        assert got == [b"%d" % number for number in range(20)]
    async with opened(urls, redis_server.url, tmp_path) as store:
        assert await take(store, ref=here) == []
