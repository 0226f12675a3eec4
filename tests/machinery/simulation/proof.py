"""Many seeds, spread over processes."""

import multiprocessing
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.clock import steady_s
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.machinery.simulation.media import MEDIA
from tests.machinery.simulation.scenario import OPERATIONS, Outcome, simulate

_PROCESSES = 2
# Seeds that a process takes at a time.
_CHUNK = 25


class _Chunk(NamedTuple):
    seeds: range
    operations: int
    store: str


def run(
    total: int,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = _PROCESSES,
    operations: int = OPERATIONS,
    store: str = "memory",
) -> PartOutcome:
    """Run this number of seeds from `seed` on. Every failing one is counted, with the command that repeats it."""
    outcome = _nothing_yet(store)
    began_s = steady_s()
    for part in _parts(range(seed, seed + total), processes, operations, store):
        outcome.done += part.done
        outcome.add_counts(part.counts)
        outcome.violated += part.violated - len(part.violations)
        for violation in part.violations:
            outcome.violate(violation)
        progress(outcome.done, total, f"{outcome.violated} failed" if outcome.violated else "")
    outcome.seconds = steady_s() - began_s
    return outcome


def command(seed: int, operations: int = OPERATIONS, store: str = "memory") -> str:
    """Return the command that runs a seed again and prints everything."""
    options = "" if operations == OPERATIONS else f" --operations {operations}"
    if store != "memory":
        options += f" --store {store}"
    return f"python -m tests.machinery.simulation --seed {seed}{options}"


def _nothing_yet(store: str) -> PartOutcome:
    name = "simulation" if store == "memory" else f"simulation over {store}"
    return PartOutcome(name=name, unit="seeds", counts={}, violations=[])


def _parts(seeds: range, processes: int, operations: int, store: str) -> Iterator[PartOutcome]:
    chunks = [_Chunk(seeds[at : at + _CHUNK], operations, store) for at in range(0, len(seeds), _CHUNK)]
    if processes <= 1 or len(chunks) == 1:
        yield from map(_run_chunk, chunks)
        return
    # Not forked: a process with threads leaves its children locks that nobody will ever release.
    with multiprocessing.get_context("spawn").Pool(min(processes, len(chunks))) as pool:
        yield from pool.imap_unordered(_run_chunk, chunks)


def _run_chunk(chunk: _Chunk) -> PartOutcome:
    part = _nothing_yet(chunk.store)
    for seed in chunk.seeds:
        outcome = simulate(seed, chunk.operations, MEDIA[chunk.store])
        part.done += 1
        part.add_counts(outcome.seen)
        if outcome.violations:
            part.violate(_describe(outcome, chunk))
    return part


def _describe(outcome: Outcome, chunk: _Chunk) -> str:
    more = f" and {len(outcome.violations) - 1} more" if len(outcome.violations) > 1 else ""
    again = command(outcome.seed, chunk.operations, chunk.store)
    return f"{outcome.violations[0]}{more}; again: {again}"
