"""Enqueueing: in one statement where nothing has to be decided first, else in a transaction."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.model.answers import Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.idempotency import first_of_keys, new_places, results_of
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.stores.answers import being_deleted, no_such_queue
from holdfast.stores.notices import Notices
from holdfast.stores.pieces import PIECES_ABOVE
from holdfast.stores.postgres.cluster import Cluster, QueueMoved
from holdfast.stores.postgres.directory import Directory, Numbered
from holdfast.stores.postgres.grants import Grants, Short
from holdfast.stores.postgres.nodes import Nodes
from holdfast.stores.postgres.pieces import Payloads
from holdfast.stores.postgres.queues import QueueInfo, info_of
from holdfast.stores.postgres.rows import columns_of_drafts
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.upkeep import UPKEEP_LOCK
from holdfast.stores.quotas import check_quotas

# How often a call begins again because the queue or its tenant was changed meanwhile.
_TRIES = 50

# Writes what belongs to the same step: is given the connection, the queue and what was enqueued.
Also = Callable[[Any, QueueInfo, list[Enqueued]], Awaitable[None]]


class _Changed(Exception):
    """The queue is no longer what this call was checked against."""


class Intake:
    def __init__(
        self, cluster: Cluster, directory: Directory, nodes: Nodes, grants: Grants, payloads: Payloads
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes
        self._grants = grants
        self._payloads = payloads

    async def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, notices: Notices, *, auto_create: bool
    ) -> list[Enqueued]:
        if all(_is_simple(draft) for draft in drafts):
            info = await self._directory.known(ref)
            for _ in range(_TRIES):
                if info is None or info.row.drain_until is not None or info.has_quotas:
                    break
                if info.config.quotas.max_message_bytes is not None:
                    check_quotas(ref.tenant, info.config.quotas, 0, 0, [draft.bytes for draft in drafts])
                ids = self._nodes.take_ids(len(drafts), self._cluster.stored(now_ms))
                [row] = await info.shard.fetch(SQL["enqueue"], *self._arguments(info, drafts, ids, now_ms, None))
                if row["key"] is not None:
                    self._tell(info, drafts, row, now_ms, notices)
                    return results_of(drafts, range(len(drafts)), ids, {})
                info = await self._directory.load(ref)
        return await self.enqueue_in_step(ref, drafts, now_ms, notices, auto_create=auto_create)

    async def enqueue_in_step(
        self,
        ref: QueueRef,
        drafts: list[Draft],
        now_ms: int,
        notices: Notices,
        *,
        auto_create: bool,
        reason: str | None = None,
        also: Also | None = None,
    ) -> list[Enqueued]:
        """`reason` is for the journal."""
        number = None
        if auto_create and await self._directory.known(ref) is None:
            number = await self._directory.take_number(ref)
        for _ in range(_TRIES):
            fresh = Notices()

            async def work(connection: Any, fresh: Notices = fresh) -> list[Enqueued]:
                info = await self._open(connection, ref, drafts, number, auto_create=auto_create)
                enqueued = await self._enqueue(connection, info, drafts, now_ms, fresh, reason)
                if also is not None:
                    await also(connection, info, enqueued)
                return enqueued

            try:
                enqueued = await self._cluster.shard_of(ref).step(work)
            except _Changed:
                continue
            except Short as short:
                await self._grants.widen(short)
                continue
            notices.add(fresh)
            return enqueued
        raise StoreUnavailable(f"queue {ref} was changed again and again: try once more")

    async def _open(
        self,
        connection: Any,
        ref: QueueRef,
        drafts: list[Draft],
        number: Numbered | None,
        *,
        auto_create: bool,
    ) -> QueueInfo:
        is_grouped = any(draft.group is not None for draft in drafts)
        sql = SQL["queue_locked" if is_grouped else "queue"]
        row = await connection.fetchrow(sql, ref.tenant, ref.queue, None)
        if row is None:
            if not auto_create:
                await self._directory.check_owner(connection, ref)
                raise no_such_queue(ref)
            await self._directory.make_in(connection, ref, number)
            row = await connection.fetchrow(sql, ref.tenant, ref.queue, None)
            if row is None:
                raise _Changed
        if row["moving_to"] is not None:
            raise QueueMoved(ref)
        if row["drain_until"] is not None:
            raise being_deleted(ref)
        return info_of(row, self._cluster.shard_of(ref))

    async def _enqueue(
        self, connection: Any, info: QueueInfo, drafts: list[Draft], now_ms: int, notices: Notices, reason: str | None
    ) -> list[Enqueued]:
        stored_ms = self._cluster.stored(now_ms)
        groups = sorted({draft.group for draft in drafts if draft.group is not None})
        firsts = first_of_keys(drafts)
        ids = self._nodes.take_ids(len(drafts), stored_ms, info.highest_grouped if groups else 0)
        seen: dict[str, Enqueued] = {}
        if firsts:
            now = await connection.fetchval("SELECT now_ms($1)", self._cluster.given(now_ms))
            seen = await self._match_keys(connection, info, drafts, firsts, ids, now, notices)
        places = new_places(drafts, firsts, seen, remembers_keys=info.row.policy.dedup_window_ms > 0)
        new_ids = [ids[place] for place in places]
        sizes = [drafts[place].bytes for place in places]
        await self._grants.check(connection, info, sizes)
        if groups:
            if not info.has_groups:
                await connection.execute(UPKEEP_LOCK, info.key)  # its row is locked; see upkeep.py
            await connection.execute(SQL["has_groups"], info.key, ids[-1])
        if places:
            new = await self._payloads.take(connection, [drafts[place] for place in places], now_ms)
            row = await connection.fetchrow(SQL["enqueue"], *self._arguments(info, new, new_ids, now_ms, reason))
            if row["key"] is None:
                raise _Changed
            await self._payloads.name(connection, info, new_ids, new)
            if groups:
                await connection.execute(SQL["show_heads"], info.key, self._cluster.given(now_ms), groups)
            self._tell(info, new, row, now_ms, notices)
        return results_of(drafts, places, new_ids, seen)

    async def _match_keys(
        self,
        connection: Any,
        info: QueueInfo,
        drafts: list[Draft],
        firsts: dict[str, int],
        ids: list[int],
        now_ms: int,
        notices: Notices,
    ) -> dict[str, Enqueued]:
        """Return the first message of each key that the queue knows, and remember the others, if it remembers keys."""
        window_ms = info.row.policy.dedup_window_ms
        keys = sorted(firsts)
        new: set[str] = set()
        if window_ms:
            places = [firsts[key] for key in keys]
            columns = [ids[place] for place in places], [drafts[place].correlation_id for place in places]
            ends_at = now_ms + window_ms
            rows = await connection.fetch(SQL["remember_keys"], info.key, keys, *columns, ends_at, now_ms)
            new = {row["key"] for row in rows}
            notices.deadline(ends_at)
        old = [key for key in keys if key not in new]
        known = await connection.fetch(SQL["known_keys"], info.key, old, now_ms) if old else []
        return {
            row["key"]: Enqueued(snowflake=row["id"], given_correlation_id=row["correlation_id"], duplicate=True)
            for row in known
        }

    def _arguments(
        self, info: QueueInfo, drafts: list[Draft], ids: list[int], now_ms: int, reason: str | None
    ) -> list[Any]:
        given = self._cluster.given(now_ms)
        columns = columns_of_drafts(drafts, ids, info.default_ttl_ms)
        return [info.key, given, info.revision, info.tenant_revision, reason, *columns]

    def _tell(self, info: QueueInfo, drafts: list[Draft], row: Any, now_ms: int, notices: Notices) -> None:
        self._cluster.note_now(row["now"], now_ms)
        notices.tally(info.ref, Event.ENQUEUED, len(drafts))
        if not row["is_paused"]:
            notices.ready(info.ref, row["visible_at"])
        default = info.default_ttl_ms
        ttls = [draft.ttl_ms for draft in drafts if draft.ttl_ms is not None]
        if default is not None and len(ttls) < len(drafts):
            ttls.append(default)
        if ttls:
            notices.deadline(row["now"] + min(ttls))


def _is_simple(draft: Draft) -> bool:
    """Nothing of it has to be decided first, or written beside its message."""
    return draft.key is None and draft.group is None and draft.pieces is None and len(draft.payload) <= PIECES_ABOVE
