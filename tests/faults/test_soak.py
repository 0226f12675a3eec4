"""Steady load: what goes in comes out, and a claim that takes longer or a table that grows is seen."""

import pytest

from tests.faults.soak import Sized, Timed, judge, ratios_of, run_soak
from tests.machinery.outcomes import PartOutcome

WARM_UP = [-number / 1_000 for number in range(30, 0, -1)]
MINUTES = [number / 1_000 for number in range(1_001)]


def judged(claims: list[Timed], sizes: list[Sized]) -> PartOutcome:
    outcome = PartOutcome(name="soak", unit="seconds", violations=[])
    judge(ratios_of(claims, sizes), outcome, "again")
    return outcome


def test_a_store_that_stays_as_it_is_is_found_so_whatever_its_warm_up_and_a_slow_minute_were() -> None:
    claims = [Timed(at, 5.0 + 50 * (at < 0 or 0.9 < at < 0.95), 1.0) for at in [*WARM_UP, *MINUTES]]
    sizes = [Sized(at, round(1_000_000 * min(1.0, 0.5 + at / 0.1))) for at in [*WARM_UP, *MINUTES]]
    assert not judged(claims, sizes).violated


def test_claims_that_take_longer_and_longer_are_found() -> None:
    claims = [Timed(at, 5.0 + 2.5 * at, 1.0) for at in MINUTES]
    [found] = judged(claims, [Sized(at, 1) for at in MINUTES]).violations
    assert "a claim takes 1.38 times as long at the end, a statement without a table 1.00 times" in found


def test_so_are_those_that_a_slower_machine_may_explain_with_what_says_so() -> None:
    claims = [Timed(at, 5.0 + 10 * at, 1.0 + 2 * at) for at in MINUTES]
    [found] = judged(claims, [Sized(at, 1) for at in MINUTES]).violations
    assert "a claim takes 2.33 times as long at the end, a statement without a table 2.33 times" in found


def test_tables_that_grow_are_found() -> None:
    claims = [Timed(at, 5.0, 1.0) for at in MINUTES]
    [found] = judged(claims, [Sized(at, 1_000 + round(700 * at)) for at in MINUTES]).violations
    assert "the tables are 1.4" in found


@pytest.mark.slow
@pytest.mark.parametrize("is_buffered", [False, True], ids=["direct", "fast path"])
def test_what_is_enqueued_in_a_few_seconds_of_steady_load_is_acked(is_buffered: bool) -> None:
    outcome = run_soak(2, seed=1, is_buffered=is_buffered, rate_per_s=800, standing=100, judges=False)
    assert not outcome.violations
    assert outcome.counts["acked"] == outcome.counts["enqueued"] > 0
