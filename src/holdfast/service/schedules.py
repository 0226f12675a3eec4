"""ScheduleService: set, look up and delete schedules. `dispatch/schedules.py` fires them."""

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.schedules import ScheduleInfo, apply_change, info_of
from holdfast.runtime import Runtime
from holdfast.service.policy_cache import PolicyCache
from holdfast.stores.contract import Store
from holdfast.wire.requests import Nothing, ScheduleNameRequest, ScheduleRequest

# The number of schedules that a listing reads at a time. It is small because each is read with its payload.
_PAGE = 16
# The maximum number of attempts to write a schedule that ticks or other callers change at the same time.
_MAX_ATTEMPTS = 100


class ScheduleService:
    """The operations on the schedules of a queue."""

    def __init__(self, store: Store, directory: PolicyCache, runtime: Runtime, *, max_payload: int) -> None:
        self._store = store
        self._directory = directory
        self._now_ms = runtime.clock.now_ms
        self._max_payload = max_payload

    async def schedules(self, ref: QueueRef, request: Nothing) -> list[ScheduleInfo]:
        """Return all schedules of a queue, without their payloads."""
        infos: list[ScheduleInfo] = []
        after: str | None = None
        while page := await self._store.schedules.page(ref, after, _PAGE):
            infos += [info_of(each, with_payload=False) for each in page]
            after = page[-1].name
        return infos

    async def schedule(self, ref: QueueRef, request: ScheduleNameRequest) -> ScheduleInfo:
        """Return one schedule, with its payload if asked for. Raise `MessageNotFound`."""
        schedule = await self._store.schedules.find(ref, parse_name("schedule", request.name))
        if schedule is None:
            raise _no_such_schedule(ref, request.name)
        return info_of(schedule, with_payload=request.payload)

    async def set_schedule(self, ref: QueueRef, change: ScheduleRequest) -> ScheduleInfo:
        """Create a schedule, or change the given fields of one. The queue is created if it is missing.

        Raise `StoreUnavailable` after too many conflicting writes.
        """
        name = parse_name("schedule", change.name)
        if await self._store.directory.find_queue(ref) is None:
            apply_change(name, None, change, self._now_ms(), self._max_payload)  # raises before the queue is created
            await self._directory.require_or_create(ref)
        for _ in range(_MAX_ATTEMPTS):
            current = await self._store.schedules.find(ref, name)
            now_ms = self._now_ms()
            schedule = apply_change(name, current, change, now_ms, self._max_payload)
            if schedule == current or await self._store.schedules.put(ref, current, schedule, now_ms):
                return info_of(schedule, with_payload=False)
        raise StoreUnavailable(
            f"gave up after {_MAX_ATTEMPTS} conflicting writes to schedule {name} of {ref}: try again", schedule=name
        )

    async def delete_schedule(self, ref: QueueRef, request: ScheduleNameRequest) -> None:
        """Delete a schedule. Raise `MessageNotFound`."""
        if not await self._store.schedules.delete(ref, parse_name("schedule", request.name), self._now_ms()):
            raise _no_such_schedule(ref, request.name)


def _no_such_schedule(ref: QueueRef, name: str) -> MessageNotFound:
    """Return `MessageNotFound`, because the codes of SPEC 3.11 have none for schedules."""
    return MessageNotFound(f"queue {ref} has no schedule {name}", schedule=name)
