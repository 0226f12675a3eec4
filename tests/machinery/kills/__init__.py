"""Repeated kill -9: answered calls of a store hold, whichever process is killed and whenever."""

from tests.machinery.kills.cluster import ServedCluster
from tests.machinery.kills.cycles import Run, Target, run_kills
from tests.machinery.kills.targets import TARGETS

__all__ = ["TARGETS", "Run", "ServedCluster", "Target", "run_kills"]
