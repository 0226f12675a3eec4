"""Seeds: nothing is lost in any of them, and they are about something."""

import pytest

from tests.machinery.simulation import run, simulate
from tests.simulation.pinned import PINNED

SEEDS = 1_000
PART = 250

# What must have happened in every few hundred seeds, or they prove less than they say.
FAULTS = (
    *("crash", "power cut", "closed", "pause", "clock back", "clock forward"),
    *("slow disk", "disk full", "disk error before", "disk error after"),
    *("lost request", "lost reply", "repeated request", "repeated reply", "delay"),
    *("caller left", "heard late", "given back"),
)
VERBS = (
    *(
        "enqueue",
        "claim",
        "next",
        "ledger",
        "progress",
        "ack",
        "nack",
        "final",
        "defer",
        "release",
        "extend",
        "redrive",
    ),
    *("purge", "purge_failed", "cancel", "remove", "delete", "pause", "reprioritise", "look", "trespass"),
)


@pytest.mark.spec("2.4")
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_nothing_is_lost_whatever_goes_wrong(first: int) -> None:
    outcome = run(PART, seed=first, processes=1)
    assert outcome.violations == []
    assert outcome.done == PART
    counts = outcome.counts
    for name in (*FAULTS, *VERBS):
        assert counts.get(name, 0) >= 3, f"{name} hardly ever happened"
    # Every seed sends and acks; what is not acked was removed, or is dead.
    assert counts["messages sent"] > 20 * PART
    assert counts["messages acked"] > 0.8 * counts["messages sent"]
    assert counts["messages duplicates"] > 2 * PART


@pytest.mark.parametrize("seed", PINNED)
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    assert simulate(seed).violations == [], PINNED[seed]


@pytest.mark.parametrize("seed", range(10_000, 10_020))
def test_a_few_seeds_hold(seed: int) -> None:
    assert simulate(seed).violations == []
