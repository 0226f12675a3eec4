"""From a server's log into the database: once, whoever does it and however often.

`land` is the only way in for what was answered from a log: the flusher of the server that wrote it, another server
that found it in Redis, a replay after a crash and a flush job all call it, at the same time if need be.

What has landed is written down by its places in the log, in the transaction that stores it. That the ids are unique
would not do: a message that was stored, acked and deleted leaves no id behind, and would come back.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.stores.formats.logged_enqueue import LoggedCall
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.schema.rows import EVENT_NUMBERS, encode_headers, encode_type
from holdfast.stores.postgres.schema.statements import SQL

_COLUMNS = (
    *("queue_key", "id", "priority", "deliver_after", "created_at", "bytes", "is_json", "expires_at"),
    *("content_type", "headers", "ttl_ms", "correlation_id", "max_retries", "payload"),
)
_GONE = "queue deleted"


class LogShard(NamedTuple):
    """Of which opening of which log, and which of its shard_count."""

    node: UUID
    epoch: int
    shard: int


class LandedQueue(NamedTuple):
    """What came to one queue; times by the database's clock."""

    ref: QueueRef
    stored: int
    visible_at: int
    expires_at: int | None
    is_paused: bool


class Landed(NamedTuple):
    queues: list[LandedQueue]
    # Calls that had landed before.
    skipped: int
    # Messages whose queue is being deleted, or is: the journal tells of them.
    dropped: dict[QueueRef, int]
    # The queues' revisions and their tenants', as they are now.
    revisions: dict[QueueRef, tuple[int, int]]
    # Calls whose queue is on another database, or on its way: they have not landed.
    moved: list[tuple[int, LoggedCall]]


async def land(
    connection: Any,
    log_shard: LogShard,
    calls: list[tuple[int, LoggedCall]],
    *,
    span: range | None = None,
    given_now: int | None = None,
    goes_by_slots: bool = True,
) -> Landed:
    """Store `calls`, each with its place in the log_shard, in one transaction.

    `span`: the caller has everything of it, so that places without a call have nothing to store, now or later, and
    count as landed too. The connection's search path is the schema. `goes_by_slots`: the table of slots says which
    queues are this database's; else all of them are.
    """
    async with connection.transaction():
        known, has_table = await _lock(connection, log_shard)
        fresh = [(place, call) for place, call in calls if not _has(known, place)]
        queues, revisions = await _queues(connection, fresh)
        elsewhere: set[QueueRef] = set()
        if goes_by_slots and (unknown := {call.ref for _, call in fresh} - set(queues)):
            elsewhere = await _elsewhere(connection, unknown)
        moved = [each for each in fresh if each[1].ref in elsewhere]
        rows: list[tuple[Any, ...]] = []
        stray: list[LoggedCall] = []
        for _, call in fresh:
            queue = queues.get(call.ref)
            if call.ref in elsewhere:
                continue
            if queue is None or queue["drain_until"] is not None or queue["queue_id"] != call.queue_id:
                stray.append(call)
            else:
                rows.extend(_rows(queue["key"], call))
        landed: list[LandedQueue] = []
        if rows:
            landed = await _store(connection, rows, queues, has_table=has_table, given_now=given_now)
        dropped = await _drop(connection, stray, len(rows)) if stray else {}
        left = {place for place, _ in moved}
        ranges = _without(span, left) if span else [range(place, place + 1) for place, _ in fresh if place not in left]
        if ranges:
            firsts, ends = [each.start for each in ranges], [each.stop for each in ranges]
            await connection.execute(SQL["landed_more"], *log_shard, firsts, ends)
    return Landed(landed, len(calls) - len(fresh), dropped, revisions, moved)


async def note_landed(connection: Any, log_shard: LogShard, places: list[int]) -> None:
    """They have landed on another database, which has it written down."""
    async with connection.transaction():
        await _lock(connection, log_shard)
        await connection.execute(SQL["landed_more"], *log_shard, places, [place + 1 for place in places])


async def landed_numbers(connection: Any, log_shard: LogShard) -> list[range]:
    """What of a log_shard is stored here."""
    places = await connection.fetchval(SQL["landed_of"], *log_shard)
    return [range(each.lower, each.upper) for each in places or ()]


