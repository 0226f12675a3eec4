"""Kill a process at every call that changes a file, and look at what it left."""

import os
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from holdfast.clock import steady_s
from holdfast.testing.children import in_child
from tests.machinery.disk import shim
from tests.machinery.disk.aftermath import Aftermath, look_at
from tests.machinery.disk.driver import Job
from tests.machinery.disk.notes import Notes, read_notes, to_file
from tests.machinery.disk.reopening import ReopeningScript
from tests.machinery.disk.script import DiskScript
from tests.machinery.disk.shim import Fault
from tests.machinery.disk.store import SHARDS
from tests.machinery.disk.workers import Workers, make_place
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

DURABILITIES = ("fsync", "os")
WATCHED = "watched"
_NOTES = "notes"
_FAULTS = (Fault.KILL_BEFORE, Fault.KILL_WITHIN)


def run_crash_points(
    every: int = 1,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = 1,
    while_reopening: bool = False,
    shards: Sequence[int] = SHARDS,
) -> PartOutcome:
    """Kill at every `every`-th point of the script, just before the call or in the middle of it.

    `while_reopening`: the points are those from the beginning of a stopped store's reopening on.
    """
    name = "crash points while reopening" if while_reopening else "crash points"
    outcome, started_s = PartOutcome(name=name, unit="points"), steady_s()
    with make_place() as place, Workers(processes) as workers:
        jobs: list[Job] = []
        for durability, number_of_shards in product(DURABILITIES, shards):
            told = {
                "place": place,
                "seed": seed,
                "durability": durability,
                "shards": number_of_shards,
                "while_reopening": while_reopening,
            }
            done = workers.call("points:count_calls", **told)
            if done.error is not None:
                raise RuntimeError(done.error)
            # A few more than were counted: flushes fall where they like.
            calls = range(1 + seed % every, done.result + 5, every)
            points = [(n, fault) for n in calls for fault in _FAULTS]
            if every > 1:  # of each call one of the two, in turns
                points = [(n, _FAULTS[number % 2]) for number, n in enumerate(calls)]
            jobs += [
                Job(
                    number=len(jobs) + number,
                    task="points:crash_at",
                    arguments={**told, "n": n, "fault": fault},
                )
                for number, (n, fault) in enumerate(points)
            ]
        for done in workers.run(jobs):
            outcome.done += 1
            arguments = jobs[done.number].arguments
            _take(outcome, done.error, done.result, arguments)
            progress(outcome.done, len(jobs), f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


def _take(outcome: PartOutcome, error: str | None, result: Any, arguments: dict[str, Any]) -> None:
    where = (
        f"seed {arguments['seed']}, durability {arguments['durability']}, shards {arguments['shards']}, "
        f"call {arguments['n']}, {Fault(arguments['fault']).name.lower()}"
    )
    if error is not None:
        outcome.violate(f"{where}: {error}")
        return
    found = msgspec.convert(result, Aftermath)
    outcome.add_counts(found.counts)
    if found.refused is not None:
        outcome.violate(f"{where}: refused: {found.refused}")
    for violation in found.violations:
        outcome.violate(f"{where}: {violation}")


# --- In the driver -------------------------------------------------------------------------------------------------


def count_calls(place: str, seed: int, durability: str, shards: int, while_reopening: bool) -> int:
    root = Path(place) / f"count-{os.getpid()}"

    def play() -> int:
        _play(root, seed, durability, shards, while_reopening)
        return shim.counted().calls

    ended = in_child(play)
    shutil.rmtree(root)
    if ended.error is not None:
        raise RuntimeError(ended.error)
    result: int = ended.result
    return result


def _play(
    root: Path, seed: int, durability: str, shards: int, while_reopening: bool, fault: Fault | None = None, n: int = 0
) -> None:
    watched = root / WATCHED
    watched.mkdir(parents=True)
    notes = Notes(to_file(root / _NOTES))
    shim.watch(watched)

    def begin() -> None:
        if fault is not None:
            shim.arm(fault, n)

    if while_reopening:
        ReopeningScript(
            watched, notes, seed=seed, durability=durability, shards=shards, watched=watched, begin=begin
        ).run()
    else:
        begin()
        DiskScript(watched, notes, seed=seed, durability=durability, shards=shards).run()


def crash_at(
    place: str, seed: int, durability: str, shards: int, while_reopening: bool, n: int, fault: int
) -> Aftermath:
    root = Path(place) / f"point-{os.getpid()}"
    try:
        ended = in_child(lambda: _play(root, seed, durability, shards, while_reopening, Fault(fault), n))
        if ended.error is not None or ended.hangs:
            return Aftermath(violations=[f"the script broke off: {ended.error or 'it hangs'}"])
        counts = {"killed": int(ended.was_killed)}
        told = read_notes(root / _NOTES)
        looked = in_child(lambda: look_at(root / WATCHED, told, durability=durability, allow_refusals=while_reopening))
        if looked.result is None:
            why = looked.error or ("it hangs" if looked.hangs else f"signal {looked.signal}")
            return Aftermath(violations=[f"looking at it broke off: {why}"], counts=counts)
        found = msgspec.convert(looked.result, Aftermath)
        found.counts = {
            **counts,
            "enqueued": found.counts.get("sent", 0),
            "acked": found.counts.get("acked", 0),
            f"moves, shards {shards}": found.counts.get("move", 0),
        }
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)
