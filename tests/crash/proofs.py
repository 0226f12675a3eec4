"""Texts for the outcome of a small run of one part of the proof."""

import sys

from tests.machinery.outcomes import PartOutcome


def check_outcome(outcome: PartOutcome, at_least: int = 1) -> None:
    said = f"{outcome.name}: {outcome.done} {outcome.unit} in {outcome.seconds:.0f} s, {outcome.counts}"
    sys.stdout.write(f"{said}\n")
    assert not outcome.violated, "\n".join([f"{said}; {outcome.violated} violations", *outcome.violations])
    assert outcome.done >= at_least, said
