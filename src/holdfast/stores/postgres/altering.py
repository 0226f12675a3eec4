"""What operators do to the messages of a queue: cancel, redrive, move, reprioritise; in steps."""

from typing import Any

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, Verb, states_of
from holdfast.model.verdicts import alter
from holdfast.stores.answers import being_deleted, edited, no_such_queue
from holdfast.stores.contract import AlterStep
from holdfast.stores.driver import Driver, on_driver_with_notices
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.directory import Directory
from holdfast.stores.postgres.grants import Grants, Part, Short
from holdfast.stores.postgres.moving import Moving
from holdfast.stores.postgres.pieces import Payloads
from holdfast.stores.postgres.queues import QueueInfo
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.rows import STATUSES, Entry, encode_type, entry_of
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.steps import Step
from holdfast.stores.postgres.upkeep import Upkeep

# How often a step begins again because its database had to be granted more of a quota.
_TRIES = 10

_EDIT = (
    "UPDATE items SET payload = $3, content_type = $4, is_json = $5, bytes = $6, "
    "piece_place = $7, piece_size = $8, piece_checksum = $9 WHERE queue_key = $1 AND id = $2"
)
_MOVE = "UPDATE items SET queue_key = $3 WHERE queue_key = $1 AND id = ANY($2::bigint[])"


class Altering:
    def __init__(
        self,
        driver: Driver,
        cluster: Cluster,
        directory: Directory,
        reading: Reading,
        upkeep: Upkeep,
        grants: Grants,
        moving: Moving,
        payloads: Payloads,
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._reading = reading
        self._upkeep = upkeep
        self._grants = grants
        self._moving = moving
        self._payloads = payloads

    @on_driver_with_notices
    async def alter(
        self, notices: Notices, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        info = await self._directory.require(ref)
        target = await self._directory.require_open(verb.to) if isinstance(verb, Move) else info
        statuses = [status for state in states_of(verb) for status in STATUSES[state]]
        stored_ms = self._cluster.stored(now_ms)
        meant = await self._reading.matching(info, statuses, which, after, limit, stored_ms)
        if not meant:
            return AlterStep(0, 0, None)
        ids = [entry.envelope.id for entry in meant]
        if isinstance(verb, Move) and target.shard is not info.shard:
            changed = await self._moving.move(info, target, verb, which, ids, statuses, now_ms, notices)
            return AlterStep(changed, changed, ids[-1] if len(ids) == limit else None)
        groups = any(entry.envelope.group is not None for entry in meant)
        changed = await self._alter(info, target, verb, which, ids, statuses, groups, now_ms, notices)
        return AlterStep(changed, changed, ids[-1] if len(ids) == limit else None)

    async def _alter(
        self,
        info: QueueInfo,
        target: QueueInfo,
        verb: Verb,
        which: Filter,
        ids: list[int],
        statuses: list[int],
        has_groups: bool,
        now_ms: int,
        notices: Notices,
    ) -> int:
        async def work(connection: Any) -> tuple[int, Notices]:
            fresh = Notices()
            if target is not info:
                # In one order, whichever way messages go.
                for key in sorted((info.key, target.key)):
                    await connection.execute(SQL["lock_queue"], key)
                if has_groups:
                    await self._upkeep.admit_groups(connection, target.key)
            opened = await self._upkeep.open(connection, info.shard, info.key, now_ms, fresh)
            if opened is None:
                raise no_such_queue(info.ref)
            queue, step = opened
            rows = await connection.fetch(SQL["lock_by_ids"], queue.key, ids)
            entries = [entry_of(row) for row in rows]
            # What was seen without a lock may have changed.
            meant = [
                entry
                for entry in entries
                if entry.status in statuses and which.matches(entry.envelope, entry.life, step.now_ms)
            ]
            if isinstance(verb, Move):
                await self._move(step, queue, target, meant, verb, now_ms)
            else:
                for entry in meant:
                    await self._alter_one(step, queue, entry, verb, now_ms)
            await step.write()
            fresh.ready(info.ref, step.now_ms)  # what is removed may have freed a group
            if queue.row.drain_until is not None:
                fresh.deadline(step.now_ms)
            return len(meant), fresh

        for _ in range(_TRIES):
            try:
                changed, fresh = await info.shard.step(work)
            except Short as short:
                await self._grants.widen(short)
                continue
            notices.add(fresh)
            return changed
        raise StoreUnavailable(f"the quotas of {target.ref.tenant} were used up again and again: try once more")

    async def _alter_one(self, step: Step, info: QueueInfo, entry: Entry, verb: Verb, now_ms: int) -> None:
        if isinstance(verb, Redrive) and verb.edit is not None:
            envelope = edited(entry.envelope, verb.edit)
            await self._grants.check(step.connection, info, [envelope.bytes], freed=Part(1, entry.bytes))
            envelope = await self._payloads.edit(step.connection, entry.envelope, envelope, now_ms)
            pieces = envelope.pieces
            await step.connection.execute(
                *(_EDIT, info.key, envelope.id, envelope.payload, encode_type(envelope.content_type)),
                *(envelope.is_json, envelope.bytes),
                *((None, None, None) if pieces is None else (pieces.place, pieces.size, pieces.checksum)),
            )
            step.notices.deadline(step.now_ms)  # sweeps delete what it had in pieces
            step.count_bytes(info.key, envelope.bytes - entry.bytes)
            entry.envelope, entry.bytes = envelope, envelope.bytes
        step.apply(info, entry, alter(entry.life, entry.envelope, verb, info.default_ttl_ms, step.now_ms))

    async def _move(
        self, step: Step, info: QueueInfo, target: QueueInfo, meant: list[Entry], verb: Move, now_ms: int
    ) -> None:
        opened = await self._upkeep.open(step.connection, target.shard, target.key, now_ms, step.notices)
        if opened is None:
            raise no_such_queue(target.ref)
        target = opened[0]
        if target.row.drain_until is not None:
            raise being_deleted(target.ref)
        if target.ref.tenant != info.ref.tenant:
            await self._grants.check(step.connection, target, [entry.bytes for entry in meant])
        if not meant:
            return
        groups = {entry.envelope.group for entry in meant if entry.envelope.group is not None}
        if groups:
            await step.connection.execute(
                SQL["has_groups"], target.key, max(entry.envelope.id for entry in meant if entry.envelope.group)
            )
        await step.connection.execute(_MOVE, info.key, [entry.envelope.id for entry in meant], target.key)
        for entry in meant:
            change = alter(entry.life, entry.envelope, verb, info.default_ttl_ms, step.now_ms)
            # Both queues' journals tell of it, so that each one's counts can be made up from its own events.
            step.tell(info, entry, change, reason=f"to {target.ref}")
            step.tell(target, entry, change, reason=f"from {info.ref}")
            step.arrive(info, target, entry)
        step.touch_groups(info.key, groups)
