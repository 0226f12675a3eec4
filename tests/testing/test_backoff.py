"""The statistical law of retries finds distributions that are not uniform, and passes those that are."""

import random
from collections.abc import Callable

import pytest

from holdfast.testing.laws.lifecycle.backoff import check_uniform, distance_from_uniform

BOUND = 30_000

Draw = Callable[[random.Random], float]

WRONG: dict[str, Draw] = {
    "equal jitter": lambda dice: BOUND / 2 + dice.random() * BOUND / 2,
    "no jitter": lambda dice: BOUND - 1,
    "half of the range": lambda dice: dice.random() * BOUND / 2,
    "a tenth of the range missing": lambda dice: dice.random() * BOUND * 0.9,
    "a bell": lambda dice: (dice.random() + dice.random()) / 2 * BOUND,
    "whole tens of seconds": lambda dice: dice.randrange(3) * 10_000,
}


def sample(draw: Draw, number: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [int(draw(dice)) for _ in range(number)]


@pytest.mark.parametrize("name", WRONG)
def test_another_distribution_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match="from uniform"):
        check_uniform(sample(WRONG[name], 2_000, seed=0), BOUND, name)


@pytest.mark.parametrize("number", [20, 200, 2_000, 100_000])
def test_a_uniform_sample_passes_with_every_seed(number: int) -> None:
    for seed in range(20 if number > 10_000 else 200):
        check_uniform(sample(lambda dice: dice.random() * BOUND, number, seed), BOUND, f"seed {seed}")


def test_a_value_outside_of_the_range_is_found() -> None:
    for values in ([-1, 0, 1], [0, 1, 2]):
        with pytest.raises(AssertionError):
            check_uniform(values, 2, "outside")


def test_the_distance_is_that_of_the_definition() -> None:
    assert distance_from_uniform(list(range(10)), 10) == pytest.approx(0)
    assert distance_from_uniform([0, 0], 2) == pytest.approx(0.5)
    assert distance_from_uniform([0.75], 1) == pytest.approx(0.75)
