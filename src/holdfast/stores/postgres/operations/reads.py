"""Reads: inspection of messages and counts, without locks."""

import heapq
from collections import defaultdict
from typing import Any

from holdfast.model.answers import Counts, Found
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter
from holdfast.stores.event_loop.driver import LoopDriver, on_driver
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.rows import FAILED, STATUSES, MessageRow, decode_found, decode_whole_row
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import Listing

# Number of messages that a search reads with one statement.
_STEP = 500


class PostgresReads:
    """The reading methods of the contract."""

    def __init__(self, driver: LoopDriver, cluster: PostgresCluster, directory: QueueRegistry) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory

    @on_driver
    async def get(self, ref: QueueRef, id: int) -> Found | None:
        info = await self._directory.require(ref)
        rows = await info.shard.fetch(SQL["by_id"], info.key, id)
        return decode_found(rows[0]) if rows else None

    @on_driver
    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """Return the next messages, as `Store.peek` says. A claim first ends overdue TTLs and shows due messages, so
        the former are left out here and the latter included."""
        info = await self._directory.require(ref)
        now_ms = self._cluster.database_time(now_ms)
        batches: list[tuple[tuple[int, int, int], list[MessageRow]]] = []
        for name in ("peek_ready", "peek_delayed"):
            for row in await info.shard.fetch(SQL[name], info.key, now_ms, limit):
                entry = decode_whole_row(row)
                batches.append((_delivery_order(entry), [entry]))
        if info.has_groups:
            groups: defaultdict[str, list[MessageRow]] = defaultdict(list)
            for row in await info.shard.fetch(SQL["peek_groups"], info.key, now_ms, limit):
                entry = decode_whole_row(row)
                groups[entry.envelope.group or ""].append(entry)
            for members in groups.values():
                due = _take_due(sorted(members, key=lambda entry: entry.envelope.id), now_ms)
                if due:
                    batches.append((_delivery_order(due[0]), due))
        ordered = heapq.nsmallest(limit, batches, key=lambda batch: batch[0])
        entries = [entry for _, batch in ordered for entry in batch][:limit]
        return [Found(entry.envelope, entry.life, entry.state) for entry in entries]

    @on_driver
    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        info = await self._directory.require(ref)
        statuses = [each for one in State if state in (None, one) for each in STATUSES[one]]
        page = await self.matching(info, statuses, which, after, limit + 1, self._cluster.database_time(now_ms))
        more = len(page) > limit
        found = [Found(entry.envelope, entry.life, entry.state) for entry in page[:limit]]
        return Listing(found, page[limit - 1].envelope.id if more else None)

    async def matching(
        self, info: QueueInfo, statuses: list[int], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[MessageRow]:
        """Return the first matching messages by id, as they were when they were read."""
        found: list[MessageRow] = []
        behind = -1 if after is None else after
        while len(found) < limit:
            if which.ids is not None:
                ids = sorted(id for id in which.ids if id > behind)[:_STEP]
                rows = await info.shard.fetch(SQL["by_ids"], info.key, ids) if ids else []
                entries = sorted(map(decode_whole_row, rows), key=lambda entry: entry.envelope.id)
                entries = [entry for entry in entries if entry.status in statuses]
                is_last, behind = len(ids) < _STEP, ids[-1] if ids else behind
            else:
                step = min(_STEP, limit - len(found)) if which == Filter() else _STEP
                rows = await self._behind(info, statuses, behind, step)
                entries = [decode_whole_row(row) for row in rows]
                is_last, behind = len(entries) < step, entries[-1].envelope.id if entries else behind
            found += [entry for entry in entries if which.matches(entry.envelope, entry.life, now_ms)]
            if is_last:
                break
        return found[:limit]

    async def _behind(self, info: QueueInfo, statuses: list[int], behind: int, limit: int) -> list[Any]:
        """Return rows with ids above `behind`."""
        if statuses == [FAILED]:
            return await info.shard.fetch(SQL["browse_failed"], info.key, behind, limit)
        return await info.shard.fetch(SQL["browse"], info.key, behind, limit, statuses)

    @on_driver
    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        if queue is not None:
            info = await self._directory.require(QueueRef(tenant, queue))
            [counts] = await self._counts(info.shard, [info.key], now_ms)
            return counts
        every: list[Counts] = []
        for number, keys in (await self._directory.keys_of(tenant)).items():
            every += await self._counts(self._cluster.shards[number], keys, now_ms)
        return Counts.total(every)

    async def _counts(self, shard: PostgresDatabase, keys: list[int], now_ms: int) -> list[Counts]:
        if not keys:
            return []
        rows = await shard.fetch(SQL["counts"], keys, self._cluster.time_argument(now_ms))
        return [
            Counts(
                ready=row["waiting"] - row["delayed"],
                delayed=row["delayed"],
                in_flight=row["in_flight"],
                failed=row["failed"],
                bytes=row["bytes"],
                oldest_ready_at=None if row["oldest_at"] is None else self._cluster.caller_time(row["oldest_at"]),
            )
            for row in rows
        ]


def _delivery_order(entry: MessageRow) -> tuple[int, int, int]:
    return entry.life.priority, entry.life.visible_at, entry.envelope.id


def _take_due(members: list[MessageRow], now_ms: int) -> list[MessageRow]:
    """Return the messages up to the first that is not due."""
    due = []
    for entry in members:
        if entry.life.visible_at > now_ms:
            break
        due.append(entry)
    return due
