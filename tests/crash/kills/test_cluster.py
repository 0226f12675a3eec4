"""Two servers on two databases, plain and with the fast path, and everything they stand on, struck at random moments
under load: 0 lost, 0 resurrected, 0 double leases."""

import pytest

from tests.crash.kills.clusters import TARGETS
from tests.crash.proofs import check_outcome
from tests.machinery.kills import run_kills
from tests.seeds import run_seed

pytestmark = pytest.mark.services

ROUNDS = 5


@pytest.mark.spec("2.4")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "faults"),
    [
        ("postgres cluster", ["server", "database", "blackout"]),
        ("buffered cluster", ["server", "database", "flushall", "redis", "blackout"]),
    ],
)
def test_whatever_of_a_cluster_is_struck_nothing_answered_is_lost_or_comes_back(target: str, faults: list[str]) -> None:
    outcome = run_kills(TARGETS[target], ROUNDS * len(faults), seed=run_seed(), kills_per_verify=5)
    check_outcome(outcome, ROUNDS * len(faults))
    for fault in faults:
        assert outcome.counts[f"struck: {fault}"] == ROUNDS
    assert outcome.counts["acked"] > 100
