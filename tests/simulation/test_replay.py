"""A seed is the same run every time."""

import os
import subprocess
import sys

import pytest

from tests.machinery.simulation import OPERATIONS, command, run, simulate
from tests.machinery.simulation.__main__ import main
from tests.simulation.mutants import MUTANTS

HASHES = """
from tests.machinery.simulation import simulate
print([simulate(seed).hash for seed in range(10)])
"""


def test_a_seed_gives_the_same_history_again() -> None:
    for seed in range(10):
        first, second = simulate(seed), simulate(seed)
        assert first.lines == second.lines
        assert first.hash == second.hash
        assert first.seen == second.seen


def test_seeds_differ() -> None:
    assert len({simulate(seed).hash for seed in range(10)}) == 10


@pytest.mark.slow
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    """Nothing rests on the order of a set, on an address, on the time or on the system's dice."""
    said = {
        subprocess.run(
            [sys.executable, "-c", HASHES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(said) == 1


def test_a_failing_seed_is_shown_with_the_command_that_runs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["nobody_is_woken_when_a_message_comes"](monkeypatch)
    outcome = run(3, seed=5, processes=1)
    assert outcome.violated == 3
    assert all("liveness: " in violation for violation in outcome.violations)
    assert outcome.violations[0].endswith(command(5))
    assert command(5, 20, "rocks").endswith(" --seed 5 --operations 20 --store rocks")


def test_the_command_prints_the_history_and_ends_with_the_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = simulate(7)
    assert main(["--seed", "7"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(outcome.lines) + 3
    assert f"history {outcome.hash}" in printed
    assert printed[-1] == outcome.verdict
    assert printed[-1].startswith("enqueued ")
    assert printed[-1].endswith(" seed 7")

    MUTANTS["nobody_is_woken_when_a_message_comes"](monkeypatch)
    assert main(["--seed", "7", "--operations", "20"]) == 1
    assert main(["--seeds", "2", "--from", "7", "--processes", "1", "--operations", "20"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 failed")


def test_a_run_can_be_spread_over_processes() -> None:
    heard: list[int] = []
    outcome = run(30, seed=100, progress=lambda done, total, said="": heard.append(done), processes=2, operations=10)
    assert outcome.violations == []
    assert (outcome.done, heard[-1]) == (30, 30)
    assert outcome.counts == run(30, seed=100, processes=1, operations=10).counts
    assert OPERATIONS == 50
