"""Schedules in memory."""

from holdfast.model.answers import Enqueued
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, Tick, after_fired, draft_at, reason_of
from holdfast.stores.indexes.schedule_index import ScheduleIndex
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.queues import require_open
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.unit import MemoryUnits
from holdfast.stores.values import DueSchedules


class MemorySchedules:
    """`ScheduleStore`."""

    def __init__(self, directory: MemoryDirectory, units: MemoryUnits) -> None:
        self._directory = directory
        self._units = units
        self._schedules: dict[tuple[QueueRef, str], Schedule] = {}
        self._schedule_index = ScheduleIndex()

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        self._directory.require(ref)
        return self._schedules.get((ref, name))

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        self._directory.require(ref)
        return [self._schedules[ref, name] for name in self._schedule_index.names(ref, after, limit)]

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        self._directory.require_open(ref)
        if self._schedules.get((ref, schedule.name)) != was:
            return False
        self._schedule_index.check_room(ref, schedule.name)
        self._put(ref, schedule)
        return True

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        async def work(unit: MemoryUnits) -> Enqueued | None:
            await require_open(unit, ref)
            if self._schedules.get((ref, schedule.name)) != schedule:
                return None
            draft, reason = draft_at(schedule, tick.at), reason_of(schedule, tick.at)
            [enqueued] = await enqueue(unit, ref, [draft], auto_create=False, reason=reason)
            self._put(ref, after_fired(schedule, tick, enqueued.snowflake))
            return enqueued

        return await self._units.run(ref, work, now_ms)

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        self._directory.require(ref)
        if self._schedules.pop((ref, name), None) is None:
            return False
        self._schedule_index.delete(ref, name)
        return True

    def delete_all(self, ref: QueueRef) -> None:
        """Delete all schedules of a queue."""
        for name in self._schedule_index.delete_queue(ref):
            del self._schedules[ref, name]

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        self._directory.check_open()
        due, next_at = self._schedule_index.due(limit, now_ms)
        return DueSchedules([(ref, self._schedules[ref, name]) for _, ref, name in due], next_at)

    def _put(self, ref: QueueRef, schedule: Schedule) -> None:
        self._schedules[ref, schedule.name] = schedule
        self._schedule_index.put(ref, schedule.name, schedule.next_at)
        if schedule.next_at is not None:
            self._units.listener.scheduled(schedule.next_at)
