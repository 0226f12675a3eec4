"""The report of the proof: the findings of each part, and the page made of them."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.machinery.outcomes import PartOutcome
from tests.proof.parts import ROOT, Part

# In the repository: a part takes hours, and a fresh clone must be able to run one part without losing the others.
KEPT = ROOT / "tests" / "proof" / "results"
PAGE = ROOT / "docs" / "proof.md"


_PAGE = """# What the proof found

`make proof` runs what `make test` runs small, with the full numbers, and writes this page. A part can be run alone:
`make proof ARGS="simulation --scale 0.1"`. [Guarantees](guarantees.md) says what is promised, and which test keeps each
promise.

The last runs of each part: {hours} hours in all, on {machines}.

{rows}

## Counts

{counted}

## Violations

{violations}
"""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A part's last run, or several runs added up."""

    outcome: PartOutcome
    seeds: list[int]
    commit: str
    ended_at: str
    cores: int
    python: str


def keep(outcome: PartOutcome, seed: int, *, adds: bool = False) -> None:
    """Keep the outcome of a part: instead of its last one, or added to it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{outcome.name}.json"
    seeds = [seed]
    if adds and file.exists():
        before = msgspec.json.decode(file.read_bytes(), type=Kept)
        outcome = before.outcome.plus(outcome)
        seeds = [*before.seeds, seed]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    ended_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    kept = Kept(
        outcome=outcome,
        seeds=seeds,
        commit=commit.strip() or "unknown",
        ended_at=ended_at,
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
    )
    file.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def load(parts: Mapping[str, Part]) -> dict[str, Kept]:
    found = {}
    for name in parts:
        file = KEPT / f"{name}.json"
        if file.exists():
            found[name] = msgspec.json.decode(file.read_bytes(), type=Kept)
    return found


def write_page(parts: Mapping[str, Part], page: Path = PAGE) -> None:
    page.write_text(render(parts, load(parts)))


def render(parts: Mapping[str, Part], kept: Mapping[str, Kept]) -> str:
    rows = ["| part | what | run | took | violations |", "|---|---|---|---|---|"]
    for name, part in parts.items():
        if name not in kept:
            rows.append(f"| {name} | {part.what} | not run yet | | |")
            continue
        outcome = kept[name].outcome
        took = f"{outcome.seconds / 60:.1f} min"
        rows.append(f"| {name} | {part.what} | {outcome.done:,} {outcome.unit} | {took} | {outcome.violated} |")
    counted = [
        f"- **{name}** (commit {each.commit}, {each.ended_at} UTC, {_seeds(each)}): {_counts(each.outcome)}"
        for name, each in kept.items()
    ]
    violations = [f"- {name}: `{what}`" for name, each in kept.items() for what in each.outcome.violations]
    total_s = sum(each.outcome.seconds for each in kept.values())
    machines = sorted({f"{each.cores} cores, Python {each.python}" for each in kept.values()})
    return _PAGE.format(
        hours=f"{total_s / 3600:.1f}",
        machines=" and ".join(machines) or "no machine yet",
        rows="\n".join(rows),
        counted="\n".join(counted) or "Nothing was run yet.",
        violations="\n".join(violations) or "None.",
    )


def _counts(outcome: PartOutcome) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in outcome.counts.items()) or f"{outcome.done:,} done"


def _seeds(kept: Kept) -> str:
    return f"seed{'s' if len(kept.seeds) > 1 else ''} {', '.join(map(str, kept.seeds))}"
