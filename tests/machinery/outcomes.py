"""The outcome of a part of the proof: its progress, counts and violations."""

import logging
from typing import Protocol

import msgspec

_log = logging.getLogger(__name__)

# More violations than these say nothing new.
KEPT_VIOLATIONS = 20


class Progress(Protocol):
    def __call__(self, done: int, total: int, said: str = "") -> None: ...


class PartOutcome(msgspec.Struct, kw_only=True):
    """One part of the proof, run a number of times."""

    name: str
    unit: str
    done: int = 0
    counts: dict[str, int] = {}
    # Each says how to run it again.
    violations: list[str] = []
    violated: int = 0
    seconds: float = 0.0

    def add_counts(self, counts: dict[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def plus(self, later: "PartOutcome") -> "PartOutcome":
        """Both runs as one."""
        total = PartOutcome(
            name=self.name,
            unit=self.unit,
            done=self.done + later.done,
            counts=dict(self.counts),
            violations=[*self.violations, *later.violations][:KEPT_VIOLATIONS],
            violated=self.violated + later.violated,
            seconds=self.seconds + later.seconds,
        )
        total.add_counts(later.counts)
        return total

    def violate(self, what: str) -> None:
        # At once: a run of hours that is broken off has still said what it found.
        _log.warning("%s: %s", self.name, what)
        self.violated += 1
        if len(self.violations) < KEPT_VIOLATIONS:
            self.violations.append(what)


def say_nothing(done: int, total: int, said: str = "") -> None:
    """The progress of a run that nobody watches."""
