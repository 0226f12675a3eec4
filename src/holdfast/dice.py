"""Randomness: the only module that makes random numbers. Other code is given a `Dice`, so that a seed repeats a run."""

import os
import random
from typing import Protocol

TOKEN_BYTES = 16


class Dice(Protocol):
    """A source of random numbers and lease tokens."""

    def tokens(self, number: int) -> list[bytes]:
        """Return `number` lease tokens of 128 random bits each."""

    def roll(self) -> float:
        """Return a number in [0, 1)."""


class SystemDice:
    """The random numbers of the operating system. Its tokens cannot be guessed."""

    def tokens(self, number: int) -> list[bytes]:
        raw = os.urandom(TOKEN_BYTES * number)
        return [raw[at : at + TOKEN_BYTES] for at in range(0, len(raw), TOKEN_BYTES)]

    def roll(self) -> float:
        return random.random()


class SeededDice:
    """The same numbers and tokens for the same seed.

    Use it in tests and simulations, never for a store that others can reach: its tokens can be guessed.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tokens(self, number: int) -> list[bytes]:
        return [self._random.randbytes(TOKEN_BYTES) for _ in range(number)]

    def roll(self) -> float:
        return self._random.random()
