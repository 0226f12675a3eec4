"""Many seeds, spread over processes."""

import multiprocessing
from collections.abc import Iterator

from holdfast.clock import steady_s
from holdfast.testing.proving import PartOutcome, Progress, say_nothing
from holdfast.testing.simulation.scenario import OPERATIONS, Outcome, simulate

_PROCESSES = 2
# Seeds that a process takes at a time.
_CHUNK = 25


def run(
    total: int,
    *,
    seed: int = 0,
    progress: Progress = say_nothing,
    processes: int = _PROCESSES,
    operations: int = OPERATIONS,
) -> PartOutcome:
    """So many seeds from `seed` on. Every failing one is counted, and says how to run it again."""
    outcome = PartOutcome(name="simulation", unit="seeds", counts={}, violations=[])
    began_s = steady_s()
    for part in _parts(range(seed, seed + total), processes, operations):
        outcome.done += part.done
        outcome.add_counts(part.counts)
        outcome.violated += part.violated - len(part.violations)
        for violation in part.violations:
            outcome.violate(violation)
        progress(outcome.done, total, f"{outcome.violated} failed" if outcome.violated else "")
    outcome.seconds = steady_s() - began_s
    return outcome


def command(seed: int, operations: int = OPERATIONS) -> str:
    """Which runs a seed again, and shows all of it."""
    operations_text = "" if operations == OPERATIONS else f" --operations {operations}"
    return f"python -m holdfast.testing.simulation --seed {seed}{operations_text}"


def describe(outcome: Outcome, operations: int = OPERATIONS) -> str:
    more = f" and {len(outcome.violations) - 1} more" if len(outcome.violations) > 1 else ""
    return f"{outcome.violations[0]}{more}; again: {command(outcome.seed, operations)}"


def _parts(seeds: range, processes: int, operations: int) -> Iterator[PartOutcome]:
    chunks = [(seeds[at : at + _CHUNK], operations) for at in range(0, len(seeds), _CHUNK)]
    if processes <= 1 or len(chunks) == 1:
        yield from map(_run_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(min(processes, len(chunks))) as pool:
        yield from pool.imap_unordered(_run_chunk, chunks)


def _run_chunk(chunk: tuple[range, int]) -> PartOutcome:
    seeds, operations = chunk
    part = PartOutcome(name="simulation", unit="seeds", counts={}, violations=[])
    for seed in seeds:
        outcome = simulate(seed, operations)
        part.done += 1
        part.add_counts(outcome.seen)
        if outcome.violations:
            part.violate(describe(outcome, operations))
    return part
