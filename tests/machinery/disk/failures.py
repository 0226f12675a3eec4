"""Make the disk fail: a sync that does not come through, a disk that fills up, and what the store says to that."""

import os
import random
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import msgspec

from holdfast.clock import steady_s
from holdfast.testing.children import in_child
from tests.machinery.disk import shim
from tests.machinery.disk.aftermath import Aftermath, look_at
from tests.machinery.disk.driver import Job
from tests.machinery.disk.images import Image
from tests.machinery.disk.notes import Notes, Told
from tests.machinery.disk.points import DURABILITIES, WATCHED
from tests.machinery.disk.script import DiskScript
from tests.machinery.disk.shim import Fault
from tests.machinery.disk.store import SHARDS
from tests.machinery.disk.trace import Trace
from tests.machinery.disk.workers import Workers, make_place
from tests.machinery.history import Claimed, Enqueued, Settled
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

_TRACE = "trace"
# Writes that a full disk refuses before there is room again. RocksDB tries its own again only every five seconds.
_FULL_FOR = (1, 2, 4)


def run_sync_failures(
    total: int | None = None,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = 1,
    shards: Sequence[int] = SHARDS,
) -> PartOutcome:
    """Run the script with each number of shards, and fail one sync in each run. The failing syncs are spread evenly.
    With `total` None, every sync fails once, and with either durability."""
    durabilities = DURABILITIES if total is None else DURABILITIES[:1]
    stores = list(product(durabilities, shards))
    with Workers(processes) as workers:
        return _run(workers, "sync failures", Fault.FAIL_SYNC, stores, total, 1, seed, progress)


def run_full_disk(
    every: int = 1,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = 1,
    shards: Sequence[int] = SHARDS,
) -> PartOutcome:
    """Run the script with a disk that is full for a while, from a different write in each run."""
    stores = list(product(DURABILITIES, shards))
    with Workers(processes) as workers:
        return _run(workers, "full disk", Fault.FILL_DISK, stores, None, every, seed, progress)


def _run(
    workers: Workers,
    name: str,
    fault: Fault,
    stores: Sequence[tuple[str, int]],
    total: int | None,
    every: int,
    seed: int,
    progress: Progress,
) -> PartOutcome:
    outcome, started_s = PartOutcome(name=name, unit="failures"), steady_s()
    with make_place() as place:
        jobs: list[Job] = []
        for durability, shards in stores:
            told = {"place": place, "seed": seed, "durability": durability, "shards": shards, "fault": fault}
            counted = workers.call("failures:count", **told)
            if counted.error is not None:
                raise RuntimeError(counted.error)
            step = every if total is None else max(1, counted.result // total)
            for n in range(1 + seed % step, counted.result + 1, step)[:total]:
                jobs.append(Job(number=len(jobs), task="failures:fail_at", arguments={**told, "n": n}))
        for done in workers.run(jobs):
            outcome.done += 1
            told = jobs[done.number].arguments
            where = (
                f"seed {seed}, durability {told['durability']}, shards {told['shards']}, "
                f"{fault.name.lower()} {told['n']}"
            )
            if done.error is not None:
                outcome.violate(f"{where}: {done.error}")
            else:
                found = msgspec.convert(done.result, Aftermath)
                outcome.add_counts(found.counts)
                for violation in found.violations:
                    outcome.violate(f"{where}: {violation}")
            progress(outcome.done, len(jobs), f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


# --- In the driver -------------------------------------------------------------------------------------------------


def count(place: str, seed: int, durability: str, shards: int, fault: int) -> int:
    root = Path(place) / f"count-{os.getpid()}"
    ended = in_child(lambda: _play(root, seed, durability, shards, Fault(fault), 1 << 40))
    shutil.rmtree(root)
    if ended.result is None:
        raise RuntimeError(f"the script broke off: {ended.error or ended.signal}")
    syncs, writes = ended.result
    return int(syncs if fault == Fault.FAIL_SYNC else writes)


def fail_at(place: str, seed: int, durability: str, shards: int, fault: int, n: int) -> Aftermath:
    root = Path(place) / f"failing-{os.getpid()}"
    try:
        ended = in_child(lambda: _play(root, seed, durability, shards, Fault(fault), n))
        if ended.result is None:
            why = ended.error or ("it hangs" if ended.hangs else f"signal {ended.signal}")
            return Aftermath(violations=[f"the script broke off: {why}"])
        trace = Trace(root / _TRACE, root / WATCHED)
        found = Aftermath(violations=_answered_while_down(trace))
        looks = [("as it is", lambda: _look_at(root / WATCHED, trace, durability, power_cut=False))]
        if fault == Fault.FAIL_SYNC:
            # The system says once that it could not write, drops what it should have written, and is silent after.
            looks.append(("without what was not synced", lambda: _look_after_cut(root, trace, durability, n)))
        for when, look in looks:
            looked = in_child(look)
            if looked.result is None:
                found.violations.append(f"{when}: {looked.error or looked.signal or 'it hangs'}")
                continue
            after = msgspec.convert(looked.result, Aftermath)
            found.violations += [f"{when}: {each}" for each in after.violations]
            if after.refused is not None:
                found.violations.append(f"{when}: refused: {after.refused}")
            counts = after.counts
            found.counts = {name: counts.get(name, 0) for name in ("sent", "acked", "unknown", "refused")}
            found.counts[f"moves, shards {shards}"] = counts.get("move", 0)
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _play(root: Path, seed: int, durability: str, shards: int, fault: Fault, n: int) -> list[int]:
    (root / WATCHED).mkdir(parents=True)
    shim.watch(root / WATCHED)
    shim.trace_to(os.open(root / _TRACE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    shim.arm(fault, n, n if fault is Fault.FAIL_SYNC else n + _FULL_FOR[n % len(_FULL_FOR)])
    notes = Notes(shim.mark)
    DiskScript(root / WATCHED, notes, seed=seed, durability=durability, shards=shards, goes_on=True).run()
    counted = shim.counted()
    shim.disarm()
    return [counted.syncs, counted.writes]


def _look_at(root: Path, trace: Trace, durability: str, *, power_cut: bool) -> Aftermath:
    told = Told(trace.said_before(trace.size))
    may_lose = power_cut and durability == "os"
    return look_at(root, told, durability=durability, power_cut=power_cut, may_lose=may_lose, allow_refusals=True)


def _look_after_cut(root: Path, trace: Trace, durability: str, n: int) -> Aftermath:
    Image(trace, trace.size, random.Random(n)).write_to(root / "image")
    return _look_at(root / "image", trace, durability, power_cut=True)


def _answered_while_down(trace: Trace) -> list[str]:
    """A store that has stopped must not answer anybody."""
    told = Told(trace.said_before(trace.size))
    answers = [line for line in told.lines_while_down if isinstance(line, Enqueued | Claimed | Settled)]
    return [f"answered after it had stopped: {line}" for line in answers]
