"""Which schedules there are and when each is due; the same for every store that keeps them in one process."""

from sortedcontainers import SortedDict, SortedList

from holdfast.model.names import QueueRef
from holdfast.model.schedules import check_schedule_count

Due = tuple[int, QueueRef, str]


class ScheduleIndex:
    def __init__(self) -> None:
        # The next tick of each schedule by queue and name; None: it has none.
        self._queues: dict[QueueRef, SortedDict[str, int | None]] = {}
        self._due: SortedList[Due] = SortedList()

    def names(self, ref: QueueRef, after: str | None, limit: int) -> list[str]:
        known = self._queues.get(ref)
        if known is None:
            return []
        start = 0 if after is None else known.bisect_right(after)
        return list(known.islice(start, start + limit))

    def check_room(self, ref: QueueRef, name: str) -> None:
        known = self._queues.get(ref, ())
        if name not in known:
            check_schedule_count(ref, len(known))

    def note(self, ref: QueueRef, name: str, next_at: int | None) -> None:
        known = self._queues.get(ref)
        if known is None:
            known = self._queues[ref] = SortedDict()
        if (old := known.get(name)) is not None:
            self._due.remove((old, ref, name))
        known[name] = next_at
        if next_at is not None:
            self._due.add((next_at, ref, name))

    def forget(self, ref: QueueRef, name: str) -> None:
        self.note(ref, name, None)
        known = self._queues[ref]
        del known[name]
        if not known:
            del self._queues[ref]

    def forget_queue(self, ref: QueueRef) -> list[str]:
        """The names that were its schedules'."""
        names = list(self._queues.get(ref, ()))
        for name in names:
            self.forget(ref, name)
        return names

    def due(self, limit: int, now_ms: int) -> tuple[list[Due], int | None]:
        """Up to so many that are due, earliest first, and when the next of all others is."""
        found: list[Due] = []
        for each in self._due:
            if each[0] > now_ms or len(found) == limit:
                return found, each[0]
            found.append(each)
        return found, None

    def first_at(self) -> int | None:
        return self._due[0][0] if self._due else None
