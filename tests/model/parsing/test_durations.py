import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.durations import MAX_MS, parse_duration_ms, parse_instant_ms

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0), (0.0, 0), (-0.0, 0), (1, 1_000), (2.5, 2_500), (0.001, 1), (0.0001, 1), (1e-12, 1),
        ("0s", 0), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("12h", 43_200_000), ("7d", 604_800_000),
        ("1.5s", 1_500), ("0.2ms", 1), (" 30s ", 30_000), ("30 s", 30_000),
        (timedelta(0), 0), (timedelta(seconds=2.5), 2_500), (timedelta(days=7), 604_800_000),
        (timedelta(microseconds=1), 1),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_or_text_with_a_unit_or_a_timedelta(value: object, ms: int) -> None:
    assert parse_duration_ms("wait", value) == ms


@given(st.integers(0, 1 << 20), st.sampled_from(sorted(UNITS_MS)))
def test_every_unit_means_its_milliseconds(number: int, unit: str) -> None:
    assert parse_duration_ms("wait", f"{number}{unit}") == number * UNITS_MS[unit]


@given(st.integers(0, MAX_MS))
def test_whole_milliseconds_in_text_are_kept_exactly(ms: int) -> None:
    assert parse_duration_ms("wait", f"{ms}ms") == ms


@given(st.floats(0, 1e12, exclude_min=True))
def test_a_duration_is_never_rounded_down_so_no_wait_is_cut_to_nothing(seconds: float) -> None:
    assert parse_duration_ms("wait", seconds) >= max(1, math.floor(seconds * 1_000))


@pytest.mark.parametrize(
    "value",
    [
        -1, -0.001, -1e-9, math.nan, math.inf, -math.inf, True, False, None, "", "s", "30", "30 ", "-5s", "+5s",
        "5 min", "5S", "1e3s", "1,5s", ".5s", "5.s", "5s5s", "1h30m", "30s\n30s", "infs", "nans", b"30s", [], {}, 1j,
        timedelta(microseconds=-1), timedelta.max, MAX_MS, 1 << 1_024, "9" * 400 + "s", f"{MAX_MS}s",
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_the_name_of_the_field(value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_duration_ms("lease", value)
    assert refused.value.facts == {"field": "lease"}
    assert refused.value.message.startswith("lease ")
    assert len(refused.value.message) < 400


@given(st.one_of(st.text(), st.floats(), st.integers(), st.timedeltas()))
def test_any_value_at_all_is_a_duration_within_the_limit_or_refused(value: object) -> None:
    with suppress(InvalidArgument):
        assert 0 <= parse_duration_ms("wait", value) <= MAX_MS


@given(st.integers(0, MAX_MS))
def test_an_instant_is_whole_milliseconds_since_1970(ms: int) -> None:
    assert parse_instant_ms("deliver_at", ms) == ms


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2262, 1, 1)),
    st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_a_datetime_with_a_zone_is_the_instant_it_names(naive: datetime, zone: timezone) -> None:
    moment = naive.replace(tzinfo=zone)
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert abs(parse_instant_ms("deliver_at", moment) - exact) <= 1


@pytest.mark.parametrize(
    "value",
    [
        None, True, -1, 1.5, math.nan, "1750000000000", "2025-01-01", MAX_MS + 1, 1 << 70, b"", [],
        datetime(2025, 1, 1), datetime(1969, 12, 31, tzinfo=UTC),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_instant_is_refused_with_the_name_of_the_field(value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_instant_ms("deliver_at", value)
    assert refused.value.facts == {"field": "deliver_at"}
