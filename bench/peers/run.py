"""One timed run: one system in one scenario. Clients are started, warmed up, measured from outside and stopped."""

import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.peers.clients import Clients
from bench.peers.contract import Server, load_client
from bench.peers.counters import MEASURE, RUN, STOP, Counters
from bench.peers.load import Task
from bench.peers.processes import cpu_seconds, interrupts_held
from bench.peers.scenarios import Role, Scale, Scenario


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measurements of one run."""

    rate_per_s: float
    # Processor time of each message, in the server with its children, and in all clients.
    server_us: float
    client_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True)
class Sample:
    """Counters and clocks at one moment."""

    at_s: float
    messages: int
    server_s: float
    client_s: float


class Runner:
    """Runs scenarios, one at a time. Each run has queues with names of their own."""

    def __init__(self, directory: Path, scale: Scale) -> None:
        self._directory = directory
        self._scale = scale
        self._numbers = itertools.count(1)

    def run(self, server: Server, client: str, scenario: Scenario, *, shares_process: bool) -> Outcome:
        """Measure a system. `client` is its client class, as for `load_client`.

        If clients share a process, they run as threads of one.
        """
        number = next(self._numbers)
        queues = [f"q{number}_{each}" for each in range(scenario.queues)]
        with interrupts_held():  # it may start another process
            server.reset(queues, notifies=scenario.measures_delay)
        if scenario.drains:
            self._fill(server, client, queues[0])
        counters = Counters.create(self._directory / f"counters-{number}")
        task = Task(
            client=client,
            address=server.address,
            counters=str(counters.path),
            roles=_roles(scenario),
            queues=queues,
            notifies=scenario.measures_delay,
            batch=scenario.batch,
            producers=scenario.producers,
            consumers=scenario.consumers,
            most_outstanding=scenario.most_outstanding,
            rate_per_s=scenario.rate_per_s,
            passes=self._scale.passes,
        )
        tasks = [task] if shares_process else [msgspec.structs.replace(task, roles=[role]) for role in task.roles]
        with Clients(tasks, self._directory / f"clients-{number}.log") as clients:
            return self._measure(server, scenario, counters, clients)

    def _fill(self, server: Server, client: str, queue: str) -> None:
        filling = load_client(client)(server.address, notifies=False)
        try:
            server.fill(filling, queue, self._scale.backlog)
        finally:
            filling.close()

    def _measure(self, server: Server, scenario: Scenario, counters: Counters, clients: Clients) -> Outcome:
        def count() -> int:
            """Return the acked messages, or the enqueued ones if nobody consumes."""
            first = scenario.producers if scenario.consumers else 0
            return counters.total(first, len(_roles(scenario)))

        def sample() -> Sample:
            messages, at_s = count(), time.perf_counter()
            return Sample(at_s, messages, cpu_seconds(server.pids()), cpu_seconds(clients.pids))

        def is_drained() -> bool:
            return scenario.drains and count() > self._scale.backlog - 10 * scenario.batch

        if scenario.queues > 1:
            before = sample()
            counters.state = MEASURE
            clients.wait_until(lambda: count() == self._scale.passes * scenario.queues)
        else:
            counters.state = RUN
            time.sleep(self._scale.warm_s)
            before = sample()
            counters.state = MEASURE
            time.sleep(self._scale.window_s * scenario.stretch)
            # On a machine that stood still, the window goes on until some were counted. Of three batches, at least one
            # was claimed within the window, so that there is a delay to report.
            enough = before.messages + 3 * scenario.batch
            clients.wait_until(lambda: count() >= enough or is_drained())
        after = sample()
        counters.state = STOP
        delays_ms = clients.finish()
        if is_drained():
            raise RuntimeError(f"the backlog of {self._scale.backlog:,} messages did not last: measure a larger one")
        return outcome_of(before, after, delays_ms)


def _roles(scenario: Scenario) -> list[tuple[Role, int]]:
    """Return each client's role with the number of its counter: the producers come first."""
    if scenario.queues > 1:
        return [(Role.ROTATE, 0)]
    roles = [Role.PRODUCE] * scenario.producers + [Role.CONSUME] * scenario.consumers
    return [(role, slot) for slot, role in enumerate(roles)]


def outcome_of(before: Sample, after: Sample, delays_ms: list[float]) -> Outcome:
    messages = after.messages - before.messages
    return Outcome(
        rate_per_s=messages / (after.at_s - before.at_s),
        server_us=(after.server_s - before.server_s) * 1e6 / messages,
        client_us=(after.client_s - before.client_s) * 1e6 / messages,
        p50_ms=quantile(delays_ms, 0.5) if delays_ms else None,
        p99_ms=quantile(delays_ms, 0.99) if delays_ms else None,
    )


def quantile(values: list[float], share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
