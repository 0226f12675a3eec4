"""A stopped server or a silent database delays nobody else for long."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.database import LockTimeout, connect
from holdfast.stores.postgres.queues.queue_turns import QueueTurns
from tests.postgres.server import PostgresServer
from tests.worker.passing import until as wait_until

pytestmark = [pytest.mark.slow, pytest.mark.services]

PATIENCE_S = 30.0
LOCK = "SELECT 1 FROM holdfast.queues WHERE queue = $1 FOR UPDATE"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module's own: it is stopped in the middle of calls."""
    made = PostgresServer()
    made.start()
    yield made
    made.close()


@pytest.fixture
def url(server: PostgresServer) -> str:
    [url] = server.make_databases("bounded")
    return url


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(url, pg_lock_timeout="300ms", **options) as hf:
        yield hf


def core_of(hf: AsyncHoldfast) -> Core:
    return cast(Embedded, hf._transport).core


@asynccontextmanager
async def stopped_server(url: str, queue: str) -> AsyncIterator[None]:
    """A server that has locked a queue in a transaction and hangs, as after SIGSTOP."""
    bounds = ConnectionBounds()
    connection = await connect(url, bounds.session_settings())
    try:
        await connection.execute("BEGIN")
        await connection.fetch(LOCK, queue)
        yield
    finally:
        connection.terminate()


async def test_calls_of_a_queue_that_a_stopped_server_has_locked_give_up_with_its_name(url: str) -> None:
    async with opened(url) as hf:
        queue = hf.queue("held")
        await queue.enqueue(b"first", group="g")
        async with stopped_server(url, "held"):
            with pytest.raises(StoreUnavailable, match=r"queue default/held is locked: gave up after waiting 300 ms"):
                await queue.enqueue(b"second", group="g")


async def test_calls_of_other_queues_get_connections_while_many_wait_for_a_locked_queue(url: str) -> None:
    async with opened(url, pg_pool=4) as hf:
        held, free = hf.queue("held"), hf.queue("free")
        await held.enqueue(b"first", group="g")
        await free.enqueue(b"first")
        async with stopped_server(url, "held"):
            waiting = [asyncio.create_task(held.enqueue(b"", group="g")) for _ in range(12)]
            await wait_until(lambda: has_lock_waits(url))
            for _ in range(20):
                await free.enqueue(b"")
                [message] = await free.claim()
                await message.ack()
            assert not all(task.done() for task in waiting)
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, StoreUnavailable) for each in results)


async def has_lock_waits(url: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
    finally:
        await connection.close()


async def test_a_queue_is_free_again_once_the_database_has_ended_the_stopped_transaction(url: str) -> None:
    async with opened(url) as hf:
        queue = hf.queue("held")
        await queue.enqueue(b"first", group="g")
        async with stopped_server(url, "held"):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await queue.enqueue(b"second", group="g")
                        break
                    except StoreUnavailable:
                        continue
        assert (await queue.stats()).ready == 2


async def test_readiness_and_metrics_name_a_locked_queue_until_a_call_goes_through(url: str) -> None:
    async with opened(url) as hf:
        queue = hf.queue("held")
        await queue.enqueue(b"first", group="g")
        core = core_of(hf)
        assert await core.check_store() == []
        async with stopped_server(url, "held"):
            with pytest.raises(StoreUnavailable):
                await queue.enqueue(b"second", group="g")
            assert await core.check_store() == ["queue default/held is locked by another transaction"]
            figures = (await core.store.figures()).connections
            assert figures is not None
            assert figures.lock_timeouts == 1
        await queue.enqueue(b"second", group="g")
        assert await core.check_store() == []


async def test_calls_to_a_database_without_a_sign_of_life_end_and_later_ones_are_refused_at_once(
    server: PostgresServer, url: str
) -> None:
    async with opened(url) as hf:
        queue = hf.queue("q")
        await queue.enqueue(b"before")
        pids = processes_of(server)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(StoreUnavailable, match=r"no sign of life.*the outcome is unknown"):
                    await queue.enqueue(b"lost")
            with pytest.raises(StoreUnavailable, match=r"no sign of life|cannot connect"):
                await queue.enqueue(b"refused")
            [problem] = (await core_of(hf).store.figures()).problems
            assert "holdfast@" in problem
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

        async def is_back() -> bool:
            try:
                await queue.enqueue(b"after")
            except StoreUnavailable:
                return False
            return True

        await wait_until(is_back)
        assert (await core_of(hf).store.figures()).problems == []


def processes_of(server: PostgresServer) -> list[int]:
    """The server and its children."""
    assert server.process is not None
    parent = server.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii")
    return [parent, *map(int, children.split())]


async def test_a_call_waits_no_longer_for_a_connection_than_a_statement_may_take(url: str) -> None:
    async with opened(url, pg_pool=2, pg_statement_timeout="500ms") as hf:
        await hf.queue("q").enqueue(b"")
        [shard] = core_of(hf).store._cluster.shards  # type: ignore[attr-defined]  # the store's own pool
        held = [await shard.pool.acquire() for _ in range(2)]
        try:
            with pytest.raises(StoreUnavailable, match=r"all 2 connections to .* were in use for 0.5 s"):
                await hf.queue("q").stats()
        finally:
            for connection in held:
                shard.pool.give_back(connection)
        assert (await hf.queue("q").stats()).ready == 1


async def test_one_call_at_a_time_tries_a_locked_queue_and_the_others_are_refused_at_once() -> None:
    turns, ref = QueueTurns(ConnectionBounds(connections=4)), QueueRef("acme", "mail")
    gate = asyncio.Event()

    async def locked() -> None:
        raise LockTimeout("gave up")

    async def held() -> str:
        await gate.wait()
        return "done"

    with pytest.raises(LockTimeout, match="queue acme/mail is locked: gave up"):
        await turns.run(ref, locked)
    first = asyncio.create_task(turns.run(ref, held))
    await asyncio.sleep(0)
    with pytest.raises(LockTimeout):
        await turns.run(ref, held)
    gate.set()
    assert await first == "done"
    assert turns.locked_queues() == []
    assert await turns.run(ref, held) == "done"


async def test_no_turn_is_lost_by_a_call_that_leaves_while_it_waits() -> None:
    turns, ref = QueueTurns(ConnectionBounds(connections=3)), QueueRef("acme", "mail")
    gate = asyncio.Event()
    first = asyncio.create_task(turns.run(ref, gate.wait))
    await asyncio.sleep(0)
    leaving, staying = (asyncio.create_task(turns.run(ref, gate.wait)) for _ in range(2))
    await asyncio.sleep(0)
    gate.set()
    leaving.cancel()
    assert await asyncio.gather(first, staying) == [True, True]
    assert leaving.cancelled() or leaving.done()
