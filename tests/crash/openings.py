"""One directory, opened at the same moment by many threads of many processes under many spellings.

Each round, every thread of every process opens the same store by a spelling of its own. Exactly one may win. It adds a
message and keeps the store open until all the others have been refused; so at the end every round's message is there.

    python -m tests.crash.openings PLACE THREADS    one of the processes: a line in for each step, a line out
"""

import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Lock, Thread
from time import monotonic
from typing import IO

import holdfast
from holdfast.client.blocking import Holdfast
from holdfast.model.errors import StoreUnavailable
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

ROOT = Path(__file__).parents[2]
PROCESSES = 8
THREADS = 8
STORE = "store"


def spellings(place: Path) -> list[str]:
    """Paths that all lead to the store, for a process whose working directory is `place`."""
    (place / "beside").mkdir(exist_ok=True)
    for link, target in (("link", STORE), ("again", "link"), ("here", ".")):
        if not (place / link).is_symlink():
            (place / link).symlink_to(target)
    return [
        *(STORE, f"./{STORE}", f"{STORE}/", f".//{STORE}/.", f"beside/../{STORE}", f"../{place.name}/{STORE}"),
        *("link", "again", "here/here/link", f"here/{STORE}"),
        *(
            str(place / STORE),
            f"//{place / STORE}",
            str(place / "beside" / ".." / STORE),
            str(place / "here" / "again"),
        ),
    ]


def run_openings(
    rounds: int,
    *,
    seed: int,
    progress: Progress = say_nothing,
    processes: int = PROCESSES,
    threads: int = THREADS,
) -> PartOutcome:
    outcome = PartOutcome(name="openings", unit="rounds")
    started_s = monotonic()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        place = Path(made).resolve() / "place"
        place.mkdir()
        spellings(place)
        openers = [_Opener(place, seed + number, threads, stack) for number in range(processes)]
        for number in range(rounds):
            said = _ask_all(openers, "open")
            won = sum(int(each[0]) for each in said)
            refused = sum(int(each[1]) for each in said)
            others = " ".join(" ".join(each[2:]) for each in said).strip()
            if won != 1 or others or won + refused != processes * threads:
                outcome.violate(f"seed {seed}, round {number}: {won} won, {refused} were refused; {others}")
            _ask_all(openers, "close")
            outcome.done += 1
            outcome.add_counts({"openings": processes * threads, "won": won, "refused": refused})
            progress(outcome.done, rounds)
        for opener in openers:
            opener.end()
        with holdfast.open(str(place / STORE)) as hf:
            kept = hf.queue("mail").stats().ready
        if kept != outcome.counts["won"]:
            outcome.violate(f"seed {seed}: {outcome.counts['won']} messages were added, {kept} are there")
    outcome.seconds = monotonic() - started_s
    return outcome


def _ask_all(openers: "list[_Opener]", what: str) -> list[list[str]]:
    """Send the line to all before any answer is read, so that they meet."""
    for opener in openers:
        opener.tell(what)
    return [opener.hear() for opener in openers]


class _Opener:
    """One of the processes, as the driver sees it."""

    def __init__(self, place: Path, seed: int, threads: int, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "tests.crash.openings", str(place), str(threads), str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = stack.enter_context(
            subprocess.Popen(
                command, cwd=place, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        stack.callback(self._process.kill)

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()

    def hear(self) -> list[str]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().split(" ")
        assert said[0].strip(), f"a process that opens ended with {self._process.poll()}"
        return [each.strip() for each in said]

    def end(self) -> None:
        self._process.communicate()


# --- One of the processes --------------------------------------------------------------------------------------------


class _Contest:
    def __init__(self, place: Path, threads: int, seed: int) -> None:
        self._paths = spellings(place)
        self._dice = random.Random(seed)
        self._guard = Lock()
        self._threads = threads
        self._won: list[Holdfast] = []
        self._refused = 0
        self._others: list[str] = []

    def open(self) -> str:
        self._refused = 0
        start = Barrier(self._threads)
        contenders = [
            Thread(target=self._contend, args=(self._dice.choice(self._paths), start)) for _ in range(self._threads)
        ]
        for each in contenders:
            each.start()
        for each in contenders:
            each.join()
        return f"{len(self._won)} {self._refused} {' '.join(self._others)}".strip()

    def _contend(self, path: str, start: Barrier) -> None:
        start.wait()
        try:
            opened = holdfast.open(path)
            opened.queue("mail").enqueue(path.encode())
        except StoreUnavailable as error:
            with self._guard:
                self._refused += 1
                if "in use by" not in str(error):
                    self._others.append(f"{path}: {error!r};")
        except BaseException as error:
            with self._guard:
                self._others.append(f"{path}: {error!r};")
        else:
            with self._guard:
                self._won.append(opened)

    def close(self) -> str:
        for opened in self._won:
            opened.close()
        self._won.clear()
        self._others.clear()
        return "closed"


def _main(place: Path, threads: int, seed: int, steps: IO[str], said: IO[str]) -> None:
    contest = _Contest(place, threads, seed)
    for step in steps:
        said.write((contest.open() if step.strip() == "open" else contest.close()) + "\n")
        said.flush()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.stdin, sys.stdout)
