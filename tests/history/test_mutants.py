"""The checker is itself checked: each mutant is caught by the rule it breaks, and by no other."""

from collections.abc import Callable

import pytest

from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import EmbeddedSubject
from tests.machinery.history import NUMBERED, AsyncCaller, Findings, Line, Recorder, Rule, check
from tests.machinery.history.exercise import Exercise
from tests.machinery.history.mutants import MUTANTS, Mutant

SEEDS = range(4)
DAY_MS = 86_400_000


async def exercised(make_store: Callable[[Dice], Store], seed: int) -> list[Line]:
    subject = EmbeddedSubject(make_store, seed)
    lines: list[Line] = []
    async with subject.open() as hf:
        caller = AsyncCaller(hf, Recorder(lines.append, subject.clock.now_ms))
        await Exercise(caller, subject.clock, lambda: subject.sweep(hf), seed).run()
    return lines


def broken_in(findings: Findings) -> set[Rule]:
    return {violation.rule for violation in findings.violations}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_store_that_keeps_its_promises_breaks_no_rule(seed: int) -> None:
    findings = check(await exercised(lambda dice: MemoryStore(dice, DAY_MS), seed))
    assert not findings.violations, str(findings)
    assert findings.counts["sent"] > 100
    assert findings.counts["duplicates"] > 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.breaks}-{mutant.__name__}")
async def test_each_mutant_is_caught_by_the_rule_it_breaks_and_by_no_other(mutant: type[Mutant]) -> None:
    rule, caught = mutant.breaks, 0
    for seed in SEEDS:
        findings = check(await exercised(mutant, seed), allow_refusals=rule is not Rule.REFUSED)
        assert broken_in(findings) <= {rule}, f"seed {seed}: {findings}"
        caught += bool(findings.violations)
    assert caught >= len(SEEDS) / 2


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in MUTANTS} == set(Rule)
    assert set(NUMBERED) == {f"R{number}" for number in range(1, 13)}
