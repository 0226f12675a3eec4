"""Cron lines: valid and invalid ones, and their ticks, also around daylight saving changes."""

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.cron import latest_tick, next_tick, parse_line, parse_zone

HOUR_MS = 3_600_000
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca"]
LINES = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "*/30 2 * * *",
    "0 */6 * * *",
    "15 3 31 * *",
    "0 0 29 2 *",
    "0 12 L * *",
    "59 23 * * FRI#2",
    "0 9 1 * MON",
    "5 4 * JAN,jul 1-5",
]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000


def spelled(at_ms: int | None) -> str:
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%m-%d %H:%M")


def ticks(line: str, zone: str, after: str, number: int) -> list[str]:
    found, at_ms = [], ms(after)
    for _ in range(number):
        at = next_tick(line, zone, at_ms)
        found.append(spelled(at))
        at_ms = at or 0
    return found


# --- Daylight saving changes -----------------------------------------------------------------------------------


def test_a_time_that_is_left_out_in_spring_ticks_at_the_end_of_the_gap() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2025-03-28T12:00", 3) == ["03-29 01:30", "03-30 01:00", "03-31 00:30"]


def test_several_times_that_are_left_out_tick_once() -> None:
    found = ticks("0,30 2,3 * * *", "Europe/Berlin", "2025-03-29T12:00", 3)
    assert found == ["03-30 01:00", "03-30 01:30", "03-31 00:00"]


def test_a_time_that_comes_twice_in_autumn_ticks_the_first_time_alone() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00", 2) == ["10-26 00:30", "10-27 01:30"]


def test_asked_in_the_hour_that_comes_again_no_tick_lies_behind() -> None:
    # 02:10 for the second time: the tick at 02:30 was 40 minutes ago.
    assert ticks("30 2 * * *", "Europe/Berlin", "2025-10-26T01:10", 1) == ["10-27 01:30"]


def test_a_line_of_every_hour_continues_as_the_hours_pass() -> None:
    found = ticks("0 * * * *", "Europe/Berlin", "2025-10-25T23:00", 3)
    assert found == ["10-26 00:00", "10-26 01:00", "10-26 02:00"]
    found = ticks("*/30 * * * *", "Europe/Berlin", "2025-03-30T00:15", 4)
    assert found == ["03-30 00:30", "03-30 01:00", "03-30 01:30", "03-30 02:00"]


def test_utc_has_no_such_changes() -> None:
    assert ticks("30 2 * * *", "UTC", "2025-03-29T12:00", 2) == ["03-30 02:30", "03-31 02:30"]


# --- Days --------------------------------------------------------------------------------------------------------


def test_a_day_that_a_month_has_not_is_passed_over() -> None:
    assert ticks("0 0 31 * *", "UTC", "2025-01-30T12:00", 4) == [
        "01-31 00:00",
        "03-31 00:00",
        "05-31 00:00",
        "07-31 00:00",
    ]


def test_the_last_day_of_a_month_is_l() -> None:
    assert ticks("0 0 L * *", "UTC", "2024-01-31T12:00", 3) == ["02-29 00:00", "03-31 00:00", "04-30 00:00"]


def test_the_29th_of_february_comes_in_leap_years() -> None:
    at = next_tick("0 0 29 2 *", "UTC", ms("2024-03-01T00:00"))
    assert at == ms("2028-02-29T00:00")


# --- Comparison with cronsim-------------------------------------------------------------------------------------


instants = st.integers(ms("2024-01-01T00:00"), ms("2027-01-01T00:00"))


@settings(max_examples=150, deadline=None)
@given(line=st.sampled_from(LINES), zone=st.sampled_from(ZONES), after=instants)
def test_ticks_are_those_of_the_library_each_later_than_the_one_before(line: str, zone: str, after: int) -> None:
    start = datetime.fromtimestamp(after // 1_000, UTC if zone == "UTC" else ZoneInfo(zone))
    expected = [int(each.timestamp()) * 1_000 for each in islice(CronSim(line, start), 40)]
    found, at_ms = [], after
    while at_ms < expected[-1]:
        at = next_tick(line, zone, at_ms)
        assert at is not None
        assert at > at_ms
        found.append(at)
        at_ms = at
    # In the repeated hour the library begins with ticks in the past.
    assert found == sorted({each for each in expected if each > after})


@settings(max_examples=150, deadline=None)
@given(
    line=st.sampled_from(LINES),
    zone=st.sampled_from(ZONES),
    after=instants,
    missed_ms=st.one_of(st.integers(0, 3 * HOUR_MS), st.integers(0, 40 * 24 * HOUR_MS)),
)
def test_the_latest_tick_is_the_last_of_all_up_to_now(line: str, zone: str, after: int, missed_ms: int) -> None:
    first = next_tick(line, zone, after)
    assert first is not None
    now = first + missed_ms
    latest = latest_tick(line, zone, first, now)
    assert first <= latest <= now
    following = next_tick(line, zone, latest)
    assert following is not None
    assert following > now


def test_years_of_missed_minutes_are_no_work() -> None:
    first = ms("1990-01-01T00:00")
    assert latest_tick("* * * * *", "Europe/Berlin", first, ms("2025-06-01T12:34") + 1) == ms("2025-06-01T12:34")
    assert latest_tick("0 0 29 2 *", "UTC", ms("1992-02-29T00:00"), ms("2027-12-31T00:00")) == ms("2024-02-29T00:00")


# --- Valid lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("", "*", "* * * *", "* * * * * *", "@daily", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *"),
        *("* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *"),
        *("0 0 30 2 *", "0 0 31 4,6,9,11 *", "1/2/3 * * * *", "* * * * MON#6", "* * * * L", "* * L-3 * *"),
        *("9" * 300 + " * * * *", "* * * * \u0131", "\u00b2 * * * *", "* * * * \u0664", None, 5, b"* * * * *"),
    ],
)
def test_what_is_no_line_is_refused_by_name(line: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_line(line)
    assert refused.value.facts["field"] == "cron"
    assert len(refused.value.message) < 300


@given(
    st.one_of(st.text(max_size=40), st.lists(st.text("0123456789*/,-#LWMONFEB ", max_size=6), max_size=7).map(" ".join))
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_line_or_is_refused(text: str) -> None:
    try:
        line = parse_line(text)
    except InvalidArgument:
        return
    first = next_tick(line, "UTC", ms("2025-01-01T00:00"))
    second = next_tick(line, "UTC", first or 0)
    assert first is not None
    assert second is not None
    assert second > first


def test_a_line_is_kept_with_single_spaces() -> None:
    assert parse_line("  0\t3  * * mon-fri ") == "0 3 * * mon-fri"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_a_zone_has_the_name_of_the_time_zone_database(zone: str) -> None:
    assert parse_zone(zone) == zone


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Europe",
        "europe/nowhere",
        "/etc/localtime",
        "../UTC",
        "localtime",
        "posixrules",
        "A" * 99,
        "+02:00",
        None,
        1,
    ],
)
def test_what_is_no_zone_is_refused_by_name(zone: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_zone(zone)
    assert refused.value.facts["field"] == "timezone"
