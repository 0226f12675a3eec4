"""Copy all rows of a queue to another database while nothing changes them, in bounded steps that can be resumed."""

from functools import partial
from typing import Any

from holdfast.stores.payloads.pieces import piece_count
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.schema.statements import SQL, WHOLE

# Limits of one step.
_ROWS = 2_000
_BYTES = 16 << 20

_IN_PIECES = (
    "SELECT id, piece_place, piece_size FROM items "
    "WHERE queue_key = $1 AND id > $2 AND piece_place IS NOT NULL ORDER BY id LIMIT $3"
)
# Number of pieces that one statement deletes.
_DROP = 64

_KEYS = ("key", "id", "correlation_id", "ends_at")
_SMALL = {
    "ledgers": ("consumer", "number", "claimed_at", "receipts"),
    "ledger_ends": ("consumer", "closed_upto"),
    "schedules": ("name", "body", "next_at"),
}


async def copy_rows(source: PostgresDatabase, key: int, target: PostgresDatabase, new_key: int) -> int:
    """Copy all rows of a queue, and return the number of its messages. A repeated call goes on where the previous one
    ended."""
    await _copy_messages(source, key, target, new_key)
    await _copy_pieces(source, key, target)
    await _copy_keys(source, key, target, new_key)
    for table, columns in _SMALL.items():
        rows = await source.fetch(f"SELECT {', '.join(columns)} FROM {table} WHERE queue_key = $1", key)

        async def replace(connection: Any, table: str = table, columns: Any = columns, rows: Any = rows) -> None:
            await connection.execute(f"DELETE FROM {table} WHERE queue_key = $1", new_key)
            await _put(connection, table, columns, [(new_key, *row) for row in rows])

        await target.step(replace)
    return (await count_rows(source, key))["items"]


async def _copy_messages(source: PostgresDatabase, key: int, target: PostgresDatabase, new_key: int) -> None:
    """Copy messages in the order of their ids, so that the last copied id tells where to go on."""
    [row] = await target.fetch("SELECT coalesce(max(id), -1) AS id FROM items WHERE queue_key = $1", new_key)
    after = row["id"]
    sizes = "SELECT id, bytes FROM items WHERE queue_key = $1 AND id > $2 ORDER BY id LIMIT $3"
    whole = (
        f"SELECT {', '.join(WHOLE)} FROM items WHERE queue_key = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT {_ROWS}"
    )
    while step := await source.fetch(sizes, key, after, _ROWS):
        size, last = 0, step[0]["id"]
        for each in step:
            size += each["bytes"]
            if size > _BYTES:
                break
            last = each["id"]
        rows = [(new_key, *row) for row in await source.fetch(whole, key, after, last)]

        async def put(connection: Any, rows: list[tuple[Any, ...]] = rows) -> None:
            await _put(connection, "items", WHOLE, rows)

        await target.step(put)
        after = last


async def _copy_pieces(source: PostgresDatabase, key: int, target: PostgresDatabase) -> None:
    """Copy payloads in pieces. Their messages come first, so that a cancelled copy can find by them the pieces to
    delete; no reader sees the messages yet."""
    after = -1
    while step := await source.fetch(_IN_PIECES, key, after, _ROWS):
        for row in step:
            [there] = await target.fetch("SELECT count(*) FROM pieces WHERE place = $1", row["piece_place"])
            for number in range(there["count"], piece_count(row["piece_size"])):
                [piece] = await source.fetch(SQL["piece"], row["piece_place"], number)
                await target.fetch(SQL["put_piece"], row["piece_place"], number, piece["piece"])
        after = step[-1]["id"]


async def _copy_keys(source: PostgresDatabase, key: int, target: PostgresDatabase, new_key: int) -> None:
    """Copy idempotency keys in order, so that the last copied key tells where to go on."""
    [row] = await target.fetch("SELECT coalesce(max(key), '') AS key FROM seen_keys WHERE queue_key = $1", new_key)
    after = row["key"]
    page = f"SELECT {', '.join(_KEYS)} FROM seen_keys WHERE queue_key = $1 AND key > $2 ORDER BY key LIMIT {_ROWS}"
    while step := await source.fetch(page, key, after):
        rows = [(new_key, *row) for row in step]

        async def put(connection: Any, rows: list[tuple[Any, ...]] = rows) -> None:
            await _put(connection, "seen_keys", _KEYS, rows)

        await target.step(put)
        after = step[-1]["key"]


async def _put(connection: Any, table: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=("queue_key", *columns), schema_name="holdfast")


async def count_rows(shard: PostgresDatabase, key: int) -> dict[str, int]:
    """Return counts and sums that a copy must have too. Idempotency keys are left out: they expire on both sides."""
    counts = {}
    for table, column in (
        ("items", "bytes"),
        ("ledgers", "number"),
        ("ledger_ends", "closed_upto"),
        ("schedules", "0"),
    ):
        [row] = await shard.fetch(
            f"SELECT count(*) AS rows, coalesce(sum({column}), 0)::bigint AS sum FROM {table} WHERE queue_key = $1", key
        )
        counts[table], counts[f"sum of {table}"] = row["rows"], row["sum"]
    [row] = await shard.fetch(
        "SELECT count(*) AS rows, coalesce(sum(octet_length(piece)), 0)::bigint AS sum "
        "FROM items JOIN pieces ON place = piece_place WHERE queue_key = $1 AND piece_place IS NOT NULL",
        key,
    )
    counts["pieces"], counts["sum of pieces"] = row["rows"], row["sum"]
    return counts


async def delete_rows(shard: PostgresDatabase, key: int) -> None:
    """Delete all rows of a queue except its counts. Pieces go before their message, so that none is found here should
    the queue come back."""
    after = -1
    while step := await shard.fetch(_IN_PIECES, key, after, _ROWS):
        for row in step:
            while await shard.use(partial(_drop_some, row["piece_place"])) == _DROP:
                pass
        after = step[-1]["id"]
    some = (
        "DELETE FROM items WHERE queue_key = $1 AND id IN "
        f"(SELECT id FROM items WHERE queue_key = $1 ORDER BY id LIMIT {_ROWS}) RETURNING id"
    )
    while await shard.fetch(some, key):
        pass
    some = (
        "DELETE FROM seen_keys WHERE queue_key = $1 AND key IN "
        f"(SELECT key FROM seen_keys WHERE queue_key = $1 ORDER BY key LIMIT {_ROWS}) RETURNING id"
    )
    while await shard.fetch(some, key):
        pass
    for table in _SMALL:
        await shard.fetch(f"DELETE FROM {table} WHERE queue_key = $1", key)


async def _drop_some(blob_id: int, connection: Any) -> int:
    """Delete some pieces of a payload, and return how many."""
    status = await connection.execute(SQL["drop_pieces"], blob_id, _DROP)
    return int(status.rpartition(" ")[2])
