"""Four servers on one directory, and on one bucket, killed at random moments under load: 0 lost, 0 resurrected, 0
double leases."""

import pytest

from tests.crash.kills.objects import BUCKET_TARGET, TARGET
from tests.crash.proofs import check_outcome
from tests.machinery.kills import run_kills
from tests.seeds import run_seed

KILLS = 4


@pytest.mark.spec("6.4")
@pytest.mark.slow
def test_whichever_of_four_servers_is_killed_nothing_answered_is_lost_or_comes_back() -> None:
    outcome = run_kills(TARGET, KILLS, seed=run_seed())
    check_outcome(outcome, KILLS)
    assert outcome.counts["acked"] > 50


@pytest.mark.spec("6.4")
@pytest.mark.slow
def test_the_same_holds_on_one_bucket() -> None:
    outcome = run_kills(BUCKET_TARGET, KILLS, seed=run_seed())
    check_outcome(outcome, KILLS)
    assert outcome.counts["acked"] > 5
