"""kill -9, again and again: what a store was answered holds, whoever is killed and whenever."""

from tests.machinery.kills.cluster import ServedCluster
from tests.machinery.kills.cycles import Run, Target, run_kills
from tests.machinery.kills.targets import TARGETS

__all__ = ["TARGETS", "Run", "ServedCluster", "Target", "run_kills"]
