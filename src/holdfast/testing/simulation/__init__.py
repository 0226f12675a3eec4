"""Deterministic simulation: the whole core and many clients on one seeded loop with virtual time.

A seed decides everything: who calls what, in which order steps are taken, and what goes wrong meanwhile. Its history is
the same every time, so `python -m holdfast.testing.simulation --seed N` shows again what failed once.
"""

from holdfast.testing.simulation.proof import command, run
from holdfast.testing.simulation.scenario import OPERATIONS, Outcome, simulate

__all__ = ["OPERATIONS", "Outcome", "command", "run", "simulate"]
