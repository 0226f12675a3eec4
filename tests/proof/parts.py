"""The parts of the proof: what `make test` runs small, with the full numbers."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from holdfast.testing.proving import PartOutcome, Progress

ROOT = Path(__file__).parents[2]

Run = Callable[..., PartOutcome]


class Part(NamedTuple):
    # One line of the report.
    what: str
    # How often at scale 1.
    full: int
    run: Run


def run_suite(total: int, *, seed: int, progress: Progress) -> PartOutcome:
    """The tests marked `proof`: machines against the model, fuzzing, large payloads."""
    outcome = PartOutcome(name="suite", unit="tests")
    started_s = monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "proof", "-o", "faulthandler_timeout=0", "-v", "--tb=short"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as suite:
        assert suite.stdout is not None
        for line in suite.stdout:
            if found := re.match(r"(\S+::\S+.*) (PASSED|FAILED|ERROR)", line):
                outcome.done += 1
                progress(outcome.done, max(total, outcome.done), found[1].rpartition("::")[2])
                if found[2] != "PASSED":
                    outcome.violate(f"python -m pytest -m proof '{found[1]}'")
    if suite.returncode != 0 and not outcome.violated:
        outcome.violate(f"pytest -m proof ended with {suite.returncode}")
    outcome.seconds = monotonic() - started_s
    return outcome


PARTS: dict[str, Part] = {
    "suite": Part("tests too long for every day: model machines, fuzzing, payloads of a GiB", 1, run_suite),
}
