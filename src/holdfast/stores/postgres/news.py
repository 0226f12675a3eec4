"""What a call's changes make possible: gathered while it is carried out, told once it holds."""

from collections import Counter, defaultdict

from holdfast.model.events import Event
from holdfast.model.names import QueueRef


class News:
    """Times are the database's."""

    __slots__ = ("deadline_at", "ready_at", "scheduled_at", "tallies")

    def __init__(self) -> None:
        self.ready_at: dict[QueueRef, int] = {}
        self.deadline_at: int | None = None
        self.scheduled_at: int | None = None
        self.tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        known = self.ready_at.get(ref)
        if known is None or at_ms < known:
            self.ready_at[ref] = at_ms

    def deadline(self, at_ms: int) -> None:
        if self.deadline_at is None or at_ms < self.deadline_at:
            self.deadline_at = at_ms

    def scheduled(self, at_ms: int) -> None:
        if self.scheduled_at is None or at_ms < self.scheduled_at:
            self.scheduled_at = at_ms

    def tally(self, ref: QueueRef, event: Event, number: int = 1) -> None:
        self.tallies[ref][event] += number

    def add(self, other: "News") -> None:
        for ref, at_ms in other.ready_at.items():
            self.ready(ref, at_ms)
        if other.deadline_at is not None:
            self.deadline(other.deadline_at)
        if other.scheduled_at is not None:
            self.scheduled(other.scheduled_at)
        for ref, counted in other.tallies.items():
            self.tallies[ref] += counted
