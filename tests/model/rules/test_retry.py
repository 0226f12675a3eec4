import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.rules.retry import backoff_ms

BASE_MS, CAP_MS = 500, 30_000
ALMOST_ONE = 1 - 2**-53

rolls = st.floats(0, 1, exclude_max=True)
durations = st.integers(0, 1 << 53)


@pytest.mark.spec("2.8")
def test_with_the_defaults_the_bound_doubles_from_half_a_second_to_thirty() -> None:
    bounds = [backoff_ms(retry, BASE_MS, CAP_MS, ALMOST_ONE) for retry in range(9)]
    assert bounds == [499, 999, 1_999, 3_999, 7_999, 15_999, 29_999, 29_999, 29_999]


@pytest.mark.spec("2.8")
@given(st.integers(0, 1 << 40), durations, durations, rolls)
def test_a_backoff_lies_between_nothing_and_the_capped_exponential(
    retry: int, base: int, cap: int, roll: float
) -> None:
    delay = backoff_ms(retry, base, cap, roll)
    assert 0 <= delay <= min(base * 2 ** min(retry, 60), cap)


@given(st.integers(0, 100), rolls, rolls)
def test_a_higher_roll_never_waits_less(retry: int, one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert backoff_ms(retry, BASE_MS, CAP_MS, low) <= backoff_ms(retry, BASE_MS, CAP_MS, high)


@given(st.integers(0, 100), rolls)
def test_a_later_retry_never_waits_less_for_the_same_roll(retry: int, roll: float) -> None:
    assert backoff_ms(retry, BASE_MS, CAP_MS, roll) <= backoff_ms(retry + 1, BASE_MS, CAP_MS, roll)


@pytest.mark.spec("2.8")
@given(st.integers(0, 20), st.integers(0, 999))
def test_the_jitter_is_full_so_every_part_of_the_range_is_reached(retry: int, thousandth: int) -> None:
    bound = min(BASE_MS * 2**retry, CAP_MS)
    assert backoff_ms(retry, BASE_MS, CAP_MS, thousandth / 1_000) == int(bound * (thousandth / 1_000))


def test_a_roll_of_nothing_retries_at_once() -> None:
    assert backoff_ms(0, BASE_MS, CAP_MS, 0.0) == 0
    assert backoff_ms(10**9, BASE_MS, CAP_MS, 0.0) == 0
