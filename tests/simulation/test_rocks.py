"""The same runs over the embedded store."""

import pytest

from holdfast.dice import Dice
from holdfast.stores.rocks.engine import Durability
from holdfast.testing.simulation import simulate
from holdfast.testing.simulation.media import RocksMedium


@pytest.mark.slow
@pytest.mark.parametrize("durability", Durability)
def test_nothing_is_lost_on_disk_either(durability: Durability, tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = str(tmp_path_factory.mktemp("simulation"))

    def medium(dice: Dice) -> RocksMedium:
        return RocksMedium(dice, durability, parent)

    for seed in range(25):
        outcome = simulate(seed, make_medium=medium)
        assert outcome.violations == [], f"seed {seed}"


def test_a_seed_gives_the_same_history_over_the_embedded_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = str(tmp_path_factory.mktemp("simulation"))
    first, second = (simulate(3, make_medium=lambda dice: RocksMedium(dice, parent=parent)) for _ in range(2))
    assert first.hash == second.hash
