"""Messages by the thousand, by COPY: the same laws as `enqueue`, at the speed of a bulk load.

One transaction for each database: keys, messages, events and counts come together or not at all. What makes it safe
to do again is the keys alone. Whoever offers a key that another transaction is about to take waits for that one's end:
so a task that is tried again, two attempts at once, and a whole job with other partitions store each key once.

COPY knows nothing of conflicts. Keys are copied as if all of them were new, which they are when a load is run for the
first time; if one is not, that much is undone and they are put one by one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from asyncpg import exceptions

from holdfast.model.events import Event
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.stores.answers import being_deleted
from holdfast.stores.postgres.cluster import Cluster, QueueMoved
from holdfast.stores.postgres.directory import Directory, Numbered
from holdfast.stores.postgres.grants import Grants
from holdfast.stores.postgres.nodes import Nodes
from holdfast.stores.postgres.queues import QueueInfo, info_of
from holdfast.stores.postgres.rows import DELAYED, EVENT_NUMBERS, READY, encode_headers, encode_type, is_json
from holdfast.stores.postgres.shard import Shard
from holdfast.stores.postgres.statements import SQL

# A transaction's events are numbered in 20 bits.
MAX_ROWS = 1 << 19

_ITEM = (
    *("queue_key", "id", "status", "priority", "deliver_after", "created_at", "bytes", "is_json", "payload"),
    *("expires_at", "content_type", "headers", "ttl_ms", "correlation_id", "max_retries"),
)
# Of the columns above, those that every message has; of the others mostly none.
_ALWAYS = 9
_KEY = ("queue_key", "key", "id", "correlation_id", "ends_at")
_EVENT = (
    *("seq", "at", "queue_key", "id", "event", "priority", "attempt", "version", "created_at", "bytes"),
    "correlation_id",
)
_COUNT = ("queue_key", "waiting", "delayed", "in_flight", "failed", "kept", "bytes")
_ENQUEUED = EVENT_NUMBERS[Event.ENQUEUED]

_Records = Iterable[tuple[Any, ...]]


class Changed(Exception):
    """A queue or a tenant is no longer what this transaction went by: to be begun again."""


@dataclass(slots=True)
class Loaded:
    """What one transaction did."""

    stored: int = 0
    # When the first message of each queue can be claimed, by the database's clock; of one that is paused, nothing.
    ready_at: dict[QueueRef, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """What goes to one queue: by column from here on, for a step of Python for each row costs as much as the row."""

    info: QueueInfo
    drafts: list[Draft]
    ids: list[int]
    sizes: list[int]


class Loading:
    def __init__(self, cluster: Cluster, directory: Directory, nodes: Nodes, grants: Grants) -> None:
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes
        self._grants = grants
        # Until a key was not.
        self._expects_new = True

    async def load_in(
        self,
        connection: Any,
        shard: Shard,
        drafts: Mapping[QueueRef, list[Draft]],
        numbers: Mapping[QueueRef, Numbered | None],
        now_ms: int,
    ) -> Loaded:
        """In a transaction of the database that has these queues; those that there are not are made, with `numbers` of
        their homes. No draft has a group."""
        infos, now = await self._open(connection, shard, drafts, numbers, now_ms)
        parts = await self._new_ones(connection, self._numbered(infos, drafts, now), now)
        await self._check_quotas(connection, parts)
        loaded = await self._copy(connection, parts, now)
        await self._check_tenants(connection, infos)
        return loaded

    async def _open(
        self,
        connection: Any,
        shard: Shard,
        drafts: Mapping[QueueRef, list[Draft]],
        numbers: Mapping[QueueRef, Numbered | None],
        now_ms: int,
    ) -> tuple[dict[QueueRef, QueueInfo], int]:
        refs = sorted(drafts)
        names = [ref.tenant for ref in refs], [ref.queue for ref in refs], self._cluster.given(now_ms)
        found = await connection.fetch(SQL["loading_queues"], *names)
        if len(found) < len(refs):
            known = {QueueRef(row["tenant"], row["queue"]) for row in found}
            for ref in refs:
                if ref not in known:
                    await self._directory.make_in(connection, ref, numbers.get(ref))
            found = await connection.fetch(SQL["loading_queues"], *names)
            if len(found) < len(refs):
                raise Changed
        infos = {}
        for row in found:
            info = info_of(row, shard)
            if row["moving_to"] is not None:
                raise QueueMoved(info.ref)
            if row["drain_until"] is not None:
                raise being_deleted(info.ref)
            infos[info.ref] = info
        self._cluster.note_now(found[0]["now"], now_ms)
        return infos, found[0]["now"]

    def _numbered(
        self, infos: Mapping[QueueRef, QueueInfo], drafts: Mapping[QueueRef, list[Draft]], now: int
    ) -> list[_Part]:
        ids, first = self._nodes.take_ids(sum(map(len, drafts.values())), now), 0
        parts = []
        for ref, each in drafts.items():
            end = first + len(each)
            parts.append(_Part(infos[ref], each, ids[first:end], [draft.bytes for draft in each]))
            first = end
        return parts

    async def _new_ones(self, connection: Any, parts: list[_Part], now: int) -> list[_Part]:
        """Those whose key is not known, or that have none; the keys are remembered."""
        keys: dict[tuple[int, str], tuple[Any, ...]] = {}
        # Of a queue whose window was closed: keys of before still count, those of now do not.
        passing: list[tuple[int, str, int]] = []
        count = 0
        for part in parts:
            queue, window_ms = part.info.key, part.info.row.policy.dedup_window_ms
            for draft, id in zip(part.drafts, part.ids, strict=True):
                key = draft.key
                if key is None:
                    continue
                count += 1
                if not window_ms:
                    passing.append((queue, key, id))
                elif (queue, key) not in keys:
                    keys[queue, key] = queue, key, id, draft.correlation_id, now + window_ms
        new: set[int] = set()
        if keys:
            # In one order everywhere: two that want the same keys wait for one another once, and never in a ring.
            new = await self._put_keys(connection, [keys[which] for which in sorted(keys)], now)
        if passing:
            columns = [list(column) for column in zip(*passing, strict=True)]
            new |= {row["id"] for row in await connection.fetch(SQL["load_unknown"], *columns, now)}
        return parts if len(new) == count else [each for each in (_only(part, new) for part in parts) if each.ids]

    async def _put_keys(self, connection: Any, keys: list[tuple[Any, ...]], now: int) -> set[int]:
        """The ids of the new ones."""
        if self._expects_new:
            try:
                async with connection.transaction():
                    await _copy(connection, "seen_keys", keys, _KEY)
            except exceptions.UniqueViolationError:
                self._expects_new = False
            else:
                return set(map(itemgetter(2), keys))
        columns = [list(column) for column in zip(*keys, strict=True)]
        new = {row["id"] for row in await connection.fetch(SQL["load_keys"], *columns, now)}
        self._expects_new = len(new) == len(keys)
        return new

    async def _check_quotas(self, connection: Any, parts: list[_Part]) -> None:
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        infos: dict[str, QueueInfo] = {}
        for part in parts:
            sizes[part.info.ref.tenant] += part.sizes
            infos[part.info.ref.tenant] = part.info
        for tenant in sorted(sizes):
            await self._grants.check(connection, infos[tenant], sizes[tenant])

    async def _copy(self, connection: Any, parts: list[_Part], now: int) -> Loaded:
        loaded = Loaded()
        if not parts:
            return loaded
        seq = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint << 20")
        items: list[list[Iterable[Any]]] = []
        events: list[_Records] = []
        counts: list[tuple[int, ...]] = []
        for part in parts:
            key, number = part.info.key, len(part.ids)
            columns = _columns(part, now)
            items.append(columns)
            _, ids, statuses, priorities, visible_at, *_ = columns
            events.append(
                zip(
                    *(range(seq, seq + number), repeat(now), repeat(key), ids, repeat(_ENQUEUED), priorities),
                    *(repeat(0), repeat(0), repeat(now), part.sizes, columns[_ITEM.index("correlation_id")]),
                    strict=False,
                )
            )
            seq += number
            counts.append((key, number, statuses.count(DELAYED), 0, 0, 0, sum(part.sizes)))
            if not part.info.row.is_paused:
                loaded.ready_at[part.info.ref] = min(visible_at)
            loaded.stored += number
        # Columns that nobody filled are left out.
        used = [n for n in range(len(_ITEM)) if n < _ALWAYS or any(columns[n] is not _NOTHING for columns in items)]
        records = chain.from_iterable(zip(*(columns[n] for n in used), strict=False) for columns in items)
        await _copy(connection, "items", records, tuple(_ITEM[n] for n in used))
        await _copy(connection, "journal", chain.from_iterable(events), _EVENT)
        await _copy(connection, "count_lines", counts, _COUNT)
        return loaded

    async def _check_tenants(self, connection: Any, infos: Mapping[QueueRef, QueueInfo]) -> None:
        """Queues are held; their tenants are not, for who checks a quota locks them."""
        revisions = {info.ref.tenant: info.tenant_revision for info in infos.values()}
        found = await connection.fetch("SELECT tenant, revision FROM tenants WHERE tenant = ANY($1)", list(revisions))
        if {row["tenant"]: row["revision"] for row in found} != revisions:
            raise Changed


# For as many rows as there are.
_NOTHING = repeat(None)


def _columns(part: _Part, now: int) -> list[Any]:
    """Those of _ITEM."""
    drafts, default_ttl_ms = part.drafts, part.info.default_ttl_ms
    visible_at = [now + draft.delay_ms if draft.deliver_at is None else max(now, draft.deliver_at) for draft in drafts]
    ttls = [default_ttl_ms if draft.ttl_ms is None else draft.ttl_ms for draft in drafts]
    return [
        repeat(part.info.key),
        part.ids,
        [READY if at <= now else DELAYED for at in visible_at],
        [draft.priority for draft in drafts],
        visible_at,
        repeat(now),
        part.sizes,
        [is_json(draft) for draft in drafts],
        [draft.payload for draft in drafts],
        _filled([None if ttl_ms is None else now + ttl_ms for ttl_ms in ttls]),
        _filled([encode_type(draft.content_type) for draft in drafts]),
        _filled([encode_headers(draft.headers) for draft in drafts]),
        _filled([draft.ttl_ms for draft in drafts]),
        _filled([draft.correlation_id for draft in drafts]),
        _filled([draft.max_retries for draft in drafts]),
    ]


def _filled(column: list[Any]) -> Iterable[Any]:
    return _NOTHING if column.count(None) == len(column) else column


def _only(part: _Part, new: set[int]) -> _Part:
    """Without those whose key is not new."""
    kept = [
        each for each in zip(part.drafts, part.ids, part.sizes, strict=True) if each[0].key is None or each[1] in new
    ]
    drafts, ids, sizes = (list(column) for column in zip(*kept, strict=True)) if kept else ([], [], [])
    return _Part(part.info, drafts, ids, sizes)


async def _copy(connection: Any, table: str, records: _Records, columns: tuple[str, ...]) -> None:
    await connection.copy_records_to_table(table, records=records, columns=columns, schema_name="holdfast")
