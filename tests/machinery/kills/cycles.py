"""The cycles of kills, the same for every target: a store is killed over and over, drained, and its history checked."""

import random
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from holdfast.clock import steady_s
from tests.machinery.history import Findings
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

# A store lives so many kills and is then drained: its journal and its history are read whole.
KILLS_PER_STORE = 100
# A full look at the store's own files takes longer than a kill.
KILLS_PER_VERIFY = 50


class Run(Protocol):
    """One store of a target, from its making to its draining."""

    def kill_once(self, number: int, dice: random.Random) -> None:
        """Let it work for a while, and kill what the target kills. `AssertionError` if it ended by itself."""

    def drain(self, number: int) -> None:
        """Let everything in it be claimed and acked, and what is left be said."""

    def verify(self) -> list[str]:
        """Every invariant of the store's own files that is broken. Called while nobody has it open."""

    def findings(self) -> Findings:
        """The history so far, checked."""


class Target(Protocol):
    """A store behind a door, and how it is killed. A new one joins `TARGETS`."""

    name: str

    def begin(self, directory: Path, seed: int) -> AbstractContextManager[Run]:
        """A new store below an empty directory."""


def run_kills(
    target: Target,
    total: int,
    *,
    seed: int,
    progress: Progress = say_nothing,
    kills_per_store: int = KILLS_PER_STORE,
    kills_per_verify: int = KILLS_PER_VERIFY,
) -> PartOutcome:
    """Kill this number of times. The same seed makes the same choices; the timing differs."""
    outcome = PartOutcome(name=f"kills: {target.name}", unit="kills", counts={}, violations=[])
    began_s = steady_s()
    done = 0
    while done < total:
        store_seed = seed + done // kills_per_store
        here = min(kills_per_store, total - done)
        again = f"run_kills(TARGETS[{target.name!r}], {here}, seed={store_seed})"

        def killed(number: int, before: int = done) -> None:
            outcome.done = before + number
            progress(outcome.done, total, _said(outcome))

        with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as directory:
            _run_store(target, Path(directory), here, store_seed, kills_per_verify, outcome, again, killed)
        done += here
    outcome.seconds = steady_s() - began_s
    progress(total, total, _said(outcome))
    return outcome


def _run_store(
    target: Target,
    directory: Path,
    kills: int,
    seed: int,
    kills_per_verify: int,
    outcome: PartOutcome,
    again: str,
    killed: Callable[[int], None],
) -> None:
    dice = random.Random(seed)
    try:
        with target.begin(directory, seed) as run:
            for number in range(kills):
                run.kill_once(number, dice)
                if (number + 1) % kills_per_verify == 0 or number + 1 == kills:
                    _note(outcome, run.verify(), f"{again}, kill {number + 1}")
                killed(number + 1)
            run.drain(kills)
            _note(outcome, run.verify(), f"{again}, drained")
            findings = run.findings()
    except AssertionError as error:
        outcome.violate(f"{again}: {error}")
        return
    outcome.add_counts(dict(findings.counts))
    _note(outcome, list(map(str, findings.violations)), f"{again}: {findings.verdict(seed)}")


def _note(outcome: PartOutcome, broken: list[str], where: str) -> None:
    for what in broken:
        outcome.violate(f"{where}: {what}")


def _said(outcome: PartOutcome) -> str:
    """Return the counts for the progress line. Acked messages are counted when a store is drained."""
    stores, acked = outcome.counts.get("drained", 0), outcome.counts.get("acked", 0)
    return f"{stores} stores drained, {acked} messages acked, {outcome.violated} violations"
