"""A clock that stands still until it is told to move."""

import heapq
import threading
from collections.abc import Callable
from itertools import count

# A Wednesday; any instant after the epoch of ids serves.
START_MS = 1_750_000_000_000


class _ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Time for tests: `advance` moves it and rings, in order, every alarm it passes."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._alarms: list[tuple[int, int, _ManualTimer]] = []
        self._order = count()
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> _ManualTimer:
        timer = _ManualTimer(callback)
        with self._lock:
            heapq.heappush(self._alarms, (at_ms, next(self._order), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass. Each alarm rings at its own time, so what it starts sees that time."""
        end = self._now_ms + ms
        while (due := self._pop_due(end)) is not None:
            at_ms, timer = due
            self._now_ms = max(self._now_ms, at_ms)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now_ms = end

    def next_alarm_at(self) -> int | None:
        """When the next alarm rings; None if none is set."""
        with self._lock:
            while self._alarms and self._alarms[0][2].callback is None:
                heapq.heappop(self._alarms)
            return self._alarms[0][0] if self._alarms else None

    def step_to(self, now_ms: int) -> None:
        """Set the clock, backwards too, and ring nothing: what a wall clock does when it is corrected."""
        self._now_ms = now_ms

    def _pop_due(self, end: int) -> tuple[int, _ManualTimer] | None:
        with self._lock:
            if not self._alarms or self._alarms[0][0] > end:
                return None
            at_ms, _, timer = heapq.heappop(self._alarms)
            return at_ms, timer
