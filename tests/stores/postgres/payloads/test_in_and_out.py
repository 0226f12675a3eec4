"""Large payloads on PostgreSQL come out as they went in, go wherever their message goes and end with it; a reading
mixes no two of them."""

import hashlib
from random import Random
from typing import Any

import pytest

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.message import JSON, Draft, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import EVERYTHING, ClaimRequest, Edit, Move, Purge, Redrive, Settle
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.payloads.pieces import PIECE_BYTES, PIECES_ABOVE
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.operations import message_moves
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
    reader_of,
    settle,
    sweep,
    upload,
)

# --- In and out ------------------------------------------------------------------------------------------------------


async def test_a_payload_much_larger_than_a_piece_comes_out_as_it_went_in(urls: list[str]) -> None:
    block, blocks = Random(1).randbytes(1 << 20), 32
    sent, received, parts = hashlib.sha256(), hashlib.sha256(), 0
    async with opened(urls) as store:
        writer = await store.payloads.stage(REF, Draft(payload=b""), now_ms(), auto_create=True)
        for _ in range(blocks):
            await writer.write(block)
            sent.update(block)
        await end(store, writer)
        assert (await store.counts(*REF, now_ms())).bytes == blocks << 20
        delivery = await claim(store)
        async for part in await reader_of(store, delivery):
            received.update(part)
            parts += 1
            assert len(part) <= PIECE_BYTES
        assert parts == (blocks << 20) // PIECE_BYTES
        assert received.digest() == sent.digest()
        await settle(store, Settle.ACK, delivery)
        assert (await store.counts(*REF, now_ms())).bytes == 0
        await sweep(store)
        assert await kept(urls) == NOTHING


async def test_a_payload_that_came_in_parts_outlives_its_server(urls: list[str]) -> None:
    async with opened(urls) as store:
        enqueued = await upload(store, headers={"kind": "large"})
    async with opened(urls) as store:
        await sweep(store)
        delivery = await claim(store)
        assert (delivery.snowflake, delivery.headers) == (enqueued.snowflake, {"kind": "large"})
        assert await read(store, delivery) == PAYLOAD
        assert await kept(urls) == ONE


