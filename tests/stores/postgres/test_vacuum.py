"""The space of removed messages is reclaimed while the store is in use."""

from collections.abc import Iterator

import pytest

from holdfast.clock import SystemClock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster import vacuum
from holdfast.testing import ManualClock
from tests.postgres.landing_calls import REF, connected, opened
from tests.postgres.server import PostgresServer


@pytest.fixture
def urls(postgres: PostgresServer) -> Iterator[list[str]]:
    return postgres.make_databases("vacuumed")


async def work(store: PostgresStore, number: int) -> None:
    """Enqueue, claim and ack this number of messages."""
    now_ms = SystemClock().now_ms()
    await store.enqueue(REF, [Draft(payload=b"x")] * number, now_ms, auto_create=True)
    [given] = (await store.claim(REF, [ClaimRequest(limit=number)], now_ms)).per_ask
    verdicts = [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in given]
    assert all(result.ok for result in await store.settle(REF, verdicts, now_ms))


@pytest.mark.spec("5.3")
async def test_a_database_is_vacuumed_after_a_number_of_claims(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "CLAIMED", 200)
    async with opened(urls, clock=ManualClock()) as store, connected(urls[0]) as connection:
        await connection.execute("ALTER TABLE items SET (autovacuum_enabled = off)")
        [shard] = store._cluster.shards
        await work(store, 100)
        assert not await store._vacuum.vacuum_once(shard), "too few"
        await work(store, 100)
        size = await connection.fetchval("SELECT pg_relation_size('items')")
        assert await store._vacuum.vacuum_once(shard)
        assert not await store._vacuum.vacuum_once(shard), "once"
        for _ in range(2):
            await work(store, 100)
        assert await connection.fetchval("SELECT pg_relation_size('items')") <= size, "the room is used again"


async def test_a_large_table_is_vacuumed_less_often(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "CLAIMED", 100)
    now_ms = SystemClock().now_ms()
    async with opened(urls, clock=ManualClock()) as store:
        [shard] = store._cluster.shards
        await store.enqueue(REF, [Draft(payload=b"x")] * 400, now_ms, auto_create=True)
        await work(store, 100)
        assert await store._vacuum.vacuum_once(shard)
        await work(store, 200)
        assert not await store._vacuum.vacuum_once(shard), "a vacuum would read the index of 400"
        for _ in range(5):
            await work(store, 200)
        assert await store._vacuum.vacuum_once(shard)


@pytest.mark.spec("5.3")
def test_the_claims_between_two_vacuums_rise_with_the_root_of_the_rows() -> None:
    assert vacuum.claims_between(-1) == vacuum.claims_between(10_000) == vacuum.CLAIMED, "-1: not known yet"
    assert vacuum.claims_between(1_000_000) == 50_000
    assert vacuum.claims_between(100_000_000) == 500_000


async def test_a_database_that_cannot_be_vacuumed_is_tried_again(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "CLAIMED", 1)
    async with opened(urls, clock=ManualClock()) as store:
        [shard] = store._cluster.shards
        await work(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(shard, "url", "postgres://nobody@/nothing?host=/nowhere")
            with pytest.raises(StoreUnavailable):
                await store._vacuum.vacuum_once(shard)
        assert await store._vacuum.vacuum_once(shard)
