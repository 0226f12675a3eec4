"""What a job says while it runs, and what it answers."""

from collections.abc import Callable

import msgspec

# What is being done, how much of it is done, and how much there is in all (None: not known).
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """For callers that watch nothing."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Two counts of one thing, made apart, that must agree."""

    what: str
    expected: int
    found: int

    @property
    def is_met(self) -> bool:
        return self.expected == self.found

    def __str__(self) -> str:
        return f"{self.what}: {self.found:,}" + ("" if self.is_met else f", and not {self.expected:,}")
