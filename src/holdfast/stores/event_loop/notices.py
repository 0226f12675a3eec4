"""Notices: the reports of one call to the store's listener, gathered while it runs and sent once it is durable."""

from collections import Counter, defaultdict

from holdfast.model.events import Event
from holdfast.model.names import QueueRef


class Notices:
    """The earliest time of each kind that the listener must know, and the events to count.

    Times are by the store's clock. Methods that accept None do nothing for it.
    """

    __slots__ = ("deadline_at", "ready_at", "scheduled_at", "tallies")

    def __init__(self) -> None:
        self.ready_at: dict[QueueRef, int] = {}
        self.deadline_at: int | None = None
        self.scheduled_at: int | None = None
        self.tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    def ready(self, ref: QueueRef, at_ms: int | None) -> None:
        """Note that a claim on this queue may find a message from `at_ms` on."""
        if at_ms is not None and at_ms < self.ready_at.get(ref, at_ms + 1):
            self.ready_at[ref] = at_ms

    def deadline(self, at_ms: int | None) -> None:
        """Note that a sweep has something to do from `at_ms` on."""
        if at_ms is not None and (self.deadline_at is None or at_ms < self.deadline_at):
            self.deadline_at = at_ms

    def scheduled(self, at_ms: int | None) -> None:
        """Note that a schedule is due from `at_ms` on."""
        if at_ms is not None and (self.scheduled_at is None or at_ms < self.scheduled_at):
            self.scheduled_at = at_ms

    def tally(self, ref: QueueRef, event: Event, number: int = 1) -> None:
        """Count an event for the metrics."""
        self.tallies[ref][event] += number

    def add(self, other: "Notices") -> None:
        """Add everything that another call has gathered."""
        for ref, at_ms in other.ready_at.items():
            self.ready(ref, at_ms)
        self.deadline(other.deadline_at)
        self.scheduled(other.scheduled_at)
        for ref, counted in other.tallies.items():
            self.tallies[ref] += counted
