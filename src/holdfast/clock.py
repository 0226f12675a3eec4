"""Time: the only file that reads it or waits for it.

Everything above is handed a `Clock`, so that every timing rule can be tested without sleeping.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, runtime_checkable

_log = logging.getLogger("holdfast")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970."""


class Timer(Protocol):
    def cancel(self) -> None:
        """Do not run the callback; harmless after it ran."""


@runtime_checkable
class Alarm(Protocol):
    """Something that calls back at a time of its clock."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        """Call once `at_ms` is reached, which lies ahead; from whichever thread."""


def steady_s() -> float:
    """Seconds of a clock that never steps: for how long something took, which no rule depends on."""
    return time.perf_counter()


# No wait is longer: the platform's own limits lie beyond, and whoever waits looks at the clock again anyway.
_LONGEST_WAIT_S = 24 * 3_600.0


def rest_s(seconds: float) -> None:
    """Let this thread do nothing for a moment, so that others get on."""
    time.sleep(seconds)


def seconds_until(at_ms: int, clock: Clock) -> float:
    """How long to wait for `at_ms`: a millisecond more than the difference, because now_ms rounds down."""
    return min(max((at_ms - clock.now_ms() + 1) / 1_000, 0.0), _LONGEST_WAIT_S)


# Where it exists, a clock that also counts the time a machine was suspended.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# Of the time that passes, a clock that is ahead of the wall gives back one part in this many: no lease is then shorter
# than granted, nor longer by more than a tenth, and an hour is made good in ten.
_GIVE_BACK = 10
# Further behind than this, a wall clock was set wrong before, and no bridge is built from there.
_LONGEST_BRIDGE_MS = 24 * 3_600_000
# Behind by less is no news: two processes read the wall at their start.
_SLIGHTLY_MS = 1_000


class SystemClock:
    """Wall time at the start plus steady time since.

    So a step of the wall clock neither ends every lease at once nor keeps one for hours: a running process
    does not see it. The next start does, unless the wall went back: see `go_on_from`.
    """

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)
        self._ahead_ns = 0
        self._ahead_since_ns = 0

    def now_ms(self) -> int:
        steady_ns = time.clock_gettime_ns(_STEADY)
        now_ns = self._origin_ns + steady_ns
        if self._ahead_ns:
            now_ns += max(0, self._ahead_ns - (steady_ns - self._ahead_since_ns) // _GIVE_BACK)
        return now_ns // 1_000_000

    def wall_ms(self) -> int:
        """Return the wall's time, which this clock does not follow by itself."""
        return time.time_ns() // 1_000_000

    def follow_wall(self) -> None:
        """Go by the wall as it is now: at once if that is later, else a tenth slower until the wall has caught up."""
        now_ms = self.now_ms()
        self._origin_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)
        self.go_on_from(now_ms)

    def go_on_from(self, at_ms: int) -> None:
        """Begin at this time, which lies ahead of the wall, and let the wall catch up."""
        self._ahead_since_ns = time.clock_gettime_ns(_STEADY)
        self._ahead_ns = max(0, at_ms * 1_000_000 - self._origin_ns - self._ahead_since_ns)


def go_on_from(clock: Clock, at_ms: int) -> None:
    """For a store that has seen this time. If the wall was set back since, all that it has written would be due later
    by as much: what is ready, leases, delays, ticks. So time goes on where the store left it."""
    behind_ms = at_ms - clock.now_ms()
    if behind_ms <= 0:
        return
    if isinstance(clock, SystemClock) and behind_ms <= _LONGEST_BRIDGE_MS:
        clock.go_on_from(at_ms)
        told = "time goes on from there, a tenth slower until the clock has caught up"
    else:
        told = "what was written then, ready messages too, waits until the clock gets there"
    if behind_ms >= _SLIGHTLY_MS:
        _log.warning("the clock is %.1f s behind the latest time in the store: %s", behind_ms / 1_000, told)


class _ThreadTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ThreadAlarm:
    """Timers on one background thread, which starts with the first timer and sleeps until the next is due."""

    # Cancelled timers stay in the heap until due; beyond this many, they are cleared out.
    _SLACK = 1_024

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, _ThreadTimer]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _ThreadTimer(callback)
        with self._changed:
            if self._is_closed:
                return timer
            if len(self._heap) > self._SLACK:
                self._clear_cancelled()
            heapq.heappush(self._heap, (at_ms, next(self._order), timer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-timers", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is timer:
                self._changed.notify()
        return timer

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._heap.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _clear_cancelled(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].callback is not None]
        heapq.heapify(self._heap)
        # Live timers alone may exceed the slack: then let the heap double before looking again.
        self._SLACK = max(ThreadAlarm._SLACK, 2 * len(self._heap))

    def _is_due(self) -> bool:
        """Return whether the first timer is due. Nobody is woken up for those before it that were cancelled: a claim
        that waits makes a timer, and mostly cancels it."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        return bool(heap) and heap[0][0] <= self._clock.now_ms()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._is_due():
                    self._changed.wait(seconds_until(self._heap[0][0], self._clock) if self._heap else None)
                if self._is_closed:
                    return
                callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except Exception:  # one callback's fault must not silence every later timer
                    _log.exception("a timer's callback failed")
