"""Servers with the fast path: what they do without Redis, and how they end."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer
from tests.server.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.services]

PATIENCE_S = 30.0


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


def serve(store: list[str], redis: RedisServer, wal_dir: Path, *arguments: str) -> Served:
    given = ("--store", ",".join(store), "--redis-url", redis.url, "--wal-dir", wal_dir)
    return Served(*given, *arguments)


@pytest.mark.spec("5.6")
async def test_without_redis_one_server_refuses_cleanly_and_the_other_carries_on(
    postgres: PostgresServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(postgres.make_databases, "gone_a", "gone_b")
    with (
        serve(store, own_redis, tmp_path / "one", "--on-redis-down", "fail") as fails,
        serve(store, own_redis, tmp_path / "other", "--on-redis-down", "direct") as goes_on,
    ):
        body = {"queue": "q", "messages": [{"payload": "before"}]}
        for server in (fails, goes_on):
            for _ in range(2):
                assert (await server.call("/v1/queue/enqueue", body)).status == 200
        own_redis.kill()

        async with asyncio.timeout(PATIENCE_S):
            while True:
                body = {"queue": "q", "messages": [{"payload": "refused"}]}
                refused = await fails.call("/v1/queue/enqueue", body)
                assert refused.status == 503, "with Redis gone nothing is taken, not even once"
                assert refused.json["error"]["code"] == "store_unavailable"
                assert int(refused.headers["retry-after"]) >= 1
                if "on_redis_down is `fail`" in refused.json["error"]["message"]:
                    break
        body = {"queue": "q", "messages": [{"payload": "meanwhile"}]}
        assert (await goes_on.call("/v1/queue/enqueue", body)).status == 200
        # What is there can be claimed and settled by either; what the other has buffered lands within its interval.
        taken: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(taken) < 5:
                claimed = await fails.call("/v1/queue/dequeue", {"queue": "q", "limit": 10, "lease_ms": 30_000})
                receipts = [each["receipt"] for each in claimed.json["messages"]]
                assert (await goes_on.call("/v1/queue/ack", {"queue": "q", "receipts": receipts})).status == 200
                taken += [each["payload"] for each in claimed.json["messages"]]
        assert sorted(taken) == ["before"] * 4 + ["meanwhile"]

        await asyncio.to_thread(own_redis.start)
        body = {"queue": "q", "messages": [{"payload": "after"}]}
        async with asyncio.timeout(PATIENCE_S):
            while (await fails.call("/v1/queue/enqueue", body)).status != 200:
                await asyncio.sleep(0.02)
        # The other may not have seen yet that Redis is back: then it finds the message where it lands.
        claimed = await goes_on.call("/v1/queue/dequeue", {"queue": "q", "limit": 10, "wait_ms": 20_000})
        assert [each["payload"] for each in claimed.json["messages"]] == ["after"]


@pytest.mark.spec("8.7")
async def test_servers_share_a_tenant_s_rate_and_say_whether_they_do(
    postgres: PostgresServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(postgres.make_databases, "rates_a", "rates_b")
    with serve(store, own_redis, tmp_path / "one") as one:
        async with holdfast.open_async(one.url) as hf:
            # So slow that no token comes in while the test runs.
            await hf.tenant("acme").set(limits={"write_ops_per_s": 0.001, "burst_s": 10_000})
            await hf.queue("q", tenant="acme").set_policy()
        with serve(store, own_redis, tmp_path / "other") as other:
            body = {"tenant": "acme", "queue": "q", "messages": [{"payload": 1}]}
            statuses = [(await server.call("/v1/queue/enqueue", body)).status for server in (one, other) * 8]
            assert statuses == [200] * 10 + [429] * 6
            for server in (one, other):
                assert "holdfast_limits_shared 1" in (await server.get("/metrics")).body.decode()
            own_redis.kill()
            async with asyncio.timeout(PATIENCE_S):
                while "holdfast_limits_shared 0" not in (await other.get("/metrics")).body.decode():
                    await asyncio.sleep(0.05)


@pytest.mark.spec("5.7")
async def test_a_server_that_cannot_bring_everything_home_exits_non_zero_and_its_next_start_does(
    own_postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(own_postgres.make_databases, "left")
    grace = ("--shutdown-grace", "600ms", "--flush-interval", "1h", "--flush-batch", "1000")
    try:
        with serve(store, redis_server, tmp_path, *grace) as server:
            for number in range(6):
                body = {"queue": "q", "messages": [{"payload": number}]}
                assert (await server.call("/v1/queue/enqueue", body)).status == 200
            own_postgres.stop(signal.SIGQUIT)
            server.signal()
            assert await asyncio.to_thread(server.end) == 1
        assert "log_not_empty calls=5" in server.log
        assert "Traceback" not in server.log
        redis_server.flush()
        await asyncio.to_thread(own_postgres.start)
        with serve(store, redis_server, tmp_path, *grace) as server:
            async with holdfast.open_async(server.url) as hf:
                assert [each.json() for each in await hf.queue("q").claim(limit=10, lease=30)] == list(range(6))
            server.signal()
            assert await asyncio.to_thread(server.end) == 0, server.log
        assert "a sweep failed" not in server.log, "not even the first, which comes while the log is replayed"
    finally:
        redis_server.flush()


@pytest.mark.spec("5.7")
async def test_a_stopping_server_refuses_new_calls_and_stores_all_that_it_buffered(
    postgres: PostgresServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(postgres.make_databases, "home_a", "home_b")
    late = ("--flush-interval", "1h", "--flush-batch", "1000")
    with serve(store, own_redis, tmp_path / "log", *late) as server:
        for number in range(6):
            body = {"queue": f"q{number % 2}", "messages": [{"payload": number}]}
            assert (await server.call("/v1/queue/enqueue", body)).status == 200
        in_hand = await server.connect()
        whole = b'{"queue": "q0", "messages": [{"payload": 6}]}'
        in_hand.send_head("/v1/queue/enqueue", len(whole))
        in_hand.writer.write(whole[:10])
        await in_hand.writer.drain()
        await server.call("/v1/queue/enqueue", {"messages": []})
        server.signal()

        refused = await server.until_refused()
        assert (refused.status, refused.json["error"]["code"]) == (503, "store_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        in_hand.writer.write(whole[10:])
        assert (await in_hand.answer()).status == 200
        assert await asyncio.to_thread(server.end) == 0, server.log
    own_redis.flush()

    # Another server, with a log of its own, finds everything in the databases.
    with serve(store, own_redis, tmp_path / "another", *late) as server:
        async with holdfast.open_async(server.url) as hf:
            found = [each.json() for name in ("q0", "q1") for each in await hf.queue(name).claim(limit=10, lease=30)]
    assert sorted(found) == list(range(7))
