"""kill -9 at random moments: nothing that was answered is lost, and nothing acked comes back (SPEC 4.3)."""

import sys

import pytest

from tests.machinery.kills import TARGETS, run_kills
from tests.seeds import run_seed

CYCLES = 20


@pytest.mark.spec("4.3")
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_killed_process_loses_nothing_it_was_answered(target: str) -> None:
    _check(target, CYCLES, kills_per_verify=5)


def _check(target: str, cycles: int, **options: int) -> None:
    seed = run_seed()
    sys.stdout.write(f"seed {seed}\n")
    outcome = run_kills(TARGETS[target], cycles, seed=seed, **options)
    sys.stdout.write(f"{outcome.counts}\n")
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.counts["acked"] > cycles
