"""The speed goals, and the arithmetic of their ratios: the median of the ratios of the interleaved rounds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.peers.run import Outcome
from bench.peers.scenarios import SCENARIOS, Scale, title_of
from bench.peers.systems import SYSTEMS, Side
from bench.report import Figure, Table

Measure = Literal["rate", "p50", "p99"]
# The outcomes of one scenario in one round, by the name of the system. One that failed is not there.
Round = Mapping[str, Outcome]


@dataclass(frozen=True)
class Goal:
    """How fast the best system of one side is to be, the best of the other being 1."""

    side: Side
    scenario: str
    least: float
    measure: Measure = "rate"
    beside: Side = Side.PEER


def _goals(side: Side, rates: dict[str, float]) -> list[Goal]:
    delays = [Goal(side, "delay", 1.0, "p50"), Goal(side, "delay", 1.0, "p99")]
    return [Goal(side, scenario, least) for scenario, least in rates.items()] + delays


GOALS = [
    *_goals(
        Side.EMBEDDED,
        {
            "enqueue-1": 1.3,
            "enqueue-100": 1.5,
            "lifecycle-1": 1.3,
            "lifecycle-10": 1.5,
            "lifecycle-100": 1.5,
            "crowd": 1.5,
            "queues": 1.5,
            "drain": 1.5,
        },
    ),
    Goal(Side.EMBEDDED, "enqueue-1", 1.3, beside=Side.LIBRARY),
    *_goals(
        Side.SERVED,
        {
            "enqueue-1": 1.0,
            "enqueue-100": 1.0,
            "lifecycle-1": 1.0,
            "lifecycle-10": 1.0,
            "lifecycle-100": 1.0,
            "crowd": 2.0,
            "queues": 1.5,
            "drain": 1.0,
        },
    ),
]


def speed(outcome: Outcome, measure: Measure) -> float:
    """Return a number that is larger if the system is faster: a rate, or the inverse of a delay."""
    if measure == "rate":
        return outcome.rate_per_s
    delay_ms = outcome.p50_ms if measure == "p50" else outcome.p99_ms
    if delay_ms is None:
        raise ValueError(f"the run has no {measure}")
    return 1 / delay_ms


def best(names: Iterable[str], rounds: Sequence[Round], measure: Measure) -> str | None:
    """Return the system with the highest median, or None if none of them was measured."""
    medians = {
        name: statistics.median(speed(each[name], measure) for each in rounds if name in each)
        for name in names
        if any(name in each for each in rounds)
    }
    return max(medians, key=lambda name: medians[name]) if medians else None


def ratio(ours: str, theirs: str, rounds: Sequence[Round], measure: Measure) -> float | None:
    """Return the median of the ratios of the rounds in which both were measured, or None if there is none."""
    both = [each for each in rounds if ours in each and theirs in each]
    if not both:
        return None
    return statistics.median(speed(each[ours], measure) / speed(each[theirs], measure) for each in both)


def figures(scenario: str, rounds: Sequence[Round], scale: Scale) -> list[Figure]:
    """Return a row for each goal of the scenario whose two sides were both measured."""
    rows = []
    for goal in GOALS:
        if goal.scenario != scenario:
            continue
        ours, theirs = (best(_names(side), rounds, goal.measure) for side in (goal.side, goal.beside))
        if ours is None or theirs is None:
            continue
        found = ratio(ours, theirs, rounds, goal.measure)
        if found is None:
            continue
        delay = "" if goal.measure == "rate" else f" ({goal.measure})"
        what = f"{goal.side.value}: {title_of(scenario, scale)}{delay}, fsync"
        value, beside = (_shown(name, rounds, goal.measure) for name in (ours, theirs))
        label = f"{ours}: {value}" if goal.side is Side.SERVED else value
        rows.append(Figure(what, label, theirs, beside, found, goal.least))
    return rows


def table(measured: Mapping[str, Sequence[Round]], scale: Scale) -> Table:
    """Return the medians of all systems: a row for each scenario, with the processor time of server and clients."""
    names = [each.name for each in SYSTEMS if any(each.name in one for rounds in measured.values() for one in rounds)]
    rows = []
    for scenario, rounds in measured.items():
        measures: tuple[Measure, ...] = ("p50", "p99") if SCENARIOS[scenario].measures_delay else ("rate",)
        cells = [
            "; ".join(_shown(name, rounds, each) for each in measures) if any(name in each for each in rounds) else "–"
            for name in names
        ]
        rows.append((title_of(scenario, scale), *cells))
    return Table(("scenario; CPU per message of server + clients", *names), tuple(rows))


def _names(side: Side) -> list[str]:
    return [system.name for system in SYSTEMS if system.side is side]


def _shown(name: str, rounds: Sequence[Round], measure: Measure) -> str:
    found = [each[name] for each in rounds if name in each]
    median = statistics.median(speed(each, measure) for each in found)
    if measure == "p99":  # the CPU stands beside p50
        return f"p99 {1 / median:.2f} ms"
    server_us, client_us = (
        statistics.median(costs) for costs in zip(*((each.server_us, each.client_us) for each in found), strict=True)
    )
    shown = f"{median:,.0f} msg/s" if measure == "rate" else f"p50 {1 / median:.2f} ms"
    return f"{shown}, {server_us:,.0f} + {client_us:,.0f} us"
