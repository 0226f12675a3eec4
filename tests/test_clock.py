import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import clock as clock_module
from holdfast.clock import Alarm, SystemClock, ThreadAlarm, continue_from, seconds_until
from holdfast.testing import ManualClock

# Long enough for any machine; only a failure waits for it.
PATIENCE_S = 30.0
HOUR_MS = 3_600_000


# --- SystemClock -------------------------------------------------------------------------------------------------


def test_the_system_clock_begins_at_the_wall_s_time() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    after = time.time_ns() // 1_000_000
    # A correction of the wall clock may fall in between.
    assert before - 1_000 <= now <= after + 1_000


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
def test_a_step_of_the_wall_clock_does_not_move_a_clock_that_runs(monkeypatch: pytest.MonkeyPatch, step_s: int) -> None:
    running = SystemClock()
    before = running.now_ms()
    wall_ns = time.time_ns()
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: wall_ns + step_s * 1_000_000_000)

    assert before <= running.now_ms() < before + 60_000
    # The next start does see it.
    assert abs(SystemClock().now_ms() - before - step_s * 1_000) < 60_000


@pytest.mark.spec("2.14")
def test_the_system_clock_never_goes_back() -> None:
    running = SystemClock()
    readings = [running.now_ms() for _ in range(10_000)]
    assert readings == sorted(readings)


class Steady:
    """The steady time of a machine, moved by hand; its wall stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 7_000_000_000
        wall_ns = time.time_ns() - self.ns
        monkeypatch.setattr(clock_module.time, "clock_gettime_ns", lambda which: self.ns)
        monkeypatch.setattr(clock_module.time, "time_ns", lambda: wall_ns + self.ns)


def test_time_continues_where_a_store_left_it_until_the_wall_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = Steady(monkeypatch)
    clock = SystemClock()
    wall_ms = clock.now_ms()
    continue_from(clock, wall_ms + HOUR_MS)
    assert clock.now_ms() == wall_ms + HOUR_MS
    steady.ns += HOUR_MS * 1_000_000
    assert clock.now_ms() == wall_ms + HOUR_MS + HOUR_MS * 9 // 10
    steady.ns += 9 * HOUR_MS * 1_000_000
    assert clock.now_ms() == wall_ms + 10 * HOUR_MS
    steady.ns += HOUR_MS * 1_000_000
    assert clock.now_ms() == wall_ms + 11 * HOUR_MS


def test_a_clock_that_lets_the_wall_catch_up_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = Steady(monkeypatch)
    clock = SystemClock()
    continue_from(clock, clock.now_ms() + 3)
    readings = []
    for _ in range(5_000):
        steady.ns += 9_973
        readings.append(clock.now_ms())
    assert readings == sorted(readings)


def test_a_store_that_is_not_ahead_changes_nothing() -> None:
    clock = SystemClock()
    before = clock.now_ms()
    continue_from(clock, before - HOUR_MS)
    assert before <= clock.now_ms() < before + 60_000


def test_nothing_bridges_more_than_a_day_and_a_clock_moved_by_hand_stays_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, by_hand = SystemClock(), ManualClock()
    before = clock.now_ms()
    continue_from(clock, before + 25 * HOUR_MS)
    assert before <= clock.now_ms() < before + 60_000
    continue_from(by_hand, by_hand.now_ms() + HOUR_MS)
    assert by_hand.now_ms() == ManualClock().now_ms()
    assert caplog.text.count("waits until the clock reaches that time") == 2


@given(st.integers(-(1 << 60), 1 << 60))
def test_a_wait_is_never_shorter_than_the_time_left_never_negative_and_at_most_a_day(left_ms: int) -> None:
    seconds = seconds_until(1_000_000 + left_ms, ManualClock(1_000_000))

    assert 0 <= seconds <= 24 * 3_600
    assert seconds * 1_000 >= min(left_ms, 24 * 3_600_000)


# --- ThreadAlarm -------------------------------------------------------------------------------------------------


class Rung:
    """The names of the alarms that rang, in order, and when the last one did."""

    def __init__(self, last: str) -> None:
        self.names: list[str] = []
        self.at_ms: dict[str, int] = {}
        self._last = last
        self._is_over = threading.Event()
        self._clock = SystemClock()

    def ring(self, name: str) -> None:
        self.names.append(name)
        self.at_ms[name] = self._clock.now_ms()
        if name == self._last:
            self._is_over.set()

    def wait(self) -> list[str]:
        assert self._is_over.wait(PATIENCE_S), f"the alarm did not ring; only {self.names}"
        return self.names


@contextmanager
def kept_busy(alarm: ThreadAlarm) -> Iterator[None]:
    """Keep the alarm's thread in a callback, so that nothing rings meanwhile, however slow this machine is."""
    is_busy, may_end = threading.Event(), threading.Event()

    def ring() -> None:
        is_busy.set()
        may_end.wait(PATIENCE_S)

    alarm.call_at(0, ring)
    assert is_busy.wait(PATIENCE_S)
    try:
        yield
    finally:
        may_end.set()


