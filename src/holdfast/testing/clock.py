"""A clock for tests that moves only when the test moves it."""

import heapq
import threading
from collections.abc import Callable
from itertools import count

# A Sunday in June 2025. Any instant after the epoch of message ids (2024-01-01) would do.
START_MS = 1_750_000_000_000


class _ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock for tests. Instants and durations are in milliseconds.

    `advance` moves the time and calls every alarm that becomes due, in the order of their times.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._alarms: list[tuple[int, int, _ManualTimer]] = []
        self._order = count()
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Return the current time of this clock, in milliseconds since 1970."""
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> _ManualTimer:
        """Call `callback` once when `advance` reaches `at_ms`; return a timer whose `cancel()` prevents the call."""
        timer = _ManualTimer(callback)
        with self._lock:
            heapq.heappush(self._alarms, (at_ms, next(self._order), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Move the time forward by `ms` milliseconds and call the alarms that become due.

        While an alarm's callback runs, the clock shows the time of that alarm.
        """
        end = self._now_ms + ms
        while (due := self._pop_due(end)) is not None:
            at_ms, timer = due
            self._now_ms = max(self._now_ms, at_ms)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now_ms = end

    def next_alarm_at(self) -> int | None:
        """Return the time of the next alarm, or None if no alarm is set."""
        with self._lock:
            while self._alarms and self._alarms[0][2].callback is None:
                heapq.heappop(self._alarms)
            return self._alarms[0][0] if self._alarms else None

    def step_to(self, now_ms: int) -> None:
        """Set the time, forwards or backwards, without calling any alarm, like a wall clock that is corrected."""
        self._now_ms = now_ms

    def _pop_due(self, end: int) -> tuple[int, _ManualTimer] | None:
        with self._lock:
            if not self._alarms or self._alarms[0][0] > end:
                return None
            at_ms, _, timer = heapq.heappop(self._alarms)
            return at_ms, timer
