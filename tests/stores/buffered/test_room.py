"""The fast path on a log whose disk is full: enqueues are refused or go to PostgreSQL, and it is over by itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.buffered.store import BufferedStore
from tests.postgres.server import PostgresServer
from tests.redis.buffered import accepts, opened, put, take
from tests.redis.server import RedisServer
from tests.small_disk import mounted
from tests.worker.passing import until

PATIENCE_S = 30.0
RESERVE = 2 << 20


@pytest.fixture(scope="module")
def urls(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("room")


@pytest.fixture
def small_disk(tmp_path: Path, postgres: PostgresServer, urls: list[str], redis_server: RedisServer) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 4 << 20) as place:
        yield place
    postgres.empty(urls)
    redis_server.flush()


async def until_refused(store: BufferedStore) -> list[bytes]:
    """Enqueue until that is refused; return the payloads that were accepted."""
    accepted: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            payload = b"meanwhile %d" % len(accepted)
            try:
                await put(store, payload)
            except StoreUnavailable:
                return accepted
            accepted.append(payload)


async def until_accepted(store: BufferedStore, payload: bytes) -> None:
    await until(lambda: accepts(store, payload))


@pytest.mark.slow
async def test_a_full_disk_of_the_log_refuses_enqueues_while_claims_and_acks_continue(
    urls: list[str], redis_server: RedisServer, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = small_disk / "other"
    async with opened(urls, redis_server.url, small_disk / "log", low_disk_bytes=RESERVE) as store:
        await put(store, b"first")  # makes the queue
        await put(store, b"logged")
        other.write_bytes(bytes(RESERVE))
        accepted = await until_refused(store)
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match=f"{small_disk / 'log'}.*enqueues are refused"):
                await put(store, b"refused")
        figures = await store.figures()
        assert "enqueues are refused" in (figures.refusal or "")
        assert (figures.refusals or 0) >= 6
        assert (figures.wal_free_bytes or 0) < RESERVE
        assert await take(store) == [b"first", b"logged", *accepted]

        other.unlink()
        await until_accepted(store, b"after")
        assert await take(store) == [b"after"]
        assert (await store.figures()).refusal is None
    names = [record.getMessage() for record in caplog.records]
    assert names.count("enqueues_refused") == 1
    assert names.count("enqueues_accepted_again") == 1


@pytest.mark.slow
async def test_where_enqueues_may_go_to_the_database_a_full_disk_of_the_log_refuses_none(
    urls: list[str], redis_server: RedisServer, small_disk: Path
) -> None:
    terms = {"low_disk_bytes": RESERVE, "on_redis_down": "direct"}
    async with opened(urls, redis_server.url, small_disk / "log", **terms) as store:
        await put(store, b"first")
        (small_disk / "other").write_bytes(bytes(RESERVE))

        async def is_full() -> bool:
            return (await store.figures()).wal_free_bytes is not None and store._room.refusal(1 << 50) is not None

        await until(is_full)
        sent = [b"%d" % number for number in range(10)]
        for payload in sent:
            await put(store, payload)
        assert store._required().buffer.is_empty()
        assert (await store.figures()).refusal is None
        assert await take(store) == [b"first", *sent]
