"""A restart takes as long, and as much memory, with a large backlog as with a small one (T16)."""

import sys

import pytest

from tests.faults.backlog import run_backlog
from tests.machinery.outcomes import PartOutcome

MESSAGES = 4_000


@pytest.mark.slow
def test_a_restart_finds_all_that_is_delayed_and_in_flight_and_takes_no_longer_for_it() -> None:
    _check(run_backlog(MESSAGES, seed=0))


def _check(outcome: PartOutcome) -> None:
    sys.stdout.write(f"{outcome}\n")
    assert not outcome.violations, "\n".join(outcome.violations)
