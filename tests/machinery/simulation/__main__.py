"""Run one seed again and show its history, or many and show which fail.

python -m tests.machinery.simulation --seed 17
python -m tests.machinery.simulation --seeds 10000 --from 1
"""

import argparse
import sys
from typing import Any

from tests.machinery.history import encode_line
from tests.machinery.simulation.media import MEDIA
from tests.machinery.simulation.proof import run
from tests.machinery.simulation.scenario import OPERATIONS, simulate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machinery.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its history")
    parser.add_argument("--seeds", type=int, default=1_000, help="run so many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="calls of each seed")
    parser.add_argument("--store", choices=list(MEDIA), default="memory")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    return _replay(given) if given.seed is not None else _run_many(given)


def _replay(given: Any) -> int:
    outcome = simulate(given.seed, given.operations, MEDIA[given.store])
    for line in outcome.lines:
        _say(encode_line(line).decode())
    _say(", ".join(f"{name} {number}" for name, number in sorted(outcome.seen.items())))
    _say(f"history {outcome.hash}")
    for violation in outcome.violations:
        _say(violation)
    _say(outcome.verdict)
    return bool(outcome.violations)


def _run_many(given: Any) -> int:
    def progress(done: int, total: int, said: str = "") -> None:
        sys.stderr.write(f"\r{done} of {total} seeds {said}")
        sys.stderr.flush()

    outcome = run(
        given.seeds,
        seed=given.first,
        progress=progress,
        processes=given.processes,
        operations=given.operations,
        store=given.store,
    )
    sys.stderr.write("\n")
    for violation in outcome.violations:
        _say(violation)
    _say(", ".join(f"{name} {number}" for name, number in sorted(outcome.counts.items())))
    _say(f"{outcome.done} seeds in {outcome.seconds:.1f} s, {outcome.violated} failed")
    return bool(outcome.violated)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
