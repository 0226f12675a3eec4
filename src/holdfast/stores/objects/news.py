"""What a call's changes make possible: gathered while it is carried out, told once it holds."""

from collections import Counter, defaultdict

from holdfast.model.events import Event
from holdfast.model.names import QueueRef


class News:
    __slots__ = ("deadline_at", "ready_at", "scheduled_at", "tallies")

    def __init__(self) -> None:
        self.ready_at: dict[QueueRef, int] = {}
        self.deadline_at: int | None = None
        self.scheduled_at: int | None = None
        self.tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    def ready(self, ref: QueueRef, at_ms: int | None) -> None:
        if at_ms is not None and at_ms < self.ready_at.get(ref, at_ms + 1):
            self.ready_at[ref] = at_ms

    def deadline(self, at_ms: int | None) -> None:
        if at_ms is not None and (self.deadline_at is None or at_ms < self.deadline_at):
            self.deadline_at = at_ms

    def scheduled(self, at_ms: int | None) -> None:
        if at_ms is not None and (self.scheduled_at is None or at_ms < self.scheduled_at):
            self.scheduled_at = at_ms

    def tally(self, ref: QueueRef, event: Event) -> None:
        self.tallies[ref][event] += 1
