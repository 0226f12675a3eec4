"""How many times a proof is run, and how its outcome is said."""

import os
import sys

from holdfast.testing.proving import PartOutcome


def scaled(number: int) -> int:
    return max(1, int(number * float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))))


def seed() -> int:
    """HOLDFAST_SEED repeats a run."""
    return int(os.environ.get("HOLDFAST_SEED") or int.from_bytes(os.urandom(4)))


def say_progress(done: int, total: int, said: str = "") -> None:
    if done % 100 == 0 or done == total:
        sys.stderr.write(f"\r{done} of {total}, {said} ")
        sys.stderr.flush()


def check_outcome(outcome: PartOutcome, at_least: int = 1) -> None:
    said = f"{outcome.name}: {outcome.done} {outcome.unit} in {outcome.seconds:.0f} s, {outcome.counts}"
    sys.stdout.write(f"{said}\n")
    assert not outcome.violated, "\n".join([f"{said}; {outcome.violated} violations", *outcome.violations])
    assert outcome.done >= at_least, said
