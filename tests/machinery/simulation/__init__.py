"""Deterministic simulation: the whole core and many clients on one seeded loop with virtual time.

A seed decides everything: who calls what, in which order steps are taken, and what goes wrong meanwhile. Its history is
the same every time, so `python -m tests.machinery.simulation --seed N` shows again what failed once.
"""

from tests.machinery.simulation.proof import command, run
from tests.machinery.simulation.scenario import OPERATIONS, Outcome, simulate

__all__ = ["OPERATIONS", "Outcome", "command", "run", "simulate"]
