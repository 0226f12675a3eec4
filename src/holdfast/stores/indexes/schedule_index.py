"""The in-memory index of schedules, for stores that one process owns."""

from sortedcontainers import SortedDict, SortedList

from holdfast.model.names import QueueRef
from holdfast.model.schedules import check_schedule_count

Due = tuple[int, QueueRef, str]


class ScheduleIndex:
    """The schedules of all queues by name and by next tick. The schedules themselves are kept by the store."""

    def __init__(self) -> None:
        # The next tick of each schedule by queue and name; None: it has no next tick, for example because it is paused.
        self._queues: dict[QueueRef, SortedDict[str, int | None]] = {}
        self._due: SortedList[Due] = SortedList()

    def names(self, ref: QueueRef, after: str | None, limit: int) -> list[str]:
        """Return up to `limit` names of the queue's schedules that sort after `after`, sorted."""
        known = self._queues.get(ref)
        if known is None:
            return []
        start = 0 if after is None else known.bisect_right(after)
        return list(known.islice(start, start + limit))

    def check_room(self, ref: QueueRef, name: str) -> None:
        """Raise `OverQuota` if the schedule is new and the queue already has the maximum number of schedules."""
        known = self._queues.get(ref, ())
        if name not in known:
            check_schedule_count(ref, len(known))

    def put(self, ref: QueueRef, name: str, next_at: int | None) -> None:
        """Add a schedule, or change its next tick."""
        known = self._queues.get(ref)
        if known is None:
            known = self._queues[ref] = SortedDict()
        if (old := known.get(name)) is not None:
            self._due.remove((old, ref, name))
        known[name] = next_at
        if next_at is not None:
            self._due.add((next_at, ref, name))

    def delete(self, ref: QueueRef, name: str) -> None:
        """Delete a schedule. Raise `KeyError` if there is none of this name."""
        self.put(ref, name, None)
        known = self._queues[ref]
        del known[name]
        if not known:
            del self._queues[ref]

    def delete_queue(self, ref: QueueRef) -> list[str]:
        """Delete all schedules of a queue, and return their names."""
        names = list(self._queues.get(ref, ()))
        for name in names:
            self.delete(ref, name)
        return names

    def due(self, limit: int, now_ms: int) -> tuple[list[Due], int | None]:
        """Return up to `limit` due schedules, earliest first, and the next tick of all others, if any."""
        found: list[Due] = []
        for each in self._due:
            if each[0] > now_ms or len(found) == limit:
                return found, each[0]
            found.append(each)
        return found, None

    def first_at(self) -> int | None:
        """Return the earliest next tick of all schedules, if any."""
        return self._due[0][0] if self._due else None
