"""The cycles of kills report their progress, and each violation with the command that repeats it."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machinery.history import Drained, Enqueue, Enqueued, Findings, Item, Line, check
from tests.machinery.kills import Run, run_kills
from tests.machinery.kills.children import Children
from tests.machinery.kills.cluster import Rounds


class Forgetful:
    """A target whose every store loses a message, has a broken file at its third kill, and may end by itself."""

    name = "forgetful"

    def __init__(self, ends_at: int | None = None) -> None:
        self._ends_at = ends_at
        self._kills = 0
        self.drained = 0

    @contextmanager
    def begin(self, directory: Path, seed: int) -> Iterator[Run]:
        self._kills = 0
        yield self

    def kill_once(self, number: int, dice: random.Random) -> None:
        if number == self._ends_at:
            raise AssertionError("the process ended by itself")
        self._kills += 1

    def drain(self, number: int) -> None:
        self.drained += 1

    def verify(self) -> list[str]:
        return ["an index row without its message"] if self._kills == 3 else []

    def findings(self) -> Findings:
        sent: list[Line] = [Enqueue(n=1, queue="a/b", items=[Item(payload="p")]), Enqueued(n=1, ids=[1])]
        return check([*sent, Drained()])


def test_every_violation_is_counted_and_says_how_to_run_it_again() -> None:
    said: list[tuple[int, int]] = []
    outcome = run_kills(
        Forgetful(),
        8,
        seed=40,
        progress=lambda done, total, text="": said.append((done, total)),
        kills_per_store=5,
        kills_per_verify=3,
    )
    assert [done for done, _ in said] == [*range(1, 9), 8]
    assert outcome.done == 8
    assert outcome.counts["sent"] == 2
    # Of the first store a file and a message; of the second, whose third kill is its last, the file twice.
    assert outcome.violated == 5
    assert outcome.violations[0].startswith("run_kills(TARGETS['forgetful'], 5, seed=40), kill 3: an index row")
    assert "seed=41" in outcome.violations[-1]
    assert "lost 1" in outcome.violations[-1]


def test_a_process_that_ends_by_itself_is_a_violation_and_the_next_store_continues() -> None:
    target = Forgetful(ends_at=4)
    outcome = run_kills(target, 7, seed=1, kills_per_store=5, kills_per_verify=50)
    assert target.drained == 1
    assert "ended by itself" in outcome.violations[0]


def test_a_process_is_killed_in_the_middle_and_the_next_begins(tmp_path: Path) -> None:
    children = Children("time", tmp_path / "stderr")
    with children, pytest.raises(AssertionError, match="has no attribute 'main'"):
        children.begin()
    with Children("tests.crash.kills.sleeper", tmp_path / "stderr") as children:
        for _ in range(2):
            children.begin("60")
            children.wait_for("asleep")
            children.kill_after(0.0)
        children.begin("0")
        children.finish()
        children.begin("0")
        with pytest.raises(AssertionError, match="ended by itself"):
            children.kill_after(30.0)


def test_a_process_that_may_end_by_itself_is_distinguished_from_one_that_may_not(tmp_path: Path) -> None:
    with Children("tests.crash.kills.sleeper", tmp_path / "stderr") as children:
        children.begin("60")
        assert children.comes_to("asleep")
        children.check_alive()
        children.kill_after(0.0)
        children.begin("0")
        assert not children.comes_to("a word that is never said")
        children.begin("0")
        children.kill_after(30.0, may_have_ended=True)
        children.begin("0")
        with pytest.raises(AssertionError, match="ended by itself"):
            check_again_and_again(children)


def check_again_and_again(children: Children) -> None:
    for _ in range(3_000):
        children.check_alive()
        time.sleep(0.01)


class Noted:
    """A fault that only notes what is done to it."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name = name
        self._done = done
        self.is_away = False

    def strike(self, dice: random.Random) -> None:
        assert not self.is_away, f"{self.name} is away already"
        self.is_away = True
        self._done.append(self.name)

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        assert self.is_away
        self.is_away = False
        return True


def test_in_every_round_each_fault_strikes_once_and_all_is_mended_at_its_end() -> None:
    done: list[str] = []
    faults = [Noted(name, done) for name in "abcd"]
    dice = random.Random(3)
    rounds = Rounds(list(faults), faults[0], last=faults[1])
    overlaps = 0
    for _ in range(50):
        for number in range(4):
            rounds.strike(dice, away_s=0.0)
            overlaps += sum(fault.is_away for fault in faults)
            if number == 3:
                assert not any(fault.is_away for fault in faults)
        assert sorted(done[-4:]) == ["a", "b", "c", "d"]
    assert overlaps > 20
    assert rounds.struck == dict.fromkeys("abcd", 50)