async def _elsewhere(connection: Any, refs: set[QueueRef]) -> set[QueueRef]:
    slots = {ref: slot_of(ref.tenant, ref.queue) for ref in refs}
    gone = {row["slot"] for row in await connection.fetch(SQL["slots_elsewhere"], sorted(set(slots.values())))}
    return {ref for ref, slot in slots.items() if slot in gone}


def _without(span: range, places: set[int]) -> list[range]:
    """The rest of it, in ranges."""
    ranges, first = [], span.start
    for place in sorted(places):
        ranges.append(range(first, place))
        first = place + 1
    ranges.append(range(first, span.stop))
    return [each for each in ranges if each]


async def _lock(connection: Any, log_shard: LogShard) -> tuple[list[Any], bool]:
    row = await connection.fetchrow(SQL["landed"], *log_shard)
    if row is None:
        await connection.execute(SQL["landed_first"], *log_shard)
        row = await connection.fetchrow(SQL["landed"], *log_shard)
    return row["places"], row["has_table"]


def _has(known: list[Any], place: int) -> bool:
    at = bisect_right(known, place, key=lambda each: each.lower)
    return at > 0 and place < known[at - 1].upper


async def _queues(
    connection: Any, calls: list[tuple[int, LoggedCall]]
) -> tuple[dict[QueueRef, Any], dict[QueueRef, tuple[int, int]]]:
    refs = sorted({call.ref for _, call in calls})
    if not refs:
        return {}, {}
    found = await connection.fetch(SQL["landing_queues"], [ref.tenant for ref in refs], [ref.queue for ref in refs])
    queues = {QueueRef(row["tenant"], row["queue"]): row for row in found}
    return queues, {ref: (row["revision"], row["tenant_revision"]) for ref, row in queues.items()}


def _rows(key: int, call: LoggedCall) -> Iterable[tuple[Any, ...]]:
    for each in call.messages:
        yield (
            *(key, each.id, each.priority, each.visible_at, call.enqueued_at, each.bytes, each.is_json),
            *(each.expires_at, encode_type(each.content_type), encode_headers(each.headers), each.ttl_ms),
            *(each.correlation_id, each.max_retries, each.payload),
        )


async def _store(
    connection: Any, rows: list[tuple[Any, ...]], queues: dict[QueueRef, Any], *, has_table: bool, given_now: int | None
) -> list[LandedQueue]:
    if not has_table:
        await connection.execute(SQL["landing_table"])
    await connection.copy_records_to_table("landing", records=rows, columns=_COLUMNS, schema_name="pg_temp")
    by_key = {row["key"]: (ref, row["is_paused"]) for ref, row in queues.items()}
    landed = []
    for row in await connection.fetch(SQL["land"], given_now):
        ref, is_paused = by_key[row["queue_key"]]
        landed.append(LandedQueue(ref, row["stored"], row["visible_at"], row["expires_at"], is_paused))
    return landed


async def _drop(connection: Any, calls: list[LoggedCall], told: int) -> dict[QueueRef, int]:
    """They were enqueued, and went with their queue: both are told."""
    dropped: defaultdict[QueueRef, int] = defaultdict(int)
    keys: dict[tuple[QueueRef, int], int | None] = {}
    events: list[tuple[Any, ...]] = []
    for call in calls:
        which = call.ref, call.queue_id
        if which not in keys:
            keys[which] = await connection.fetchval(SQL["gone_queue"], *call.ref, call.queue_id)
        key = keys[which]
        dropped[call.ref] += len(call.messages)
        if key is None:
            continue  # it is so long gone that the journal has forgotten it
        for event, reason in ((Event.ENQUEUED, None), (Event.REMOVED, _GONE)):
            events.extend(
                (
                    *(call.enqueued_at, key, each.id, EVENT_NUMBERS[event], each.priority, 0, 0, call.enqueued_at),
                    *(None, each.bytes, None, reason, each.correlation_id),
                )
                for each in call.messages
            )
    if events:
        columns = [list(column) for column in zip(*events, strict=True)]
        await connection.execute(SQL["record"], told, *columns, *([] for _ in range(7)))
    return dict(dropped)
