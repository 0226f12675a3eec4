"""Schedules as callers put, look up and delete them. The scheduler in `dispatch/` fires them."""

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.schedules import ScheduleInfo, apply_change, info_of
from holdfast.runtime import Runtime
from holdfast.service.directory import PolicyCache
from holdfast.stores.contract import Store
from holdfast.wire.requests import Nothing, ScheduleNameRequest, ScheduleRequest

# Read at a time for a listing: a schedule is read with its payload, which the listing leaves out.
_PAGE = 16
# A put is tried again when a tick or another put came in between; each time, somebody else got on.
_TRIES = 100


class ScheduleService:
    def __init__(self, store: Store, directory: PolicyCache, runtime: Runtime, *, max_payload: int) -> None:
        self._store = store
        self._directory = directory
        self._now_ms = runtime.clock.now_ms
        self._max_payload = max_payload

    async def schedules(self, ref: QueueRef, request: Nothing) -> list[ScheduleInfo]:
        infos: list[ScheduleInfo] = []
        after: str | None = None
        while page := await self._store.schedules.page(ref, after, _PAGE):
            infos += [info_of(each, with_payload=False) for each in page]
            after = page[-1].name
        return infos

    async def schedule(self, ref: QueueRef, request: ScheduleNameRequest) -> ScheduleInfo:
        schedule = await self._store.schedules.find(ref, parse_name("schedule", request.name))
        if schedule is None:
            raise _no_such_schedule(ref, request.name)
        return info_of(schedule, with_payload=request.payload)

    async def set_schedule(self, ref: QueueRef, change: ScheduleRequest) -> ScheduleInfo:
        """Create the schedule or change it: what is given changes, the rest stays."""
        name = parse_name("schedule", change.name)
        if await self._store.directory.find_queue(ref) is None:
            apply_change(name, None, change, self._now_ms(), self._max_payload)  # refused before there is a queue
            await self._directory.require_or_create(ref)
        for _ in range(_TRIES):
            was = await self._store.schedules.find(ref, name)
            now_ms = self._now_ms()
            schedule = apply_change(name, was, change, now_ms, self._max_payload)
            if schedule == was or await self._store.schedules.put(ref, was, schedule, now_ms):
                return info_of(schedule, with_payload=False)
        raise StoreUnavailable(f"schedule {name} of {ref} changes all the time: try again", schedule=name)

    async def delete_schedule(self, ref: QueueRef, request: ScheduleNameRequest) -> None:
        if not await self._store.schedules.delete(ref, parse_name("schedule", request.name), self._now_ms()):
            raise _no_such_schedule(ref, request.name)


def _no_such_schedule(ref: QueueRef, name: str) -> MessageNotFound:
    """The errors are few (SPEC 3.11): of what a queue has, this is the one that is not there."""
    return MessageNotFound(f"queue {ref} has no schedule {name}", schedule=name)
