"""kill -9, again and again: what a store was answered holds, whoever is killed and whenever."""

from holdfast.testing.kills.cluster import ServedCluster
from holdfast.testing.kills.cycles import Run, Target, run_kills
from holdfast.testing.kills.targets import TARGETS

__all__ = ["TARGETS", "Run", "ServedCluster", "Target", "run_kills"]
