"""Schedules: compare-and-set replacement, and firing in one transaction with the new message."""

from typing import Any

import msgspec

from holdfast.model.answers import Enqueued
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, Tick, after_fired, check_schedule_count, draft_at, reason_of
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.results import being_deleted
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit
from holdfast.stores.values import DueSchedules

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode

_FIND = "SELECT body FROM schedules WHERE queue_key = $1 AND name = $2"
_FIND_LOCKED = _FIND + " FOR UPDATE"
_PAGE = "SELECT body FROM schedules WHERE queue_key = $1 AND name > $2 ORDER BY name LIMIT $3"
_COUNT = "SELECT count(*) FROM schedules WHERE queue_key = $1"
_PUT = (
    "INSERT INTO schedules AS s VALUES ($1, $2, $3, $4) "
    "ON CONFLICT (queue_key, name) DO UPDATE SET body = excluded.body, next_at = excluded.next_at"
)
_DELETE = (
    "DELETE FROM schedules USING queues "
    "WHERE queue_key = $1 AND name = $2 AND key = $1 AND moving_to IS NULL RETURNING name"
)
_DUE = (
    "SELECT body, next_at, tenant, queue FROM schedules JOIN queues ON queues.key = schedules.queue_key "
    "WHERE next_at IS NOT NULL AND moving_to IS NULL ORDER BY next_at, queue_key, name LIMIT $1"
)


class _Taken(Exception):
    """Another server has replaced or fired the schedule."""


class PostgresSchedules:
    """`ScheduleStore`."""

    def __init__(
        self,
        driver: LoopDriver,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        nodes: PostgresNodeNumbers,
        steps: StepRunner,
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes
        self._steps = steps

    @on_driver
    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        info = await self._directory.require(ref)
        rows = await info.shard.fetch(_FIND, info.key, name)
        return _decode(rows[0]["body"]) if rows else None

    @on_driver
    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        info = await self._directory.require(ref)
        rows = await info.shard.fetch(_PAGE, info.key, after or "", limit)
        return [_decode(row["body"]) for row in rows]

    @on_driver_with_notices
    async def put(self, notices: Notices, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        info = await self._directory.require_open(ref)

        async def work(connection: Any) -> bool:
            # The lock is on the queue: two calls that find no schedule of this name have no row to wait for.
            row = await connection.fetchrow(SQL["queue_locked"], ref.tenant, ref.queue, None)
            if row is not None and row["moving_to"] is not None:
                raise QueueMoved(ref)
            if row is None or row["drain_until"] is not None:
                raise being_deleted(ref)
            raw = await connection.fetchval(_FIND_LOCKED, info.key, schedule.name)
            if (None if raw is None else _decode(raw)) != was:
                return False
            if raw is None:
                check_schedule_count(ref, await connection.fetchval(_COUNT, info.key))
            await connection.execute(_PUT, info.key, schedule.name, _encode(schedule), schedule.next_at)
            return True

        is_put = await info.shard.step(work)
        if is_put and schedule.next_at is not None:
            notices.scheduled(schedule.next_at)
        return is_put

    @on_driver_with_notices
    async def fire(
        self, notices: Notices, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int
    ) -> Enqueued | None:
        await self._directory.require_open(ref)
        await self._nodes.confirm()

        async def work(unit: PostgresUnit) -> Enqueued:
            draft = draft_at(schedule, tick.at)
            queue = await unit.open(ref, is_locked=draft.group is not None)
            [enqueued] = await enqueue(unit, ref, [draft], auto_create=False, reason=reason_of(schedule, tick.at))
            assert queue is not None
            raw = await unit.connection.fetchval(_FIND_LOCKED, queue.key, schedule.name)
            if raw is None or _decode(raw) != schedule:
                raise _Taken
            after = after_fired(schedule, tick, enqueued.snowflake)
            await unit.connection.execute(_PUT, queue.key, after.name, _encode(after), after.next_at)
            return enqueued

        try:
            enqueued = await self._steps.run(ref, work, now_ms, notices)
        except _Taken:
            return None
        if tick.next_at is not None:
            notices.scheduled(tick.next_at)
        return enqueued

    @on_driver
    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        info = await self._directory.require(ref)
        return bool(await info.shard.fetch(_DELETE, info.key, name))

    @on_driver
    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        """Return due schedules of all databases that answer. A database that is down fires its ticks when it is
        back."""
        now_ms = self._cluster.database_time(now_ms)
        rows = [row for _, found in await self._cluster.fetch_all(_DUE, limit + 1) for row in found]
        rows.sort(key=lambda row: row["next_at"])
        due = [row for row in rows[:limit] if row["next_at"] <= now_ms]
        next_at = rows[len(due)]["next_at"] if len(rows) > len(due) else None
        return DueSchedules(
            [(QueueRef(row["tenant"], row["queue"]), _decode(row["body"])) for row in due],
            None if next_at is None else self._cluster.caller_time(next_at),
        )
