"""Four servers on one directory, killed at random moments under load: 0 lost, 0 resurrected, 0 double leases."""

import pytest

from holdfast.testing.kills import run_kills
from tests.crash.objects import TARGET
from tests.crash.proofs import check_outcome
from tests.seeds import run_seed

ROUNDS = 6


@pytest.mark.slow
def test_whichever_of_four_servers_is_killed_nothing_answered_is_lost_or_comes_back() -> None:
    outcome = run_kills(TARGET, ROUNDS * 2, seed=run_seed())
    check_outcome(outcome, ROUNDS * 2)
    assert outcome.counts["acked"] > 50
