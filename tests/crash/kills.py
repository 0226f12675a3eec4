"""Kill a process that uses the store, again and again; then hold its history against the rules."""

import os
import random
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.testing.history import Findings, check, read_history

ROOT = Path(__file__).parents[2]
# A process that says nothing for so long hangs.
PATIENCE_S = 60.0


class Child:
    """One process with the workload. Only what was started here is ever killed."""

    def __init__(self, directory: Path, mode: str, seed: int, session: int, durability: str) -> None:
        self._errors = directory / "stderr"
        arguments = [mode, directory / "store", directory / "history", seed, session, durability]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.workload", *map(str, arguments)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()

    def wait_for(self, word: bytes) -> None:
        """Until the process says the word; it may say others before."""
        said = b""
        while word + b"\n" not in said:
            ready, _, _ = select.select([self._output], [], [], PATIENCE_S)
            if not ready:
                self.kill()
                raise AssertionError(f"the process did not come to {word!r} in {PATIENCE_S} s")
            piece = os.read(self._output, 1 << 16)
            if not piece:
                self._process.wait(PATIENCE_S)
                self._close()
                raise AssertionError(f"the process ended before {word!r}: {self._errors.read_text()[-4_000:]}")
            said += piece

    def kill_after(self, seconds: float) -> None:
        """SIGKILL after so long; that it ends before by itself is a fault."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._close()
            raise AssertionError(f"the process ended by itself: {self._errors.read_text()[-4_000:]}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._close()

    def finish(self) -> None:
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the process did not end in {PATIENCE_S} s") from None
        self._close()
        assert code == 0, self._errors.read_text()[-4_000:]

    def _close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(slots=True)
class Outcome:
    seed: int
    cycles: int
    findings: Findings

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.cycles} kills: {self.findings}"


def run_kills(directory: Path, cycles: int, seed: int) -> Outcome:
    """So many kills of processes on one store, with either durability; then one that drains it.

    Most fall while the store is in use, some while it is being opened.
    """
    dice = random.Random(seed)
    for session in range(cycles):
        durability = dice.choice(["fsync", "os"])
        child = Child(directory, "run", dice.randrange(1 << 32), session, durability)
        if dice.random() < 0.15:
            child.wait_for(b"opening")
            child.kill_after(dice.uniform(0.0, 0.15))
        else:
            child.wait_for(b"open")
            child.kill_after(dice.uniform(0.02, 0.3))
        verify_store(directory / "store", f"seed {seed}, kill {session}")
    last = Child(directory, "drain", 0, cycles, "fsync")
    last.wait_for(b"open")
    last.finish()
    verify_store(directory / "store", f"seed {seed}, drained")
    return Outcome(seed, cycles, check(read_history(directory / "history")))


def verify_store(path: Path, when: str) -> None:
    """Every invariant of the store's own files, where `holdfast verify` is there to check them."""
    try:
        from holdfast.stores.rocks.verify import verify
    except ImportError:  # not written yet: what the workload counts when it opens is all there is
        return
    if not (path / "HOLDFAST").exists():
        return  # killed before it was ever made
    report: Any = verify(path)
    assert not report.violations, f"{when}: {report.violations[:10]}"
