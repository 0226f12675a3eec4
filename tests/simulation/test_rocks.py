"""The same runs over the embedded store."""

import pytest

from holdfast.dice import Dice
from holdfast.stores.rocks.engine.engine import Durability
from tests.machinery.simulation import run, simulate
from tests.machinery.simulation.media import MEDIA, RocksMedium
from tests.seeds import run_seed


@pytest.mark.slow
@pytest.mark.parametrize("durability", Durability)
def test_nothing_is_lost_on_disk_either(durability: Durability, tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = str(tmp_path_factory.mktemp("simulation"))

    def medium(dice: Dice) -> RocksMedium:
        return RocksMedium(dice, durability, parent)

    for seed in range(25):
        outcome = simulate(seed, make_medium=medium)
        assert outcome.violations == [], f"seed {seed}"


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_that_moves_between_shards() -> None:
    outcome = run(75, seed=run_seed(), processes=1, store="rocks-shards")
    assert outcome.violations == []
    assert outcome.counts["moved"] >= 3


def test_a_seed_gives_the_same_history_over_four_shards() -> None:
    first, second = (simulate(1_019, make_medium=MEDIA["rocks-shards"]) for _ in range(2))
    assert first.violations == []
    assert first.seen["moved"]
    assert first.hash == second.hash


def test_a_seed_gives_the_same_history_over_the_embedded_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = str(tmp_path_factory.mktemp("simulation"))
    first, second = (simulate(3, make_medium=lambda dice: RocksMedium(dice, parent=parent)) for _ in range(2))
    assert first.hash == second.hash
