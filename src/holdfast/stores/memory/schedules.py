"""Schedules in memory."""

from collections.abc import Callable

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, Tick, draft_at, fired, reason_of
from holdfast.stores.contract import DueSchedules
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.shelf import Shelf
from holdfast.stores.timetable import Timetable

# With what the journal is to say of it.
EnqueueOne = Callable[[Shelf, Draft, int, str], Enqueued]


class MemorySchedules:
    """`ScheduleStore`."""

    def __init__(
        self,
        directory: MemoryDirectory,
        enqueue: EnqueueOne,
        tell: Callable[[Shelf, int], None],
        tell_scheduled: Callable[[int], None],
    ) -> None:
        """`tell` and `tell_scheduled` tell the listener about a queue, and about the next tick of a schedule."""
        self._directory = directory
        self._enqueue = enqueue
        self._tell = tell
        self._tell_scheduled = tell_scheduled
        self._schedules: dict[tuple[QueueRef, str], Schedule] = {}
        self._timetable = Timetable()

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        self._directory.require(ref)
        return self._schedules.get((ref, name))

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        self._directory.require(ref)
        return [self._schedules[ref, name] for name in self._timetable.names(ref, after, limit)]

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        self._directory.require_open(ref)
        if self._schedules.get((ref, schedule.name)) != was:
            return False
        self._timetable.check_room(ref, schedule.name)
        self._put(ref, schedule)
        return True

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        shelf = self._directory.require_open(ref)
        if self._schedules.get((ref, schedule.name)) != schedule:
            return None
        draft = draft_at(schedule, tick.at)
        self._directory.check_quotas(ref.tenant, [draft.bytes])
        enqueued = self._enqueue(shelf, draft, now_ms, reason_of(schedule, tick.at))
        self._put(ref, fired(schedule, tick, enqueued.snowflake))
        self._tell(shelf, now_ms)
        return enqueued

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        self._directory.require(ref)
        if self._schedules.pop((ref, name), None) is None:
            return False
        self._timetable.forget(ref, name)
        return True

    def delete_all(self, ref: QueueRef) -> None:
        for name in self._timetable.forget_queue(ref):
            del self._schedules[ref, name]

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        self._directory.check_open()
        due, next_at = self._timetable.due(limit, now_ms)
        return DueSchedules([(ref, self._schedules[ref, name]) for _, ref, name in due], next_at)

    def _put(self, ref: QueueRef, schedule: Schedule) -> None:
        self._schedules[ref, schedule.name] = schedule
        self._timetable.note(ref, schedule.name, schedule.next_at)
        if schedule.next_at is not None:
            self._tell_scheduled(schedule.next_at)