class Sleeps:
    """The lengths of the sleeps of the alarm's thread."""

    def __init__(self) -> None:
        self._seconds: queue.SimpleQueue[float] = queue.SimpleQueue()

    def note(self, seconds: float) -> bool:
        self._seconds.put(seconds)
        return True

    def next_s(self) -> float:
        return self._seconds.get(timeout=PATIENCE_S)


def timer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-timers"]


def test_timers_ring_in_order_of_their_time_and_never_before_it() -> None:
    clock = SystemClock()
    alarm, rung = ThreadAlarm(clock), Rung(last="c")
    with kept_busy(alarm):
        now = clock.now_ms()
        times = {"c": now + 60, "a": now + 20, "b": now + 40}
        for name, at_ms in times.items():
            alarm.call_at(at_ms, lambda name=name: rung.ring(name))

    assert rung.wait() == ["a", "b", "c"]
    assert all(rung.at_ms[name] >= at_ms for name, at_ms in times.items())
    alarm.close()


def test_timers_of_one_time_ring_in_the_order_they_were_set() -> None:
    clock = SystemClock()
    alarm, rung = ThreadAlarm(clock), Rung(last="9")
    at_ms = clock.now_ms() + 20
    for name in "0123456789":
        alarm.call_at(at_ms, lambda name=name: rung.ring(name))

    assert rung.wait() == list("0123456789")
    alarm.close()


def test_a_time_that_has_passed_rings_at_once() -> None:
    alarm, rung = ThreadAlarm(SystemClock()), Rung(last="a")
    alarm.call_at(0, lambda: rung.ring("a"))
    rung.wait()
    alarm.close()


def test_a_timer_set_earlier_than_the_one_slept_for_wakes_the_thread() -> None:
    clock = SystemClock()
    alarm, rung = ThreadAlarm(clock), Rung(last="soon")
    alarm.call_at(clock.now_ms() + 3_600_000, lambda: rung.ring("late"))
    alarm.call_at(clock.now_ms() + 10, lambda: rung.ring("soon"))

    assert rung.wait() == ["soon"]
    alarm.close()


def test_the_thread_does_not_wake_up_for_a_timer_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = ThreadAlarm(SystemClock())
    sleeps, waits = Sleeps(), alarm._changed.wait
    monkeypatch.setattr(alarm._changed, "wait", lambda timeout: sleeps.note(timeout) and waits(timeout))
    with kept_busy(alarm):
        now = SystemClock().now_ms()
        alarm.call_at(now + HOUR_MS, lambda: None).cancel()
        alarm.call_at(now + 2 * HOUR_MS, lambda: None)
    assert sleeps.next_s() == pytest.approx(2 * HOUR_MS / 1_000, abs=60)
    alarm.close()


def test_a_cancelled_timer_does_not_ring_and_cancelling_again_or_after_does_no_harm() -> None:
    clock = SystemClock()
    alarm, rung = ThreadAlarm(clock), Rung(last="last")
    with kept_busy(alarm):
        now = clock.now_ms()
        cancelled = alarm.call_at(now + 10, lambda: rung.ring("cancelled"))
        rang = alarm.call_at(now, lambda: rung.ring("first"))
        alarm.call_at(now + 20, lambda: rung.ring("last"))
        cancelled.cancel()
        cancelled.cancel()

    assert rung.wait() == ["first", "last"]
    rang.cancel()
    alarm.close()


