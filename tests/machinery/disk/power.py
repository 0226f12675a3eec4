"""Cut the power at random moments of a recorded script, and open what a file system may have kept of it."""

import os
import random
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from holdfast.clock import steady_s
from holdfast.testing.children import in_child
from tests.machinery.disk import shim
from tests.machinery.disk.aftermath import Aftermath, look_at
from tests.machinery.disk.driver import Job
from tests.machinery.disk.images import Image
from tests.machinery.disk.notes import Notes, Reached, Told
from tests.machinery.disk.script import DiskScript
from tests.machinery.disk.store import SHARDS
from tests.machinery.disk.trace import Trace
from tests.machinery.disk.workers import Workers, make_place
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

# Images of one run of the script; then another is recorded, with other dice.
_PER_TRACE = 250
# Of one image in so many the power is cut while the store is made, which few of all calls belong to.
_EARLY_EVERY = 8
_WATCHED, _TRACE = "watched", "trace"


def run_power_loss(
    total: int,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = 1,
    first: int = 0,
    shards: Sequence[int] = SHARDS,
) -> PartOutcome:
    """Two of three images are of a store with durability `fsync`; the numbers of shards come in turns. Of one image in
    eight the power is cut while the store is made. `first` begins at a later image."""
    outcome, started_s = PartOutcome(name="power loss", unit="images"), steady_s()
    with make_place() as place, Workers(processes) as workers:
        jobs = [
            Job(
                number=number,
                task="power:cut_power",
                arguments={
                    "place": place,
                    "seed": seed,
                    "image": first + number,
                    "shards": shards[(first + number) % len(shards)],
                },
            )
            for number in range(total)
        ]
        for done in workers.run(jobs):
            outcome.done += 1
            where = f"seed {seed}, image {first + done.number}, shards {jobs[done.number].arguments['shards']}"
            if done.error is not None:
                outcome.violate(f"{where}: {done.error}")
            else:
                _take(outcome, where, msgspec.convert(done.result, Aftermath))
            progress(outcome.done, total, f"{outcome.violated} violations")
    outcome.seconds = steady_s() - started_s
    return outcome


def _take(outcome: PartOutcome, where: str, found: Aftermath) -> None:
    outcome.add_counts(found.counts)
    for violation in found.violations:
        outcome.violate(f"{where}: {violation}")


# --- In the driver -------------------------------------------------------------------------------------------------


def durability_of(image: int) -> str:
    return "os" if image % 3 == 2 else "fsync"


def cut_power(
    place: str, seed: int, image: int, shards: int = 1, keeps: bool = False, binds: bool = False
) -> Aftermath:
    """`keeps` leaves the image where it is, for whoever wants to look at it. `binds` holds a store with durability `os`
    to what `fsync` promises, which it breaks: so it is known that a broken promise is found."""
    durability = durability_of(image)
    trace = _trace(place, seed, image // _PER_TRACE, durability, shards)
    dice = random.Random(f"image {seed} {image}")
    is_early = dice.randrange(_EARLY_EVERY) == 0
    cut = dice.randrange((_made_at(trace) if is_early else trace.size) + 1)
    root = Path(place) / f"image-{os.getpid()}"

    def look() -> Aftermath:
        made = Image(trace, cut, dice)
        made.write_to(root)
        may_lose = durability == "os" and not binds
        found = look_at(root, Told(made.said), durability=durability, power_cut=True, may_lose=may_lose)
        if found.refused is not None and not may_lose:
            found.violations.append(f"refused: {found.refused}")
        where = f"cut {cut} of {trace.size}, {durability}, {made.loss.name.lower()}"
        found.violations = [f"{where}: {each}".replace(f"{root}/", "") for each in found.violations]
        found.counts = {
            f"{durability} images": 1,
            f"{durability} refused": int(found.refused is not None),
            "enqueued": found.counts.get("sent", 0),
            "acked": found.counts.get("acked", 0),
            f"moves, shards {shards}": found.counts.get("move", 0),
        }
        return found

    try:
        ended = in_child(look)
        if ended.result is None:
            why = ended.error or ("it hangs" if ended.hangs else f"signal {ended.signal}")
            return Aftermath(violations=[f"cut {cut} of {trace.size}, {durability}: {why}"])
        return msgspec.convert(ended.result, Aftermath)
    finally:
        if not keeps:
            shutil.rmtree(root, ignore_errors=True)


def _made_at(trace: Trace) -> int:
    """Return where the first opening had ended."""
    said: list[bytes] = []
    Notes(said.append).note(Reached("open"))
    return next(at for at, each in trace.marks if each == said[0])


# Two durabilities with either number of shards.
@lru_cache(maxsize=4)
def _trace(place: str, seed: int, number: int, durability: str, shards: int) -> Trace:
    """Recorded by each driver for itself: its timing is its own, its operations are the same."""
    root = Path(place) / f"recorded-{os.getpid()}-{number}-{durability}-{shards}"
    (root / _WATCHED).mkdir(parents=True)

    def record() -> None:
        shim.watch(root / _WATCHED)
        shim.trace_to(os.open(root / _TRACE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        notes, number_seed = Notes(shim.mark), seed * 1_000_003 + number
        DiskScript(root / _WATCHED, notes, seed=number_seed, durability=durability, shards=shards).run()
        shim.disarm()

    ended = in_child(record)
    if ended.error is not None or ended.signal is not None:
        raise RuntimeError(f"the script broke off: {ended.error or ended.signal}")
    trace = Trace(root / _TRACE, root / _WATCHED)
    shutil.rmtree(root)
    return trace
