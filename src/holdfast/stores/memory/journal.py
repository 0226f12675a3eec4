"""The journal in memory: a list of events and the number of the first."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from holdfast.model.events import Event, JournalEvent, parse_position
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.contract import JOURNAL_STEP
from holdfast.stores.logic.results import event_of
from holdfast.stores.memory.queue import MemoryMessage
from holdfast.stores.values import JournalPage


class MemoryJournal:
    """The journal of a memory store."""

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._events: list[JournalEvent] = []
        self._first = 1
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    def append(
        self,
        ref: QueueRef,
        entry: MemoryMessage,
        event: Event | None,
        now_ms: int,
        after: Life | None = None,
        *,
        reason: str | None = None,
        error: str | None = None,
    ) -> None:
        """Append an event. `after` is the life that the event led to; without it the message's current life is used."""
        assert event is not None
        self._tallies[ref][event] += 1
        events = self._events
        seq = self._first + len(events)
        events.append(
            event_of(event, ref, entry.envelope, entry.life, now_ms, after, reason=reason, error=error, seq=seq)
        )

    def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the events counted since the previous call."""
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    def read(
        self, after: str | None, limit: int, tenant: str | None, oldest_at: int, until: str | None = None
    ) -> JournalPage:
        """Return a page of events, as `Store.journal` says."""
        position = parse_position(after)
        last = None if until is None else parse_position(until)
        events: list[JournalEvent] = []
        start = max(position + 1 - self._first, 0)
        for event in self._events[start : start + JOURNAL_STEP]:
            if len(events) == limit or (last is not None and event.seq > last):
                break
            position = event.seq
            if (tenant is None or event.tenant == tenant) and event.at >= oldest_at:
                events.append(event)
        return JournalPage(events, str(position))

    def trim(self, limit: int, now_ms: int) -> int:
        """Delete events older than the retention, at most `limit`. Return how many were deleted."""
        trimmed = 0
        for event in self._events[:limit]:
            if event.at > now_ms - self._retention_ms:
                break
            trimmed += 1
        del self._events[:trimmed]
        self._first += trimmed
        return trimmed

    def next_trim_at(self) -> int | None:
        """Return when the oldest event expires; None without events."""
        return self._events[0].at + self._retention_ms if self._events else None
