"""Large payloads on their way in and out of a PostgreSQL store, and what the databases keep of them."""

from random import Random
from typing import Any

from holdfast.clock import SystemClock
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.contract import PayloadReader, PayloadWriter
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster.slots import slot_of
from tests.postgres.landing_calls import connected

REF = QueueRef("acme", "mail")
HERE = slot_of(*REF) % 2
# On the other database, of the same tenant.
AWAY = next(
    ref for number in range(99) if slot_of(*(ref := QueueRef("acme", f"away{number}"))) % 2 != slot_of(*REF) % 2
)
# Neither a multiple of a piece nor of the parts below.
PAYLOAD = Random(0).randbytes((1 << 20) + 12_345)
PART = 100_000


def now_ms() -> int:
    return SystemClock().now_ms()


async def begin(
    store: PostgresStore, payload: bytes = PAYLOAD, ref: QueueRef = REF, **options: Any
) -> tuple[PayloadWriter, Draft]:
    """A payload that has come but for its last part."""
    draft = Draft(payload=b"", **options)
    writer = await store.payloads.stage(ref, draft, now_ms(), auto_create=True)
    for start in range(0, len(payload), PART):
        await writer.write(payload[start : start + PART])
    return writer, draft


async def end(store: PostgresStore, writer: PayloadWriter, ref: QueueRef = REF, **options: Any) -> Enqueued:
    draft = Draft(payload=b"", pieces=await writer.finish(), **options)
    try:
        [enqueued] = await store.enqueue(ref, [draft], now_ms(), auto_create=True)
        return enqueued
    finally:
        writer.abandon()


async def upload(store: PostgresStore, payload: bytes = PAYLOAD, ref: QueueRef = REF, **options: Any) -> Enqueued:
    writer, _ = await begin(store, payload, ref, **options)
    return await end(store, writer, ref, **options)


async def claim(store: PostgresStore, ref: QueueRef = REF, *, streams: bool = True) -> Delivery:
    claims = await store.claim(ref, [ClaimRequest(streams=streams, lease_ms=60_000)], now_ms())
    [delivery] = claims.per_ask[0]
    return delivery


async def reader_of(store: PostgresStore, delivery: Delivery, ref: QueueRef = REF) -> PayloadReader:
    assert delivery.pieces is not None
    assert delivery.payload == b""
    return await store.payloads.read(ref, delivery.snowflake, delivery.pieces)


async def read(store: PostgresStore, delivery: Delivery, ref: QueueRef = REF) -> bytes:
    return b"".join([part async for part in await reader_of(store, delivery, ref)])


async def settle(store: PostgresStore, settle: Settle, delivery: Delivery, ref: QueueRef = REF, **how: Any) -> None:
    [result] = await store.settle(ref, [Verdict(settle=settle, receipt=delivery.receipt, **how)], now_ms())
    assert result.ok


async def kept(urls: list[str]) -> list[tuple[int, int]]:
    """On each database: how many pieces, and how many rows say that a payload is on its way in or out."""
    found = []
    for url in urls:
        async with connected(url) as connection:
            rows = [await connection.fetchval(f"SELECT count(*) FROM holdfast.{name}") for name in ("pieces", "stages")]
            found.append((rows[0], rows[1]))
    return found


async def sweep(store: PostgresStore) -> None:
    while (await store.sweep(1_000, now_ms())).changed:
        pass


NOTHING = [(0, 0), (0, 0)]
ONE = [(5, 0), (0, 0)] if HERE == 0 else [(0, 0), (5, 0)]
