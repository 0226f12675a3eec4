"""A process that was paused for longer than its lease has lost it, and gets `StaleLease` afterwards (T14)."""

import sys

import pytest

from tests.faults.processes.pauses import run_pauses
from tests.machinery.outcomes import PartOutcome
from tests.seeds import run_seed

PAUSES = 20


@pytest.mark.spec("2.6")
@pytest.mark.slow
def test_verdicts_of_workers_and_servers_that_stood_still_are_refused_and_nothing_is_lost() -> None:
    _check(run_pauses(PAUSES, seed=run_seed()), PAUSES)


def _check(outcome: PartOutcome, pauses: int) -> None:
    sys.stdout.write(f"{outcome}\n")
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.done == pauses
    assert outcome.counts["acked"]
    assert outcome.counts["late verdicts refused"]
