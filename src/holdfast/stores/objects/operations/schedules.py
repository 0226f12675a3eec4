"""Schedules: each is a document of its own. A tick writes it in one step with its message."""

from collections.abc import Callable

from holdfast.model.answers import Enqueued
from holdfast.model.names import QueueRef
from holdfast.model.schedules import (
    MAX_SCHEDULES,
    Schedule,
    Tick,
    after_fired,
    check_schedule_count,
    draft_at,
    reason_of,
)
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, retry_conflicts, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments, CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.enqueue import ObjectEnqueue
from holdfast.stores.values import DueSchedules

# Interval at which the schedules of all queues are listed, to find those of other processes.
LIST_MS = 10_000

_decode_schedule = BodyDecoder(Schedule)


class ObjectSchedules:
    """The `ScheduleStore`."""

    def __init__(
        self,
        driver: LoopDriver,
        documents: CasDocuments,
        directory: ObjectDirectory,
        enqueue: ObjectEnqueue,
        check_disk_space: Callable[[int], None],
    ) -> None:
        """`check_disk_space` raises `StoreUnavailable` if the disk has no room for this many more bytes."""
        self.driver = driver
        self._documents = documents
        self._directory = directory
        self._enqueue = enqueue
        self._check_disk_space = check_disk_space
        # The schedules that this process knows.
        self._known: dict[tuple[QueueRef, str], Schedule] = {}
        self._listed_at: int | None = None

    async def _read(self, ref: QueueRef, name: str) -> tuple[Schedule | None, ReadCasDocument | None]:
        while True:
            current = await self._documents.read(layout.schedule(ref, name))
            if current is not None and current.is_busy:
                await self._documents.pause(Busy(current.content.step))
                continue
            schedule = None if current is None or current.body is None else _decode_schedule(current.body)
            self._note(ref, name, schedule)
            return schedule, current

    def _note(self, ref: QueueRef, name: str, schedule: Schedule | None) -> None:
        if schedule is None:
            self._known.pop((ref, name), None)
        else:
            self._known[ref, name] = schedule

    @on_driver
    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        await self._directory.require(ref)
        return (await self._read(ref, name))[0]

    async def names(self, ref: QueueRef, after: str | None = None) -> list[str]:
        """Return the names of a queue's schedules, including erased documents."""
        start = None if after is None else layout.schedule(ref, after)
        names: list[str] = []
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.schedules(ref), start):
                names += [item.key[item.key.rfind("/") + 1 :].removesuffix(".pb") for item in page]
        return sorted(names)

    @on_driver
    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        await self._directory.require(ref)
        found: list[Schedule] = []
        # Sorted by name: keys end in .pb, which sometimes gives another order.
        for name in await self.names(ref):
            if (after is None or name > after) and len(found) < limit:
                schedule = (await self._read(ref, name))[0]
                if schedule is not None:
                    found.append(schedule)
        return found

    async def _count(self, ref: QueueRef) -> int:
        """Return the number of the queue's schedules, or of all listed names if that is below the limit."""
        names = await self.names(ref)
        if len(names) < MAX_SCHEDULES:
            return len(names)
        # Erased documents are listed too, until a sweep deletes them.
        read = await run_concurrently(names, lambda name: self._read(ref, name))
        return sum(schedule is not None for schedule, _ in read)

    @on_driver_with_notices
    async def put(self, notices: Notices, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        await self._directory.require_open(ref)
        there, current = await self._read(ref, schedule.name)
        if there != was:
            return False
        if there is None:
            check_schedule_count(ref, len([name for each, name in self._known if each == ref]))
            check_schedule_count(ref, await self._count(ref))
        try:
            await self._documents.write(layout.schedule(ref, schedule.name), encode(schedule), current)
        except (PreconditionFailed, Busy):
            return False
        self._note(ref, schedule.name, schedule)
        notices.scheduled(schedule.next_at)
        return True

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        """Enqueue the message of a tick, unless another process has fired it or changed the schedule; then return
        None."""
        self._check_disk_space(len(schedule.message.payload))  # in the caller's thread, like `enqueue`
        return await self._fire(ref, schedule, tick, now_ms)

    @on_driver_with_notices
    async def _fire(
        self, notices: Notices, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int
    ) -> Enqueued | None:
        await self._directory.require_open(ref)
        while True:
            there, current = await self._read(ref, schedule.name)
            if there != schedule:
                return None
            # A new id for each try: the documents of an aborted step are still stored under the previous one.
            [id] = self._enqueue.take_ids(1, now_ms)
            after = after_fired(schedule, tick, id)
            try:
                [enqueued] = await self._enqueue.enqueue(
                    ref,
                    [draft_at(schedule, tick.at)],
                    now_ms,
                    notices,
                    auto_create=False,
                    reason=reason_of(schedule, tick.at),
                    extra_writes=[CasWrite(layout.schedule(ref, schedule.name), encode(after), current)],
                    ids=[id],
                )
            except PreconditionFailed:
                continue  # fired by another process, or its quota guard was written by one
            self._note(ref, schedule.name, after)
            notices.scheduled(tick.next_at)
            return enqueued

    @on_driver
    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        await self._directory.require(ref)
        return await self._delete(ref, name)

    async def delete_all(self, ref: QueueRef) -> None:
        """Delete all schedules of a queue."""
        for name in await self.names(ref):
            await self._delete(ref, name)

    async def _delete(self, ref: QueueRef, name: str) -> bool:
        async def delete() -> bool:
            there, current = await self._read(ref, name)
            if there is None or current is None:
                return False
            await self._documents.erase(current)
            self._note(ref, name, None)
            return True

        return await retry_conflicts(delete, f"schedule {name} of {ref}", self._documents.pause)

    @on_driver
    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        if self._listed_at is None or not 0 <= now_ms - self._listed_at < LIST_MS:
            await self._list(now_ms)
        every = sorted(
            (schedule.next_at, ref, name)
            for (ref, name), schedule in self._known.items()
            if schedule.next_at is not None
        )
        due = [each for each in every if each[0] <= now_ms][:limit]
        found: list[tuple[QueueRef, Schedule]] = []
        for _, ref, name in due:
            schedule, _ = await self._read(ref, name)
            if schedule is not None and schedule.next_at is not None and schedule.next_at <= now_ms:
                found.append((ref, schedule))
        next_at = every[len(due)][0] if len(every) > len(due) else None
        return DueSchedules(found, next_at)

    async def _list(self, now_ms: int) -> None:
        for tenant in await self._directory.names():
            for row in await self._directory.list_queues(tenant):
                if row.drain_until is None:
                    for name in await self.names(row.ref):
                        await self._read(row.ref, name)
        self._listed_at = now_ms
