"""While messages of the legacy layout are moved, no kill and no power cut loses one, delivers one twice, or brings back
one that was acked."""

import pytest

from tests.crash.proofs import check_outcome
from tests.machinery.disk.legacy_moves import run_move_kills, run_move_power_cuts
from tests.seeds import run_seed


@pytest.mark.spec("9.9")
@pytest.mark.slow
def test_a_kill_at_any_call_keeps_each_old_message_once() -> None:
    """At every fiftieth here: `make proof` tries each."""
    outcome = run_move_kills(2, seed=run_seed())
    check_outcome(outcome, at_least=20)
    assert outcome.counts["acked"] > 50


@pytest.mark.spec("9.9")
@pytest.mark.slow
def test_a_power_cut_keeps_each_old_message_once() -> None:
    """Every third with durability `os`, every second with four shards."""
    outcome = run_move_power_cuts(40, seed=run_seed())
    check_outcome(outcome, at_least=40)
    assert outcome.counts["acked"] > 100
