"""Store logged calls in the database, exactly once, no matter who stores them or how often it is tried.

`land` is the only way into the database for calls that were answered from a log. The server that wrote the log, another
server that found a call in Redis, a replay after a crash, and a flush job all call it, possibly at the same time.

The transaction that stores a call also writes its record number in the log. Unique message ids would not be enough: a
message that was stored, acked and deleted leaves no id behind, and would come back.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from asyncpg.exceptions import UniqueViolationError

from holdfast.model.errors import Internal
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
    """One database's part of one opening of a log.

    `shard` is the number of the database that the calls were logged for. The table `landed` calls it `lane`.
    """

    node: UUID
    epoch: int
    shard: int


class LandedQueue(NamedTuple):
    """The messages that one queue received. Times are by the database's clock."""

    ref: QueueRef
    stored: int
    visible_at: int
    expires_at: int | None
    is_paused: bool


class Landed(NamedTuple):
    """The result of one landing."""

    queues: list[LandedQueue]
    # The number of calls that had landed before.
    skipped: int
    # The number of messages whose queue is deleted or being deleted, by queue. The journal records them.
    dropped: dict[QueueRef, int]
    # The current revision of each queue and of its tenant.
    revisions: dict[QueueRef, tuple[int, int]]
    # Calls whose queue is on another database or moving. They have not landed.
    moved: list[tuple[int, LoggedCall]]


async def land(
    connection: Any,
    log_shard: LogShard,
    calls: list[tuple[int, LoggedCall]],
    *,
    span: range | None = None,
    given_now: int | None = None,
    uses_slots: bool = True,
) -> Landed:
    """Store `calls`, each with its record number, in one transaction.

    With `span`, the caller has all calls of these record numbers: numbers without a call have nothing to store, now or
    later, and count as landed too. The connection's search path must be the schema. With `uses_slots`, the slot
    table says which queues belong to this database; otherwise all of them do.
    """
    async with connection.transaction():
        known, has_table = await _lock(connection, log_shard)
        fresh = [(number, call) for number, call in calls if not _has(known, number)]
        queues, revisions = await _queues(connection, fresh)
        elsewhere: set[QueueRef] = set()
        if uses_slots and (unknown := {call.ref for _, call in fresh} - set(queues)):
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
        left = {number for number, _ in moved}
        ranges = (
            _without(span, left) if span else [range(number, number + 1) for number, _ in fresh if number not in left]
        )
        if ranges:
            firsts, ends = [each.start for each in ranges], [each.stop for each in ranges]
            await connection.execute(SQL["landed_more"], *log_shard, firsts, ends)
    return Landed(landed, len(calls) - len(fresh), dropped, revisions, moved)


async def note_landed(connection: Any, log_shard: LogShard, numbers: list[int]) -> None:
    """Note calls as landed here that another database has stored."""
    async with connection.transaction():
        await _lock(connection, log_shard)
        await connection.execute(SQL["landed_more"], *log_shard, numbers, [number + 1 for number in numbers])


async def landed_numbers(connection: Any, log_shard: LogShard) -> list[range]:
    """Return the record numbers of a log's part that are noted as landed here."""
    numbers = await connection.fetchval(SQL["landed_of"], *log_shard)
    return [range(each.lower, each.upper) for each in numbers or ()]


async def _elsewhere(connection: Any, refs: set[QueueRef]) -> set[QueueRef]:
    """Return the queues that belong to another database or are moving."""
    slots = {ref: slot_of(ref.tenant, ref.queue) for ref in refs}
    gone = {row["slot"] for row in await connection.fetch(SQL["slots_elsewhere"], sorted(set(slots.values())))}
    return {ref for ref, slot in slots.items() if slot in gone}


def _without(span: range, numbers: set[int]) -> list[range]:
    """Return the ranges of the span without these numbers."""
    ranges, first = [], span.start
    for number in sorted(numbers):
        ranges.append(range(first, number))
        first = number + 1
    ranges.append(range(first, span.stop))
    return [each for each in ranges if each]


async def _lock(connection: Any, log_shard: LogShard) -> tuple[list[Any], bool]:
    """Lock the row of the log's part. Return the landed record numbers, and whether this connection has the landing
    table."""
    row = await connection.fetchrow(SQL["landed"], *log_shard)
    if row is None:
        await connection.execute(SQL["landed_first"], *log_shard)
        row = await connection.fetchrow(SQL["landed"], *log_shard)
    return row["places"], row["has_table"]


def _has(known: list[Any], number: int) -> bool:
    """Return whether the record number is in one of the ranges."""
    at = bisect_right(known, number, key=lambda each: each.lower)
    return at > 0 and number < known[at - 1].upper


async def _queues(
    connection: Any, calls: list[tuple[int, LoggedCall]]
) -> tuple[dict[QueueRef, Any], dict[QueueRef, tuple[int, int]]]:
    """Return the rows of the calls' queues, and the revisions of each queue and its tenant."""
    refs = sorted({call.ref for _, call in calls})
    if not refs:
        return {}, {}
    found = await connection.fetch(SQL["landing_queues"], [ref.tenant for ref in refs], [ref.queue for ref in refs])
    queues = {QueueRef(row["tenant"], row["queue"]): row for row in found}
    return queues, {ref: (row["revision"], row["tenant_revision"]) for ref, row in queues.items()}


def _rows(key: int, call: LoggedCall) -> Iterable[tuple[Any, ...]]:
    """Return the rows of the landing table for a call."""
    for each in call.messages:
        yield (
            *(key, each.id, each.priority, each.visible_at, call.enqueued_at, each.bytes, each.is_json),
            *(each.expires_at, encode_type(each.content_type), encode_headers(each.headers), each.ttl_ms),
            *(each.correlation_id, each.max_retries, each.payload),
        )


async def _store(
    connection: Any, rows: list[tuple[Any, ...]], queues: dict[QueueRef, Any], *, has_table: bool, given_now: int | None
) -> list[LandedQueue]:
    """Insert the rows as messages."""
    if not has_table:
        await connection.execute(SQL["landing_table"])
    await connection.copy_records_to_table("landing", records=rows, columns=_COLUMNS, schema_name="pg_temp")
    by_key = {row["key"]: (ref, row["is_paused"]) for ref, row in queues.items()}
    landed = []
    try:
        stored = await connection.fetch(SQL["land"], given_now)
    except UniqueViolationError as error:
        raise Internal(
            f"a message of the log has an id that another message has: {error.detail}; two servers made ids with the "
            "same node number. The call stays in the log; nothing was stored"
        ) from error
    for row in stored:
        ref, is_paused = by_key[row["queue_key"]]
        landed.append(LandedQueue(ref, row["stored"], row["visible_at"], row["expires_at"], is_paused))
    return landed


async def _drop(connection: Any, calls: list[LoggedCall], first_event: int) -> dict[QueueRef, int]:
    """Record in the journal that messages were enqueued and removed with their queue. Return their number by queue."""
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
            continue  # deleted so long ago that the journal no longer has the queue
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
        await connection.execute(SQL["record"], first_event, *columns, *([] for _ in range(7)))
    return dict(dropped)
