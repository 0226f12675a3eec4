"""The whole comparison: start the systems, run every scenario in rounds, and yield a figure for each goal."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers import goals
from bench.peers.contract import Server
from bench.peers.processes import disk_directory, interrupts_held
from bench.peers.run import Outcome, Runner
from bench.peers.scenarios import FULL, QUICK, SCENARIOS, Scale
from bench.peers.systems import SYSTEMS, System
from bench.report import Figure, Table

Started = list[tuple[System, Server]]


def measure(quick: bool) -> Iterator[Figure | Table]:
    return compare(QUICK if quick else FULL)


def compare(
    scale: Scale, scenarios: Iterable[str] = tuple(SCENARIOS), systems: Sequence[System] = tuple(SYSTEMS)
) -> Iterator[Figure | Table]:
    """Yield the figures of each scenario as soon as it is measured, and at the end one table of all systems."""
    present = _present(systems)
    measured: dict[str, list[goals.Round]] = {}
    with _stopped_by_signal(), disk_directory() as directory, ExitStack() as stack:
        started = _start(present, directory, stack)
        runner = Runner(directory, scale)
        for scenario in scenarios:
            measured[scenario] = [_round(scenario, number, started, runner) for number in range(scale.rounds)]
            yield from goals.figures(scenario, measured[scenario], scale)
    yield goals.table(measured, scale)


def _present(systems: Sequence[System]) -> list[System]:
    missing = {system.name: system.missing() for system in systems}
    if absent := [how for how in missing.values() if how]:
        _say(f"peers: not installed and not measured: {', '.join(absent)}")
    return [system for system in systems if not missing[system.name]]


def _start(systems: Sequence[System], directory: Path, stack: ExitStack) -> Started:
    """Start the systems; the stack stops them. One that does not start is reported."""
    started = []
    for number, system in enumerate(systems):
        place = directory / str(number)
        place.mkdir()
        try:
            with interrupts_held():
                server = system.start(place)
                stack.callback(server.close)
        except Exception as error:  # the others go on
            _say(f"peers: {system.name} did not start and is not measured: {error}")
            continue
        started.append((system, server))
    return started


def _round(scenario: str, number: int, started: Started, runner: Runner) -> dict[str, Outcome]:
    """Measure each system once. The order changes with each round, for the place in it may matter."""
    outcomes: dict[str, Outcome] = {}
    for system, server in started if number % 2 == 0 else reversed(started):
        if scenario not in system.scenarios:
            continue
        try:
            outcome = runner.run(server, system.client, SCENARIOS[scenario], shares_process=system.shares_process)
        except Exception as error:  # the others go on
            _say(f"peers: {scenario}, {system.name}: {error}")
            continue
        outcomes[system.name] = outcome
        _say(f"peers: {scenario}, round {number + 1}, {system.name}: {outcome.rate_per_s:,.0f} msg/s")
    return outcomes


@contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Let SIGTERM raise as Ctrl-C does, so that servers are stopped after it too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
