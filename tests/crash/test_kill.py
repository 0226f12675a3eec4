"""kill -9 at random moments: nothing that was answered is lost, and nothing acked comes back (SPEC 4.3)."""

import os
import sys
from pathlib import Path

import pytest

from tests.crash.kills import run_kills

CYCLES = 20
PROOF_CYCLES = 1_000


@pytest.mark.slow
def test_a_killed_process_loses_nothing_it_was_answered(tmp_path: Path) -> None:
    _check(tmp_path, CYCLES)


@pytest.mark.proof
def test_a_thousand_killed_processes_lose_nothing_they_were_answered(tmp_path: Path) -> None:
    _check(tmp_path, max(1, int(PROOF_CYCLES * float(os.environ.get("HOLDFAST_PROOF_SCALE", "1")))))


def _check(directory: Path, cycles: int) -> None:
    """HOLDFAST_SEED repeats the choices of a run; its timing is the machine's own."""
    seed = int(os.environ.get("HOLDFAST_SEED") or int.from_bytes(os.urandom(4)))
    sys.stdout.write(f"seed {seed}\n")
    outcome = run_kills(directory, cycles, seed)
    sys.stdout.write(f"{outcome}\n")
    assert not outcome.findings.violations, str(outcome)
