"""Randomness: the only file that rolls. Everything above is handed `Dice`, so that a seed replays a run."""

import os
import random
from typing import Protocol

TOKEN_BYTES = 16


class Dice(Protocol):
    def tokens(self, number: int) -> list[bytes]:
        """That many lease tokens of 128 unguessable bits."""

    def roll(self) -> float:
        """A number in [0, 1)."""


class SystemDice:
    def tokens(self, number: int) -> list[bytes]:
        raw = os.urandom(TOKEN_BYTES * number)
        return [raw[at : at + TOKEN_BYTES] for at in range(0, len(raw), TOKEN_BYTES)]

    def roll(self) -> float:
        return random.random()


class SeededDice:
    """The same rolls for the same seed: for tests and simulation, never for a store that others can reach."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tokens(self, number: int) -> list[bytes]:
        return [self._random.randbytes(TOKEN_BYTES) for _ in range(number)]

    def roll(self) -> float:
        return self._random.random()