def test_a_callback_may_set_and_cancel_timers() -> None:
    clock = SystemClock()
    alarm, rung = ThreadAlarm(clock), Rung(last="second")
    doomed = alarm.call_at(clock.now_ms() + 3_600_000, lambda: rung.ring("doomed"))

    def first() -> None:
        doomed.cancel()
        alarm.call_at(0, lambda: rung.ring("second"))

    alarm.call_at(0, first)
    assert rung.wait() == ["second"]
    alarm.close()


def test_the_thread_starts_with_the_first_timer_and_ends_with_close() -> None:
    before = timer_threads()
    alarm = ThreadAlarm(SystemClock())
    assert timer_threads() == before

    alarm.call_at(1 << 52, lambda: None)
    [thread] = [each for each in timer_threads() if each not in before]
    alarm.close()
    assert not thread.is_alive()


def test_after_close_nothing_rings_any_more() -> None:
    clock = SystemClock()
    before = timer_threads()
    alarm, rung = ThreadAlarm(clock), Rung(last="never")
    alarm.call_at(clock.now_ms() + 3_600_000, lambda: rung.ring("before"))
    alarm.close()
    alarm.call_at(0, lambda: rung.ring("after")).cancel()
    alarm.call_at(0, lambda: rung.ring("after"))
    alarm.close()

    assert rung.names == []
    assert set(timer_threads()) <= set(before)


def test_an_alarm_that_was_never_used_closes() -> None:
    ThreadAlarm(SystemClock()).close()


def test_a_callback_may_close_the_alarm() -> None:
    alarm, is_closed = ThreadAlarm(SystemClock()), threading.Event()

    def close() -> None:
        alarm.close()
        is_closed.set()

    alarm.call_at(0, close)
    assert is_closed.wait(PATIENCE_S)


def test_timers_set_and_cancelled_by_the_thousand_do_not_pile_up() -> None:
    alarm = ThreadAlarm(SystemClock())
    for _ in range(20_000):
        alarm.call_at(1 << 52, lambda: None).cancel()
    assert len(alarm._heap) < 3_000
    alarm.close()


def test_timers_set_from_many_threads_all_ring() -> None:
    alarm, rung = ThreadAlarm(SystemClock()), Rung(last="end")
    setters = [
        threading.Thread(target=lambda name=str(at): [alarm.call_at(0, lambda: rung.ring(name)) for _ in range(100)])
        for at in range(4)
    ]
    for setter in setters:
        setter.start()
    for setter in setters:
        setter.join()
    alarm.call_at(1, lambda: rung.ring("end"))

    rung.wait()
    assert {name: rung.names.count(name) for name in "0123"} == dict.fromkeys("0123", 100)
    alarm.close()


# --- ManualClock -------------------------------------------------------------------------------------------------


def test_the_manual_clock_rings_each_alarm_at_its_own_time() -> None:
    clock = ManualClock(1_000)
    rung: list[tuple[str, int]] = []
    for name, at_ms in (("c", 1_030), ("a", 1_010), ("b", 1_020), ("past", 5), ("later", 1_031)):
        clock.call_at(at_ms, lambda name=name: rung.append((name, clock.now_ms())))
    clock.advance(30)

    assert rung == [("past", 1_000), ("a", 1_010), ("b", 1_020), ("c", 1_030)]
    assert clock.now_ms() == 1_030
    assert isinstance(clock, Alarm)


def test_the_manual_clock_rings_what_an_alarm_sets_on_its_way() -> None:
    clock = ManualClock(1_000)
    rung: list[int] = []

    def again() -> None:
        rung.append(clock.now_ms())
        clock.call_at(clock.now_ms() + 10, again)

    clock.call_at(1_010, again)
    clock.advance(35)
    assert rung == [1_010, 1_020, 1_030]


def test_a_step_of_the_manual_clock_rings_nothing() -> None:
    clock = ManualClock(1_000)
    rung: list[int] = []
    clock.call_at(1_010, lambda: rung.append(clock.now_ms()))
    clock.call_at(1_015, lambda: rung.append(0)).cancel()
    clock.step_to(2_000)
    assert (clock.now_ms(), rung) == (2_000, [])

    clock.step_to(500)
    clock.advance(600)
    assert rung == [1_010]


def test_a_callback_that_raises_does_not_silence_the_timers_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    alarm = ThreadAlarm(SystemClock())
    rang = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError

    alarm.call_at(0, fail)
    alarm.call_at(1, rang.set)
    assert rang.wait(30)
    alarm.close()
    assert "timer_callback_failed" in caplog.text
