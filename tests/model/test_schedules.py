"""Schedules as values: changes by callers, and due ticks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.errors import InvalidArgument, OverQuota, PayloadTooLarge
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.schedules import (
    MAX_PAYLOAD,
    MAX_SCHEDULES,
    Schedule,
    ScheduleChange,
    Tick,
    after_fired,
    after_skipped,
    apply_change,
    check_schedule_count,
    draft_at,
    due_tick,
)

NOW = 1_750_000_000_000
MESSAGE = Draft(payload=b"{}", headers={"a": "b"})


def put(was: Schedule | None, now_ms: int = NOW, max_payload: int = 1 << 20, **change: object) -> Schedule:
    return apply_change("s", was, ScheduleChange(**change), now_ms, max_payload)  # type: ignore[arg-type]  # fields of several types


@settings(max_examples=200)
@given(every_ms=st.integers(1_000, 10_000_000), lates=st.lists(st.integers(0, 30_000_000), min_size=1, max_size=30))
def test_ticks_of_an_interval_never_drift(every_ms: int, lates: list[int]) -> None:
    schedule = put(None, every_ms=every_ms, message=MESSAGE)
    for late_ms in lates:
        assert schedule.next_at is not None
        now = schedule.next_at + late_ms
        tick = due_tick(schedule, now)
        assert tick is not None
        assert (tick.at - NOW) % every_ms == 0
        assert now - every_ms < tick.at <= now
        assert tick.next_at == tick.at + every_ms
        schedule = after_fired(schedule, tick, 1)
        assert due_tick(schedule, now) is None


def test_a_put_that_says_the_same_changes_nothing_even_a_tick_that_is_due() -> None:
    schedule = put(None, every_ms=1_000, message=MESSAGE)
    assert put(schedule, NOW + 5_000, every_ms=1_000, message=MESSAGE) == schedule


def test_a_slow_clock_brings_no_tick_back() -> None:
    schedule = put(None, every_ms=1_000, message=MESSAGE)
    gone = after_fired(schedule, Tick(NOW + 9_000, NOW + 10_000), 1)
    paused = put(gone, NOW + 2_000, paused=True)
    assert put(paused, NOW + 3_000, paused=False).next_at == NOW + 10_000
    assert put(gone, NOW + 3_000, every_ms=2_000).next_at == NOW + 11_000


def test_a_skipped_tick_keeps_what_fired_last() -> None:
    schedule = after_fired(put(None, every_ms=1_000, message=MESSAGE), Tick(NOW + 1_000, NOW + 2_000), 7)
    after = after_skipped(schedule, NOW + 3_000, "over_quota: no")
    assert (after.last_at, after.last_id, after.next_at, after.last_error) == (
        NOW + 1_000,
        7,
        NOW + 3_000,
        "over_quota: no",
    )
    assert after_fired(after, Tick(NOW + 3_000, NOW + 4_000), 8).last_error is None


def test_an_interrupted_one_continues_when_it_is_put_again() -> None:
    stuck = after_skipped(put(None, cron="0 3 * * *", message=MESSAGE), None, "invalid_argument: no such zone")
    again = put(stuck, cron="0 3 * * *")
    assert again.next_at is not None
    assert again.last_error is None


def test_each_tick_has_a_message_of_its_own() -> None:
    schedule = put(None, every_ms=1_000, message=MESSAGE)
    assert draft_at(schedule, 5).headers == {"a": "b", "schedule": "s", "scheduled-at": "5"}
    assert schedule.message.headers == {"a": "b"}


@pytest.mark.parametrize("most", [10, 1 << 30])
def test_a_payload_has_the_limit_of_any_other_and_fits_into_memory(most: int) -> None:
    limit = min(most, MAX_PAYLOAD)
    put(None, max_payload=most, every_ms=1_000, message=Draft(payload=b"x" * limit))
    with pytest.raises(PayloadTooLarge):
        put(None, max_payload=most, every_ms=1_000, message=Draft(payload=b"x" * (limit + 1)))


@pytest.mark.parametrize(
    "message",
    [
        replace(MESSAGE, delay_ms=1),
        replace(MESSAGE, deliver_at=NOW),
        replace(MESSAGE, key="k"),
        # Fits, but not with the headers that the schedule adds.
        replace(MESSAGE, headers={"a": "x" * ((64 << 10) - 10)}),
    ],
)
def test_a_message_that_no_tick_could_enqueue_is_refused(message: Draft) -> None:
    with pytest.raises(InvalidArgument):
        put(None, every_ms=1_000, message=message)


def test_a_queue_has_a_maximum_number_of_schedules() -> None:
    ref = QueueRef("acme", "mail")
    check_schedule_count(ref, MAX_SCHEDULES - 1)
    with pytest.raises(OverQuota, match=f"queue acme/mail has {MAX_SCHEDULES} schedules, the maximum") as refused:
        check_schedule_count(ref, MAX_SCHEDULES)
    assert refused.value.facts["limit"] == MAX_SCHEDULES
