"""The rules that every history must keep, and what was found to break them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Rule(StrEnum):
    """The rules by which violations are named in a verdict."""

    LOST = "lost"
    RESURRECTED = "resurrected"
    DOUBLE_LEASE = "double-lease"
    STALE_ACCEPTED = "stale-accepted"
    VERSION = "version"
    DUPLICATED = "duplicated"
    CORRUPT = "corrupt"
    LEAKED = "leaked"
    OVER_BUDGET = "over-budget"
    GROUP_ORDER = "group-order"
    MISCOUNTED = "miscounted"
    STUCK = "stuck"
    # The holder of a lease was refused while it held: something that should have changed nothing ended it.
    ROBBED = "robbed"
    # An attempt was not counted.
    ATTEMPT = "attempt"
    # A batch is there in part.
    TORN = "torn"
    # A call that was refused happened nevertheless.
    PHANTOM = "phantom"
    # The journal tells another story.
    JOURNAL = "journal"
    # A call raised, and nothing stood in its way.
    REFUSED = "refused"


# By their numbers in the test plan.
NUMBERED: Mapping[str, Rule] = {
    "R1": Rule.LOST,
    "R2": Rule.RESURRECTED,
    "R3": Rule.DOUBLE_LEASE,
    "R4": Rule.STALE_ACCEPTED,
    "R5": Rule.VERSION,
    "R6": Rule.DUPLICATED,
    "R7": Rule.CORRUPT,
    "R8": Rule.LEAKED,
    "R9": Rule.OVER_BUDGET,
    "R10": Rule.GROUP_ORDER,
    "R11": Rule.MISCOUNTED,
    "R12": Rule.STUCK,
}


class Violation(NamedTuple):
    rule: Rule
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class Findings:
    """The findings of a check.

    Counts: the lines by their names; `sent`: messages that are known to have been stored, by an answer or a delivery;
    `acked`; `duplicates`: deliveries of a message after its first, as at-least-once allows.
    """

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def broke(self, rule: Rule, what: str) -> None:
        self.violations.append(Violation(rule, what))

    def verdict(self, seed: int) -> str:
        """One line, the same for every proof."""
        broken = Counter(violation.rule for violation in self.violations)
        shown = (Rule.LOST, Rule.RESURRECTED, Rule.DOUBLE_LEASE, Rule.STALE_ACCEPTED, Rule.CORRUPT, Rule.LEAKED)
        middle = " ".join(f"{rule} {broken[rule]}" for rule in shown)
        counts = self.counts
        return (
            f"enqueued {counts['sent']} acked {counts['acked']} {middle} duplicates {counts['duplicates']} seed {seed}"
        )

    def __str__(self) -> str:
        said = ", ".join(f"{name} {number}" for name, number in sorted(self.counts.items()))
        return "\n".join([said, *map(str, self.violations[:20])])
