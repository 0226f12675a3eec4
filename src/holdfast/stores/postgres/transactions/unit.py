"""A step that reads messages, lets the shared logic decide, and writes the result, in one transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.message import Draft, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, Filter, StateDocument
from holdfast.model.rules.idempotency import find_new
from holdfast.model.rules.ledgers import NONE_CLOSED
from holdfast.model.rules.lifecycle import Change, is_over
from holdfast.stores.logic.results import delivery_of
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads
from holdfast.stores.postgres.queues.queue_info import QueueInfo, decode_queue_info
from holdfast.stores.postgres.queues.quota_grants import QuotaAmount, QuotaGrants
from holdfast.stores.postgres.queues.registry import Numbered, QueueRegistry
from holdfast.stores.postgres.schema.rows import (
    MessageRow,
    decode_row,
    decode_state,
    decode_whole_row,
    encode_state,
    encode_type,
)
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.locks import SWEEP_LOCK, admit_groups
from holdfast.stores.postgres.transactions.pending_writes import PendingWrites
from holdfast.stores.postgres.transactions.shortcuts import enqueue_arguments, note_enqueued
from holdfast.stores.unit import OpenClaim, Sized

_encode_receipts = msgspec.msgpack.Encoder().encode
_decode_receipts = msgspec.msgpack.Decoder(list[Receipt]).decode


class QueueChanged(Exception):
    """The queue has changed since the step checked it, so the step must run again."""


class PostgresParts:
    """The parts of the store that a step uses."""

    def __init__(
        self,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        nodes: PostgresNodeNumbers,
        grants: QuotaGrants,
        payloads: PostgresPayloads,
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        self.nodes = nodes
        self.grants = grants
        self.payloads = payloads


class PostgresUnit(PendingWrites):
    """`Unit`. It locks the row of a queue with groups when it opens the queue. The methods of the first section open a
    queue in another way and are called before the shared logic."""

    def __init__(self, parts: PostgresParts, shard: PostgresDatabase, connection: Any, callers_ms: int) -> None:
        super().__init__(connection, parts.cluster.time_argument(callers_ms))
        self.shard = shard
        self.is_durable = self.notifies_ready = True
        # The time by the caller's clock.
        self.callers_ms = callers_ms
        # The ids that `matching` returns, if the messages still match. The search takes many statements and runs before
        # the step, because the step holds locks.
        self.found: list[int] = []
        self._parts = parts
        self._opened: dict[QueueRef, QueueInfo | None] = {}
        # The ids that `known_keys` has reserved for new messages.
        self._ids: list[int] | None = None

    # --- Opening queues ----------------------------------------------------------------------------------------

    async def open(self, ref: QueueRef, *, is_locked: bool) -> QueueInfo | None:
        """Open a queue, with or without a lock on its row, whether or not it has groups."""
        sql = SQL["queue_locked" if is_locked else "queue"]
        return await self._note(ref, await self.connection.fetchrow(sql, *ref, self.given_now))

    async def open_or_create(self, ref: QueueRef, number: Numbered | None, *, is_locked: bool) -> None:
        """Open a queue to enqueue, and create it if it does not exist. `number` is None if the tenant's home is this
        database."""
        if await self.open(ref, is_locked=is_locked) is None:
            await self._parts.directory.make_in(self.connection, ref, number)
            if await self.open(ref, is_locked=is_locked) is None:
                raise QueueChanged

    async def open_key(self, key: int) -> QueueInfo | None:
        """Open a queue by its key, as `find` does by its name."""
        row = await self._with_lock(await self.connection.fetchrow(SQL["queue_by_key"], key, self.given_now))
        return None if row is None else await self._note(QueueRef(row["tenant"], row["queue"]), row)

    async def open_gone(self, key: int) -> QueueInfo:
        """Open a deleted queue."""
        row = await self.connection.fetchrow(SQL["queue_by_key"], key, self.given_now)
        self.now_ms = row["now"]
        return decode_queue_info(row, self.shard)

    async def lock_both(self, source: QueueInfo, target: QueueInfo, *, has_groups: bool) -> None:
        """Lock the rows of two queues before messages move between them. `has_groups` says whether some of the messages
        are in groups."""
        # Always in the same order, whichever way messages move.
        for key in sorted((source.key, target.key)):
            await self.connection.execute(SQL["lock_queue"], key)
        if has_groups:
            await admit_groups(self.connection, target.key)

    async def _with_lock(self, row: Any | None) -> Any | None:
        """Lock the queue's row if it has groups, and return the row as it is under the lock."""
        if row is None or not row["has_groups"]:
            return row
        await self.connection.execute(SQL["lock_queue"], row["key"])
        return await self.connection.fetchrow(SQL["queue_by_key"], row["key"], self.given_now)

    async def _note(self, ref: QueueRef, row: Any | None) -> QueueInfo | None:
        """Remember a queue for the rest of the step; `row` is None if this database has no queue of that name."""
        if row is None:
            await self._parts.directory.check_owner(self.connection, ref)
        elif row["moving_to"] is not None:
            raise QueueMoved(ref)
        elif not self.now_ms:
            self.now_ms = row["now"]
            self._parts.cluster.note_now(self.now_ms, self.callers_ms)
        info = None if row is None or row["gone_at"] is not None else decode_queue_info(row, self.shard)
        self._opened[ref] = info
        return info

    # --- Queues ------------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> QueueInfo | None:
        if ref in self._opened:
            return self._opened[ref]
        row = await self.connection.fetchrow(SQL["queue"], *ref, self.given_now)
        return await self._note(ref, await self._with_lock(row))

    async def create(self, ref: QueueRef) -> QueueInfo:
        raise AssertionError("a queue is created before the work begins: see open_or_create")

    async def remove_if_empty(self, queue: QueueInfo) -> None:
        await self.write()
        if await self.connection.fetchval(SQL["has_messages"], queue.key):
            return
        await self.connection.execute(SQL["end_queue"], queue.key, self.now_ms)
        if self._parts.cluster.home_of(queue.ref.tenant) is self.shard:
            await self.connection.execute(SQL["directory_drop"], queue.ref.tenant, queue.ref.queue, queue.row.queue_id)

    def default_ttl_ms(self, queue: QueueInfo) -> int | None:
        return queue.default_ttl_ms

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        """Check quotas as `Unit` says. Raise `QuotaShortage` if this database was not granted enough of a quota to
        decide."""
        queue = self._opened[ref]
        assert queue is not None
        part = QuotaAmount(len(freed), sum(each.bytes for each in freed))
        await self._parts.grants.check(self.connection, queue, [each.bytes for each in added], part)

    # --- Finding messages --------------------------------------------------------------------------------------

    async def load(self, queue: QueueInfo, ids: Iterable[int]) -> dict[int, MessageRow]:
        rows = await self.connection.fetch(SQL["lock_by_ids"], queue.key, sorted(set(ids)))
        return {row["id"]: decode_row(row) for row in rows}

    async def load_whole(self, queue: QueueInfo, ids: Iterable[int]) -> dict[int, MessageRow]:
        rows = await self.connection.fetch(SQL["by_ids"], queue.key, list(ids))
        return {row["id"]: decode_whole_row(row) for row in rows}

    async def take_due(self, queue: QueueInfo, limits: list[int]) -> list[list[MessageRow]]:
        total = sum(limits)
        rows = await self.connection.fetch(SQL["due"], queue.key, self.now_ms, total) if total else []
        candidates = [decode_whole_row(row) for row in reversed(rows)]
        return [await self._fill(queue, candidates, limit) for limit in limits]

    async def _fill(self, queue: QueueInfo, candidates: list[MessageRow], limit: int) -> list[MessageRow]:
        """Return up to `limit` messages. Candidates are used up from the end of the list; a group's head brings the
        messages after it."""
        taken: list[MessageRow] = []
        while candidates and len(taken) < limit:
            entry = candidates.pop()
            group = entry.envelope.group
            if group is None:
                taken.append(entry)
                continue
            for row in await self.connection.fetch(SQL["of_group"], queue.key, group, limit - len(taken)):
                member = decode_whole_row(row)
                if member.life.visible_at > self.now_ms:
                    break
                if not is_over(member.life, self.now_ms):
                    taken.append(member)
        return taken

    async def ended(self, queue: QueueInfo, limit: int) -> tuple[list[MessageRow], list[MessageRow]]:
        expired = await self._first("expired", queue, self.now_ms, limit)
        return expired, await self._first("overdue", queue, self.now_ms, limit - len(expired))

    async def kept(self, queue: QueueInfo, limit: int) -> list[MessageRow]:
        """Return Succeeded messages whose keeping time has ended."""
        return await self._first("kept", queue, self.now_ms, limit)

    async def oldest(self, queue: QueueInfo, limit: int) -> list[MessageRow]:
        return await self._first("oldest", queue, limit)

    async def _first(self, name: str, queue: QueueInfo, *arguments: int) -> list[MessageRow]:
        """Run a statement whose last argument is a limit, and return its rows."""
        if not arguments[-1]:
            return []
        return [decode_row(row) for row in await self.connection.fetch(SQL[name], queue.key, *arguments)]

    async def matching(
        self, queue: QueueInfo, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[MessageRow], int | None]:
        entries = await self.load(queue, self.found)
        # Messages that were found without a lock may have changed.
        matching = [
            entry
            for entry in entries.values()
            if entry.life.state in states and which.matches(entry.envelope, entry.life, self.now_ms)
        ]
        return matching, self.found[-1] if len(self.found) == limit else None

    async def next_at(self, queue: QueueInfo) -> int | None:
        if queue.row.is_paused:
            return None
        await self.write()
        next_at: int | None = await self.connection.fetchval(SQL["next_at"], queue.key, queue.has_groups)
        return next_at

    def version_floor(self, entry: MessageRow) -> int:
        return 0

    # --- Reading messages --------------------------------------------------------------------------------------

    async def deliveries(
        self, queue: QueueInfo, entries: list[MessageRow], *, with_state: bool, streams: bool
    ) -> list[Delivery]:
        """Return deliveries with payloads in pieces left in pieces: the store reads them after the step, which holds
        locks."""
        return [delivery_of(entry.envelope, entry.life, entry.state if with_state else None) for entry in entries]

    async def states(self, queue: QueueInfo, entries: list[MessageRow]) -> list[StateDocument]:
        ids = [entry.envelope.id for entry in entries]
        rows = {row["id"]: row["state"] for row in await self.connection.fetch(SQL["states"], queue.key, ids)}
        return [NO_STATE if (raw := rows.get(id)) is None else decode_state(raw) for id in ids]

    # --- Changing messages -------------------------------------------------------------------------------------

    async def move(self, queue: QueueInfo, target: QueueInfo, changes: Sequence[tuple[MessageRow, Change]]) -> None:
        if not changes:
            return
        grouped = {entry.envelope.id: entry.envelope.group for entry, _ in changes if entry.envelope.group is not None}
        if grouped:
            await self.connection.execute(SQL["has_groups"], target.key, max(grouped))
        ids = [entry.envelope.id for entry, _ in changes]
        await self.connection.execute(SQL["move"], queue.key, ids, target.key)
        for entry, change in changes:
            self.add_event(queue, entry, change, reason=f"to {target.ref}")
            self.add_event(target, entry, change, reason=f"from {queue.ref}")
            self.add_moved(queue, target, entry)
        self.touch_groups(queue.key, grouped.values())

    async def edit(self, queue: QueueInfo, entry: MessageRow, envelope: Envelope) -> None:
        envelope = await self._parts.payloads.edit(self.connection, entry.envelope, envelope, self.callers_ms)
        pieces = envelope.pieces
        await self.connection.execute(
            *(SQL["edit"], queue.key, envelope.id, envelope.payload, encode_type(envelope.content_type)),
            *(envelope.is_json, envelope.bytes),
            *((None, None, None) if pieces is None else (pieces.blob_id, pieces.size, pieces.checksum)),
        )
        self.notices.deadline(self.now_ms)  # sweeps delete the pieces of the old payload
        self.count_bytes(queue.key, envelope.bytes - entry.bytes)
        entry.envelope, entry.bytes = envelope, envelope.bytes

    async def put_state(self, queue: QueueInfo, entry: MessageRow, state: StateDocument) -> None:
        await self.connection.execute(SQL["put_state"], queue.key, entry.envelope.id, encode_state(state))

    # --- New messages ------------------------------------------------------------------------------------------

    async def known_keys(self, queue: QueueInfo, drafts: list[Draft], firsts: Mapping[str, int]) -> dict[str, Enqueued]:
        ids = self._take_ids(queue, drafts)
        window_ms = queue.row.policy.dedup_window_ms
        keys = sorted(firsts)  # all callers insert in the same order
        new: set[str] = set()
        if window_ms:
            indexes = [firsts[key] for key in keys]
            columns = [ids[index] for index in indexes], [drafts[index].correlation_id for index in indexes]
            ends_at = self.now_ms + window_ms
            rows = await self.connection.fetch(SQL["remember_keys"], queue.key, keys, *columns, ends_at, self.now_ms)
            new = {row["key"] for row in rows}
            self.notices.deadline(ends_at)
        old = [key for key in keys if key not in new]
        rows = await self.connection.fetch(SQL["known_keys"], queue.key, old, self.now_ms) if old else []
        seen = {
            row["key"]: Enqueued(snowflake=row["id"], given_correlation_id=row["correlation_id"], duplicate=True)
            for row in rows
        }
        # The ids were taken in the order of all drafts, which is the order of delivery.
        self._ids = [ids[index] for index in find_new(drafts, firsts, seen, remembers_keys=window_ms > 0)]
        return seen

    async def add(self, queue: QueueInfo, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        if not drafts:
            return []
        connection, payloads = self.connection, self._parts.payloads
        ids = self._take_ids(queue, drafts) if self._ids is None else self._ids
        groups = sorted({draft.group for draft in drafts if draft.group is not None})
        if groups:
            if not queue.has_groups:
                await connection.execute(SWEEP_LOCK, queue.key)  # the queue's row is locked: see locks.py
            await connection.execute(SQL["has_groups"], queue.key, ids[-1])
        new = await payloads.take(connection, drafts, self.callers_ms)
        row = await connection.fetchrow(SQL["enqueue"], *enqueue_arguments(queue, new, ids, self.given_now, reason))
        if row["key"] is None:
            raise QueueChanged
        await payloads.write_blob_ids(connection, queue, ids, new)
        if groups:
            await connection.execute(SQL["show_heads"], queue.key, self.given_now, groups)
        note_enqueued(queue, new, row, self.notices)
        return ids

    def _take_ids(self, queue: QueueInfo, drafts: list[Draft]) -> list[int]:
        is_grouped = any(draft.group is not None for draft in drafts)
        return self._parts.nodes.take_ids(len(drafts), self.now_ms, queue.highest_grouped if is_grouped else 0)

    # --- Ledgers -----------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: QueueInfo, consumer: str) -> int:
        closed_upto: int | None = await self.connection.fetchval(SQL["ledger_end"], queue.key, consumer)
        return NONE_CLOSED if closed_upto is None else closed_upto

    async def open_claims(
        self, queue: QueueInfo, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        # Claims up to a number are read to be closed: a second caller waits for the lock and then finds none.
        sql = SQL["open_claims" if upto is None else "open_claims_upto"]
        rows = await self.connection.fetch(sql, queue.key, consumer, number if upto is None else upto)
        return [OpenClaim(row["number"], row["claimed_at"], _decode_receipts(row["receipts"])) for row in rows]

    async def put_claim(self, queue: QueueInfo, consumer: str, claim: OpenClaim) -> None:
        number, claimed_at, receipts = claim
        await self.connection.execute(
            SQL["put_claim"], queue.key, consumer, number, claimed_at, _encode_receipts(receipts)
        )

    async def close_claims(self, queue: QueueInfo, consumer: str, numbers: list[int], closed_upto: int) -> None:
        await self.connection.execute(SQL["close_claims"], queue.key, consumer, numbers)
        await self.connection.execute(SQL["put_ledger_end"], queue.key, consumer, closed_upto)

    # --- Notices -----------------------------------------------------------------------------------------------

    def notify_ready(self, queue: QueueInfo) -> None:
        self.notices.ready(queue.ref, self.now_ms)

    def note_draining(self) -> None:
        """Note that a sweep may have more to delete of the queues that the step has opened."""
        if any(queue is not None and queue.row.drain_until is not None for queue in self._opened.values()):
            self.notices.deadline(self.now_ms)
