"""Time: the only module that reads the time or waits for it.

Other code is given a `Clock`, so that every timing rule can be tested without sleeping.
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
    """A source of the current time."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since 1970."""


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Do not run the callback. Has no effect once it has run."""


@runtime_checkable
class Alarm(Protocol):
    """A clock's source of timers."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback`, on any thread, when the clock reaches `at_ms`, a time in the future."""


# Returns the seconds of a clock that never steps, for measuring how long something took. It has no function around it,
# because calls read it several times.
steady_s = time.perf_counter


# The longest single wait. It is below the limits of every platform, and a waiting caller reads the clock again anyway.
_LONGEST_WAIT_S = 24 * 3_600.0


def sleep(seconds: float) -> None:
    """Block this thread for a moment, so that other threads can run."""
    time.sleep(seconds)


def seconds_until(at_ms: int, clock: Clock) -> float:
    """Return how long to wait for `at_ms`: a millisecond more than the difference, because `now_ms` rounds down."""
    return min(max((at_ms - clock.now_ms() + 1) / 1_000, 0.0), _LONGEST_WAIT_S)


# CLOCK_BOOTTIME, where it exists, also counts the time during which a machine was suspended.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# A clock that is ahead of the wall clock runs slower by one part in this many until the wall clock has caught up. No
# lease is then shorter than granted or longer by more than a tenth, and an hour of difference takes ten hours.
_SLOWDOWN = 10
# If the wall clock is further behind than this, the stored time was probably wrong, and time does not continue from it.
_LONGEST_GAP_MS = 24 * 3_600_000
# Smaller differences are not logged: two processes that read the wall clock at their start differ by as much.
_LOGGED_GAP_MS = 1_000


class SystemClock:
    """The wall clock's time at the start of the process plus the steady time since.

    A running process does not see a step of the wall clock, so a step neither ends every lease at once nor prolongs
    leases by hours. The next start sees it, unless the wall clock was set back: see `continue_from`.
    """

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)
        self._ahead_ns = 0
        self._ahead_since_ns = 0

    def now_ms(self) -> int:
        steady_ns = time.clock_gettime_ns(_STEADY)
        now_ns = self._origin_ns + steady_ns
        if self._ahead_ns:
            now_ns += max(0, self._ahead_ns - (steady_ns - self._ahead_since_ns) // _SLOWDOWN)
        return now_ns // 1_000_000

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds since 1970, which this clock does not follow by itself."""
        return time.time_ns() // 1_000_000

    def resync(self) -> None:
        """Follow the wall clock from now on.

        If the wall clock is ahead, jump to its time. If it is behind, run a tenth slower until it has caught up.
        """
        now_ms = self.now_ms()
        self._origin_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)
        self.continue_from(now_ms)

    def continue_from(self, at_ms: int) -> None:
        """Continue from this time, which is ahead of the wall clock, and run slower until the wall has caught up."""
        self._ahead_since_ns = time.clock_gettime_ns(_STEADY)
        self._ahead_ns = max(0, at_ms * 1_000_000 - self._origin_ns - self._ahead_since_ns)


def continue_from(clock: Clock, at_ms: int) -> None:
    """Let a clock continue from the latest time in a store, if the clock is behind it.

    If the wall clock was set back since, everything in the store would become due that much later: ready messages,
    leases, delays and ticks. A clock that is not a `SystemClock`, or is too far behind, stays as it is.
    """
    behind_ms = at_ms - clock.now_ms()
    if behind_ms <= 0:
        return
    if isinstance(clock, SystemClock) and behind_ms <= _LONGEST_GAP_MS:
        clock.continue_from(at_ms)
        consequence = "time continues from there, a tenth slower until the clock has caught up"
    else:
        consequence = (
            "everything written then, ready messages too, waits until the clock reaches that time; check the clock"
        )
    if behind_ms >= _LOGGED_GAP_MS:
        _log.warning("clock_behind_store behind_s=%.1f: %s", behind_ms / 1_000, consequence)


class _ThreadTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ThreadAlarm:
    """Timers on one background thread, which starts with the first timer and sleeps until the next one is due."""

    # Cancelled timers stay in the heap until they are due. Above this number of entries they are removed earlier.
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
        # If live timers alone exceed the limit, let the heap double before it is searched again.
        self._SLACK = max(ThreadAlarm._SLACK, 2 * len(self._heap))

    def _is_due(self) -> bool:
        """Return whether the first timer is due, after removing cancelled timers before it.

        The thread does not wake up for cancelled timers, because a waiting claim makes a timer and usually cancels it.
        """
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
                except Exception:  # an error in one callback must not stop the later timers
                    _log.exception("timer_callback_failed")
