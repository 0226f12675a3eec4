"""The parts of the proof: what `make test` runs small, with the full numbers."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from tests.crash.kills.clusters import TARGETS as CLUSTERS
from tests.crash.kills.objects import BUCKET_TARGET as BUCKET
from tests.crash.kills.objects import TARGET as OBJECTS
from tests.crash.openings import run_openings
from tests.faults.backlog import run_backlog
from tests.faults.clock.clocks import run_clock_steps
from tests.faults.network.network import run_network_faults
from tests.faults.processes.pauses import run_pauses
from tests.faults.soak import run_buffered_soak, run_soak
from tests.machinery.disk import run_crash_points, run_full_disk, run_power_loss, run_rot, run_sync_failures
from tests.machinery.disk.legacy_moves import run_move_kills, run_move_power_cuts
from tests.machinery.kills import TARGETS, run_kills
from tests.machinery.legacy.kills import run_legacy_migration
from tests.machinery.outcomes import PartOutcome, Progress
from tests.machinery.simulation.proof import run as run_seeds
from tests.pipeline.jobs.archiving import run_archive_kills
from tests.pipeline.sources.draining import run_spark_kills

ROOT = Path(__file__).parents[2]

Run = Callable[..., PartOutcome]


class Part(NamedTuple):
    # One line of the report.
    what: str
    # How often at scale 1.
    full: int
    run: Run


def _kills(target: str) -> Run:
    return partial(run_kills, {**TARGETS, **CLUSTERS}[target])


# The store's own files are made and damaged in children of these many processes.
_PROCESSES = 2


def _share(run: Run, percent: int, *, seed: int, progress: Progress) -> PartOutcome:
    return run(max(1, 100 // percent), seed=seed, progress=progress, processes=_PROCESSES)


def _every(run: Run, shards: int, **options: bool) -> Run:
    """Run a share, in percent, of all points of the script on a store with this number of shards."""
    return partial(_share, partial(run, shards=(shards,), **options))


def _sync_failures(percent: int, *, seed: int, progress: Progress) -> PartOutcome:
    some = None if percent >= 100 else percent
    return run_sync_failures(some, seed=seed, progress=progress, processes=_PROCESSES, shards=(1,))


_sync_failures_shards: Run = partial(run_sync_failures, processes=_PROCESSES, shards=(4,))


_power_loss: Run = partial(run_power_loss, processes=_PROCESSES)
_rot: Run = partial(run_rot, processes=_PROCESSES)


def run_suite(total: int, *, seed: int, progress: Progress) -> PartOutcome:
    """The tests marked `proof`: machines against the model, fuzzing, large payloads."""
    outcome = PartOutcome(name="suite", unit="tests")
    started_s = monotonic()
    command = [sys.executable, "-u", "-m", "pytest", "-m", "proof", "-o", "faulthandler_timeout=0", "-vv", "--tb=short"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as suite:
        assert suite.stdout is not None
        for line in suite.stdout:
            if selected := re.search(r"collected .* (\d+) selected", line):
                total = int(selected[1])
            if found := re.match(r"(\S+::\S+.*) (PASSED|FAILED|ERROR)", line):
                outcome.done += 1
                progress(outcome.done, max(total, outcome.done), found[1].rpartition("::")[2])
                if found[2] != "PASSED":
                    outcome.violate(f"python -m pytest -m proof '{found[1]}'")
    if (suite.returncode != 0 or not outcome.done) and not outcome.violated:
        outcome.violate(f"pytest -m proof ended with {suite.returncode} after {outcome.done} tests")
    outcome.seconds = monotonic() - started_s
    return outcome


PARTS: dict[str, Part] = {
    "simulation": Part("the whole core and its clients on a seeded loop, 50 operations a seed", 100_000, run_seeds),
    "simulation-shards": Part(
        "the same over the embedded store with four shards, and moves between them",
        5_000,
        partial(run_seeds, store="rocks-shards"),
    ),
    "kills-embedded": Part("kill -9 of a program with the store in it", 1_000, _kills("embedded rocks")),
    "kills-shards": Part(
        "the same with four shards, and messages that move", 500, _kills("embedded rocks with shards")
    ),
    "kills-served": Part("kill -9 of a server under eight clients", 1_000, _kills("served rocks")),
    "kills-objects": Part("kill -9 of four servers on one directory", 200, partial(run_kills, OBJECTS)),
    "kills-bucket": Part("kill -9 of four servers on one bucket of an emulated S3", 100, partial(run_kills, BUCKET)),
    "kills-postgres": Part(
        "two servers on two databases: a server, a database, or all at once struck, 100 times each",
        300,
        _kills("postgres cluster"),
    ),
    "kills-buffered": Part(
        "the same with the fast path, and Redis flushed or killed: 100 times each", 500, _kills("buffered cluster")
    ),
    "openings": Part(
        "one directory opened by 8 processes of 8 threads under many spellings: one wins", 1_000, run_openings
    ),
    "crash-points": Part(
        "a kill before and in the middle of every call that changes a file", 100, _every(run_crash_points, 1)
    ),
    # Four shards make several times as many calls: a part of them in percent.
    "crash-points-shards": Part(
        "the same with four shards, at every fifth call: before it or in the middle", 20, _every(run_crash_points, 4)
    ),
    "reopening-points": Part(
        "the same while a stopped store reopens by itself", 100, _every(run_crash_points, 1, while_reopening=True)
    ),
    "reopening-points-shards": Part(
        "the same with four shards, at every fifth call", 20, _every(run_crash_points, 4, while_reopening=True)
    ),
    "power-loss": Part(
        "disks as a power cut may leave them, every second with four shards: writes lost, torn, out of order",
        10_000,
        _power_loss,
    ),
    "rot": Part("files with a bit flipped, cut short or gone, also of four shards", 40_000, _rot),
    "sync-failures": Part("every sync fails, one in each run", 100, _sync_failures),
    "sync-failures-shards": Part("the same with four shards, for some of the syncs", 300, _sync_failures_shards),
    "full-disk": Part("the disk is full from every write on, for a while", 100, _every(run_full_disk, 1)),
    "full-disk-shards": Part("the same with four shards, from every tenth write on", 10, _every(run_full_disk, 4)),
    "network": Part("connections cut, slowed and silenced in every phase of a call", 20_000, run_network_faults),
    "pauses": Part("workers and servers stopped for longer than a lease", 500, run_pauses),
    "clocks": Part("clocks that step back and forward, at random", 5_000, run_clock_steps),
    "backlog": Part("a restart with half of these delayed and half in flight", 200_000, run_backlog),
    # About one in a hundred of what is made cannot be read: a million can.
    "legacy-migration": Part("messages of a legacy database, migrated through kills", 1_020_000, run_legacy_migration),
    "legacy-moves": Part(
        "a kill before and in the middle of every call while old messages are moved, with one shard and with four",
        100,
        partial(run_move_kills, processes=_PROCESSES),
    ),
    "legacy-power-cuts": Part(
        "disks as a power cut may leave them while old messages are moved",
        2_000,
        partial(run_move_power_cuts, processes=_PROCESSES),
    ),
    "soak": Part("steady load on two servers and two databases: nothing grows or slows down", 1_800, run_soak),
    "soak-buffered": Part("the same with the fast path", 1_800, run_buffered_soak),
    "spark-kills": Part("kill -9 of Spark's drivers and workers beside a rival consumer", 100, run_spark_kills),
    "archive-kills": Part(
        "kill -9 of an archive and its Spark: the lake has the journal's events, each once", 50, run_archive_kills
    ),
    "suite": Part("tests too long for every day: model machines, fuzzing, payloads of a GiB", 20, run_suite),
}
