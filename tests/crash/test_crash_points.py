"""A process killed at any call that changes a file leaves a store that is whole and keeps what was answered."""

import pytest

from holdfast.testing.disk import run_crash_points
from tests.crash.proofs import check_outcome
from tests.seeds import run_seed


@pytest.mark.slow
def test_a_kill_at_any_call_loses_nothing_that_was_answered() -> None:
    """At every tenth here: `make proof` tries each."""
    check_outcome(run_crash_points(10, seed=run_seed()), at_least=125)