async def test_a_claim_that_does_not_stream_gets_the_payload_whole(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        delivery = await claim(store, streams=False)
        assert (delivery.payload, delivery.pieces) == (PAYLOAD, None)
        await settle(store, Settle.NACK, delivery, final=True)
        found = await store.get(REF, delivery.snowflake)
        assert found is not None
        assert found.life.state is State.FAILED
        assert (found.envelope.payload, found.envelope.bytes) == (b"", len(PAYLOAD))


async def test_a_payload_that_came_whole_goes_out_in_parts(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.enqueue(REF, [Draft(payload=PAYLOAD), Draft(payload=b"small")], now_ms(), auto_create=True)
        assert await kept(urls) == ONE
        delivery = await claim(store)
        assert await read(store, delivery) == PAYLOAD
        assert (await claim(store)).payload == b"small"


async def test_a_payload_that_fits_is_kept_with_its_message(urls: list[str]) -> None:
    async with opened(urls) as store:
        await store.enqueue(REF, [Draft(payload=bytes(PIECES_ABOVE))], now_ms(), auto_create=True)
        assert await kept(urls) == NOTHING
        delivery = await claim(store)
        assert (len(delivery.payload), delivery.pieces) == (PIECES_ABOVE, None)


async def test_a_payload_is_read_from_any_byte_on(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        delivery = await claim(store)
        assert delivery.pieces is not None
        for start in (1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, *range(len(PAYLOAD) - 1, len(PAYLOAD) + 2)):
            reader = await store.payloads.read(REF, delivery.snowflake, delivery.pieces, start)
            assert b"".join([part async for part in reader]) == PAYLOAD[start:], start


async def test_of_a_group_large_payloads_come_in_order_and_whole(urls: list[str]) -> None:
    async with opened(urls) as store:
        writer, _ = await begin(store, group="g")
        await store.enqueue(REF, [Draft(payload=b"before", group="g")], now_ms(), auto_create=True)
        await end(store, writer, group="g")
        first = await claim(store, streams=False)
        assert first.payload == b"before"
        await settle(store, Settle.ACK, first)
        assert (await claim(store, streams=False)).payload == PAYLOAD


async def test_a_ledger_reads_large_payloads_again(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        for streams in (True, False):
            claims = await store.claim(REF, [ClaimRequest(ledger=("c", 1), streams=streams, lease_ms=60_000)], now_ms())
            [delivery] = claims.per_ask[0]
            assert (await read(store, delivery) if streams else delivery.payload) == PAYLOAD
        [entry] = await store.ledgers.entries(REF, "c", now_ms())
        assert entry.deliveries[0].payload == PAYLOAD
        await store.ledgers.ack(REF, "c", 1, now_ms())
        await sweep(store)
        assert await kept(urls) == NOTHING


# --- Wherever its message goes ---------------------------------------------------------------------------------------


async def test_a_payload_goes_to_the_dead_letters_and_back(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        await settle(store, Settle.NACK, await claim(store), final=True)
        assert (await store.alter(REF, Redrive(), EVERYTHING, None, 10, now_ms())).changed == 1
        await sweep(store)
        assert await read(store, await claim(store)) == PAYLOAD
        assert await kept(urls) == ONE


async def test_a_payload_moved_to_a_queue_of_its_database_stays_where_it_lies(urls: list[str]) -> None:
    near = next(ref for n in range(99) if slot_of(*(ref := QueueRef("acme", f"near{n}"))) % 2 == HERE)
    async with opened(urls) as store:
        await upload(store)
        await store.directory.create_queue(near, now_ms())
        assert (await store.alter(REF, Move(to=near), EVERYTHING, None, 10, now_ms())).changed == 1
        await store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms())
        await sweep(store)
        assert await kept(urls) == ONE
        assert await read(store, await claim(store, near), near) == PAYLOAD


async def test_a_payload_moved_to_another_database_is_there_and_here_no_longer(urls: list[str]) -> None:
    """And back, several times: nothing of an earlier stay is mixed with it, or deleted from under it."""
    async with opened(urls) as store:
        enqueued = await upload(store)
        await store.enqueue(REF, [Draft(payload=b"small")], now_ms(), auto_create=True)
        await store.directory.create_queue(AWAY, now_ms())
        for source, target in ((REF, AWAY), (AWAY, REF), (REF, AWAY)):
            assert (await store.alter(source, Move(to=target), EVERYTHING, None, 10, now_ms())).changed == 2
        await sweep(store)
        assert await kept(urls) == ONE[::-1]
        delivery = await claim(store, AWAY)
        assert delivery.snowflake == enqueued.snowflake
        assert await read(store, delivery, AWAY) == PAYLOAD
        assert (await claim(store, AWAY)).payload == b"small"


async def test_a_move_that_is_cut_off_leaves_the_payload_where_it_was(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(Exception):
        pass

    async def cut(*_: Any) -> None:
        raise Cut

    async with opened(urls) as store:
        await upload(store)
        await store.directory.create_queue(AWAY, now_ms())
        with monkeypatch.context() as patched:
            patched.setattr(store._moves, "_decide", cut)
            with pytest.raises(Cut):
                await store.alter(REF, Move(to=AWAY), EVERYTHING, None, 10, now_ms())
        assert await kept(urls) == [(5, 0), (5, 0)]
        await sweep(store)
        assert await kept(urls) == [(5, 0), (5, 0)], "it may be at work still"
        monkeypatch.setattr(message_moves, "_ABANDONED_S", 0.0)
        await sweep(store)
        assert await kept(urls) == ONE
        assert await read(store, await claim(store)) == PAYLOAD


async def test_a_move_that_was_called_off_writes_no_more_pieces(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        await store.directory.create_queue(AWAY, now_ms())
        fetch = store._cluster.shards[1 - HERE].fetch

        async def slow(sql: str, *args: Any) -> Any:
            if "UPDATE arrivals" in sql and args[2] == 2:
                await fetch("UPDATE arrivals SET at = 'epoch'")
                await store._moves.resolve(store._cluster.shards[1 - HERE], now_ms(), Notices())
            return await fetch(sql, *args)

        store._cluster.shards[1 - HERE].fetch = slow
        with pytest.raises(StoreUnavailable, match="cancelled"):
            await store.alter(REF, Move(to=AWAY), EVERYTHING, None, 10, now_ms())
        store._cluster.shards[1 - HERE].fetch = fetch
        await sweep(store)
        assert await kept(urls) == ONE
        assert await read(store, await claim(store)) == PAYLOAD


@pytest.mark.parametrize("how", ["ack", "remove", "purge", "ttl", "queue"])
async def test_whatever_ends_a_message_ends_its_payload(urls: list[str], how: str) -> None:
    async with opened(urls) as store:
        await upload(store, ttl_ms=1 if how == "ttl" else None)
        match how:
            case "ack":
                await settle(store, Settle.ACK, await claim(store))
            case "remove":
                await settle(store, Settle.REMOVE, await claim(store))
            case "purge":
                await store.alter(REF, Purge(), EVERYTHING, None, 10, now_ms())
            case "ttl":
                await sweep(store)
                assert await kept(urls) == ONE, "it is among the dead letters"
                await store.alter(REF, Purge(state=State.FAILED), EVERYTHING, None, 10, now_ms())
            case "queue":
                await store.directory.change_queue(REF, QueueChange(drain_until=now_ms()), now_ms())
        await sweep(store)
        assert await kept(urls) == NOTHING


# --- Reading ---------------------------------------------------------------------------------------------------------


async def test_reading_ends_with_an_error_once_the_message_is_gone(urls: list[str]) -> None:
    async with opened(urls) as store:
        await upload(store)
        delivery = await claim(store)
        reader = await reader_of(store, delivery)
        assert await anext(reader) == PAYLOAD[:PIECE_BYTES]
        await settle(store, Settle.ACK, delivery)
        with pytest.raises(MessageNotFound):
            await anext(reader)


@pytest.mark.parametrize("payload", [b"small", PAYLOAD[::-1]], ids=["small", "as large"])
async def test_reading_never_mixes_a_payload_with_the_one_put_in_its_stead(urls: list[str], payload: bytes) -> None:
    async with opened(urls) as store:
        await upload(store)
        delivery = await claim(store)
        reader = await reader_of(store, delivery)
        await anext(reader)
        await settle(store, Settle.NACK, delivery, final=True)
        edit = Edit(id=delivery.snowflake, payload=payload, content_type=JSON)
        await store.alter(REF, Redrive(edit=edit), EVERYTHING, None, 10, now_ms())
        with pytest.raises(MessageNotFound):
            await anext(reader)
        await sweep(store)
        again = await claim(store, streams=False)
        assert (again.payload, again.content_type) == (payload, JSON)
        assert (await store.counts(*REF, now_ms())).bytes == len(payload)
        assert await kept(urls) == (ONE if len(payload) > PIECES_ABOVE else NOTHING)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM pieces WHERE number = 3",
        "UPDATE pieces SET piece = set_byte(piece, 7, 255 - get_byte(piece, 7)) WHERE number = 3",
    ],
    ids=["missing", "changed"],
)
async def test_a_damaged_payload_is_never_handed_out_to_its_end(urls: list[str], damage: str) -> None:
    async with opened(urls) as store:
        await upload(store)
        delivery = await claim(store)
        async with connected(urls[HERE]) as connection:
            await connection.execute("SET search_path TO holdfast")
            await connection.execute(damage)
        reader, got = await reader_of(store, delivery), bytearray()

        async def read_on() -> None:
            async for part in reader:
                got.extend(part)

        with pytest.raises(StoreUnavailable, match="damaged"):
            await read_on()
        assert len(got) < len(PAYLOAD)
