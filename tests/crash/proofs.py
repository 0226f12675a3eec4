"""How the outcome of a part of the proof is said, where it is run small."""

import os
import sys

from holdfast.testing.proving import PartOutcome


def seed() -> int:
    """HOLDFAST_SEED repeats a run."""
    return int(os.environ.get("HOLDFAST_SEED") or int.from_bytes(os.urandom(4)))


def check_outcome(outcome: PartOutcome, at_least: int = 1) -> None:
    said = f"{outcome.name}: {outcome.done} {outcome.unit} in {outcome.seconds:.0f} s, {outcome.counts}"
    sys.stdout.write(f"{said}\n")
    assert not outcome.violated, "\n".join([f"{said}; {outcome.violated} violations", *outcome.violations])
    assert outcome.done >= at_least, said
