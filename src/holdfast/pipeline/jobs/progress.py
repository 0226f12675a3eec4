"""Progress reports and checks of jobs."""

from collections.abc import Callable

import msgspec

# A function that is called with the stage, how much of it is done, and the total (None: unknown).
Progress = Callable[[str, int, int | None], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """Report no progress."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Two independent counts of the same thing, which must be equal."""

    what: str
    expected: int
    found: int

    @property
    def is_met(self) -> bool:
        """Return True if the two counts are equal."""
        return self.expected == self.found

    def __str__(self) -> str:
        return f"{self.what}: {self.found:,}" + ("" if self.is_met else f", but expected {self.expected:,}")


class Checked:
    """The part of a job's summary that has checks."""

    __slots__ = ()
    checks: list[Check]

    @property
    def is_sound(self) -> bool:
        """Return True if the counts of every check agree."""
        return all(each.is_met for each in self.checks)
