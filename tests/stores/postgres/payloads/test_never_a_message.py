"""Large payloads on PostgreSQL that never become a message: they count for nothing, nothing is left of them, and quotas
refuse them while they come."""

import asyncio

import pytest

from holdfast.model.errors import Draining, OverQuota, PayloadTooLarge, QueueNotFound, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.model.requests import ClaimRequest, Settle
from holdfast.stores.contract import PayloadWriter
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.payloads import staging
from holdfast.stores.values import QueueChange
from tests.postgres.landing_calls import connected, opened
from tests.stores.postgres.payloads.uploads import (
    AWAY,
    HERE,
    NOTHING,
    ONE,
    PAYLOAD,
    REF,
    begin,
    claim,
    end,
    kept,
    now_ms,
    read,
    settle,
    sweep,
    upload,
)
from tests.waiting import until


async def write_all(writer: PayloadWriter) -> None:
    await writer.write(PAYLOAD)
    await writer.finish()


# --- What never becomes a message ------------------------------------------------------------------------------------


async def test_an_upload_counts_for_nothing_until_it_is_enqueued(urls: list[str]) -> None:
    async with opened(urls) as store:
        writer, _ = await begin(store)
        await sweep(store)
        assert await kept(urls) != NOTHING, "it is under way"
        assert await store.directory.list_queues("acme") == []
        writer.abandon()


async def test_what_was_written_of_an_upload_that_is_given_up_goes(urls: list[str]) -> None:
    async with opened(urls) as store:
        writer, _ = await begin(store)
        writer.abandon()
        writer.abandon()
        await _until_given_up(store)
        await sweep(store)
        assert await kept(urls) == NOTHING
        with pytest.raises(StoreUnavailable, match="send it again"):
            await writer.write(PAYLOAD)


async def _until_given_up(store: PostgresStore) -> None:
    while not await store.payloads.has_work(store._cluster.shards[HERE]):
        pass


async def test_what_a_killed_server_left_is_not_to_be_seen_and_is_swept(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(urls) as dead:
        writer, _ = await begin(dead)
        dead.payloads._writers.clear()  # from here on it says nothing of it
        async with opened(urls) as store:
            assert await store.directory.list_queues("acme") == []
            await sweep(store)
            assert await kept(urls) != NOTHING, "a server may be slow"
            monkeypatch.setattr(staging, "SILENT_S", 0.0)
            await sweep(store)
            assert await kept(urls) == NOTHING
            with pytest.raises(StoreUnavailable, match="send it again"):
                await end(dead, writer)
            assert await store.directory.list_queues("acme") == []


async def test_an_upload_is_kept_while_its_server_lives_however_slow_it_is(urls: list[str]) -> None:
    async with opened(urls) as store:
        writer, _ = await begin(store)
        async with connected(urls[HERE]) as connection:
            await connection.execute("UPDATE holdfast.stages SET at = 'epoch'")
            await store.payloads.report_once()
            await sweep(store)
        await end(store, writer)
        assert await read(store, await claim(store)) == PAYLOAD


async def test_an_enqueue_that_fails_leaves_no_message_and_its_payload_is_swept(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.enqueue(REF, [Draft(payload=b"held")], now_ms(), auto_create=True)
        await claim(store)
        writer, _ = await begin(store)
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        with pytest.raises(Draining):
            await end(store, writer)
        await _until_given_up(store)
        await sweep(store)
        assert await kept(urls) == NOTHING


async def test_an_upload_whose_caller_leaves_while_it_is_enqueued_is_a_whole_message_or_nothing(
    urls: list[str],
) -> None:
    async with opened(urls) as store:
        assert store._driver.link is not None
        always = len(store._driver.link._background)
        await store.directory.create_queue(REF, now_ms())
        for turns in range(0, 40, 4):
            writer, _ = await begin(store)
            draft = Draft(payload=b"", pieces=await writer.finish())
            enqueue = asyncio.create_task(store.enqueue(REF, [draft], now_ms(), auto_create=True))
            for _ in range(turns):
                await asyncio.sleep(0)
            enqueue.cancel()
            writer.abandon()
            await asyncio.gather(enqueue, return_exceptions=True)
            # An enqueue goes on though its caller has left, and so does the giving up behind it.
            await until(lambda: not (store._driver.link._calls or len(store._driver.link._background) > always))
            await sweep(store)
            claims = await store.claim(REF, [ClaimRequest(streams=True, lease_ms=60_000)], now_ms())
            for delivery in claims.per_ask[0]:
                assert await read(store, delivery) == PAYLOAD
                await settle(store, Settle.ACK, delivery)
            await sweep(store)
            assert await kept(urls) == NOTHING


async def test_a_duplicate_is_answered_with_the_first_and_its_payload_dropped(urls: list[str]) -> None:
    async with opened(urls) as store:
        first = await upload(store, key="order-7")
        again = await upload(store, key="order-7")
        assert (again.snowflake, again.duplicate) == (first.snowflake, True)
        await _until_given_up(store)
        await sweep(store)
        assert await kept(urls) == ONE
        assert await read(store, await claim(store)) == PAYLOAD


async def test_a_sweep_deletes_a_bounded_part_and_the_next_continues(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_DROP", 2)
    async with opened(urls) as store:
        await upload(store)
        await settle(store, Settle.ACK, await claim(store))
        left = []
        for _ in range(4):
            await store.sweep(1, now_ms())
            left.append((await kept(urls))[HERE])
        assert left == [(3, 1), (1, 1), (0, 0), (0, 0)]


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [False, True], ids=["new queue", "known queue"])
async def test_quotas_refuse_while_the_payload_comes(urls: list[str], is_known: bool) -> None:
    cases: list[tuple[Quotas, type[Exception]]] = [
        (Quotas(max_bytes=len(PAYLOAD) - 1), OverQuota),
        (Quotas(max_message_bytes=len(PAYLOAD) - 1), PayloadTooLarge),
        (Quotas(max_messages=0), OverQuota),
    ]
    async with opened(urls) as store:
        if is_known:
            await store.directory.create_queue(REF, now_ms())
        for quotas, error in cases:
            await store.directory.put_tenant("acme", TenantConfig(quotas=quotas))
            writer = await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=True)
            with pytest.raises(error):
                await write_all(writer)
            writer.abandon()


async def test_uploads_of_one_tenant_do_not_fill_the_disk_beside_its_quota(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_bytes=2 * len(PAYLOAD) - 1)))
        first, _ = await begin(store)
        await first.finish()
        second = await store.payloads.stage(AWAY, Draft(payload=b""), now_ms(), auto_create=True)
        with pytest.raises(OverQuota):
            await write_all(second)
        second.abandon()
        await upload(store, ref=QueueRef("another", "mail"))
        await end(store, first)
        assert (await store.counts(*REF, now_ms())).bytes == len(PAYLOAD)


async def test_a_duplicate_is_answered_though_the_quota_is_used_up(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_bytes=len(PAYLOAD))))
        first = await upload(store, key="order-7")
        assert (await upload(store, key="order-7")).snowflake == first.snowflake


async def test_an_upload_to_a_queue_that_takes_nothing_is_refused_before_it_begins(urls: list[str]) -> None:
    async with opened(urls) as store:
        with pytest.raises(QueueNotFound):
            await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=False)
        await store.directory.put_tenant("acme", TenantConfig(quotas=Quotas(max_queues=0)))
        with pytest.raises(OverQuota):
            await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=True)
        await store.directory.put_tenant("acme", TenantConfig())
        await store.directory.create_queue(REF, now_ms())
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms() + 60_000), now_ms())
        with pytest.raises(Draining):
            await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=True)
