"""The simulation finds what it is for: every deliberate fault, within a few seeds."""

import pytest

from tests.machinery.simulation import simulate
from tests.simulation.mutants import MUTANTS

# A mutant that needs more than these is hardly ever met.
SEEDS = 600


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        if simulate(seed).violations:
            return
    pytest.fail(f"{SEEDS} seeds did not notice that {name.replace('_', ' ')}")
