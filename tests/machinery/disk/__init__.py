"""Faults of the disk, and what a store on RocksDB makes of them: kills, power cuts, failing syncs, full disks, rot.

Each function runs a script of operations on small stores again and again, and answers with counts and violations. They
need Linux and a C compiler: a small library stands between the store and its files (shim.c).
"""

from tests.machinery.disk.failures import run_full_disk, run_sync_failures
from tests.machinery.disk.points import run_crash_points
from tests.machinery.disk.power import run_power_loss
from tests.machinery.disk.rot import run_rot

__all__ = ["run_crash_points", "run_full_disk", "run_power_loss", "run_rot", "run_sync_failures"]
