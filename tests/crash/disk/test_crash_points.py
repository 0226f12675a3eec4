"""A process killed at any call that changes a file leaves a store that is whole and keeps what was answered."""

import pytest

from tests.crash.proofs import check_outcome
from tests.machinery.disk import run_crash_points
from tests.seeds import run_seed


@pytest.mark.spec("4.3")
@pytest.mark.slow
def test_a_kill_at_any_call_loses_nothing_that_was_answered() -> None:
    """At every tenth here: `make proof` tries each."""
    check_outcome(run_crash_points(10, seed=run_seed(), shards=(1,)), at_least=125)


@pytest.mark.slow
def test_a_kill_at_any_call_on_any_shard_leaves_moved_messages_in_one_queue() -> None:
    """At every thousandth here: four shards make many calls."""
    outcome = run_crash_points(1_000, seed=run_seed(), shards=(4,))
    check_outcome(outcome, at_least=10)
    assert outcome.counts["moves, shards 4"] > 10
