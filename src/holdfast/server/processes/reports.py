"""The counts of door processes, which are added to the metrics of the server.

Each door process reports once a second, and before each scrape that it serves. If a process is killed, its counts of
the last second are lost.
"""

import time
from collections.abc import Callable, Mapping

import msgspec

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.server.processes.link import StoreLink
from holdfast.service.access import ANYONE
from holdfast.service.limits.request_turns import WAIT_BOUNDS
from holdfast.telemetry.figures import Histogram
from holdfast.telemetry.lag import LoopLag
from holdfast.telemetry.metrics import LATENCY_BOUNDS, Metrics, Turns
from holdfast.wire.framed import links

_EVERY_MS = 1_000
_MAX_TENANTS = 10_000

# The head of calls that are not made for a caller.
NO_CALLER = links.write_caller(msgspec.msgpack.encode(ANYONE))


class TenantWeights:
    """The weights of tenants that have called a door process, as of its last report; 1 for an unknown tenant."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}

    def weight_of(self, tenant: str) -> int:
        """Return the weight of a tenant, and include the tenant in later reports."""
        weight = self._weights.get(tenant)
        if weight is None:
            if len(self._weights) >= _MAX_TENANTS:
                self._weights.clear()
            weight = self._weights[tenant] = 1
        return weight

    @property
    def tenants(self) -> list[str]:
        """The tenants whose weights are needed."""
        return list(self._weights)

    def learn(self, weights: Mapping[str, int]) -> None:
        """Update the weights."""
        self._weights.update(weights)


class DoorCounts:
    """The metrics of a door process: counted here, and rendered in the store process."""

    def __init__(self, link: StoreLink, weights: TenantWeights) -> None:
        self.turns: Turns | None = None
        self.lag = LoopLag()
        self._link = link
        self._weights = weights
        self._requests: dict[tuple[str, QueueRef | None, str], Histogram] = {}
        self._reported_waits = Histogram(WAIT_BOUNDS)

    def request(self, operation: str, queue: QueueRef | None, outcome: str, seconds: float) -> None:
        series = self._requests.get((operation, queue, outcome))
        if series is None:
            series = self._requests[operation, queue, outcome] = Histogram(LATENCY_BOUNDS)
        series.observe(seconds)

    async def render(self) -> bytes:
        await self.report_once()
        call = links.RenderMetricsCall(None, None, None)
        return links.read_bytes(await self._link.ask(NO_CALLER + links.write_link_call(call), ANYONE.own_tenant))

    async def run(self, clock: Clock) -> None:
        """Report once a second, until cancelled."""
        await run_forever(self.report_once, Backoff("door_report"), clock, lambda: sleep_for(clock, _EVERY_MS))

    async def report_once(self) -> None:
        """Report the counts since the previous report, and update the weights of tenants."""
        call = links.ReportCall(None, None, None, self._take_report())
        answer = await self._link.ask(NO_CALLER + links.write_link_call(call), ANYONE.own_tenant)
        self._weights.learn(links.read_weights(answer))

    def _take_report(self) -> links.DoorReport:
        requests, self._requests = self._requests, {}
        waits, reported = Histogram(WAIT_BOUNDS), self._reported_waits
        if self.turns is not None:
            waits.add(self.turns.waits)
        self._reported_waits = waits
        return links.DoorReport(
            requests=[
                links.SeriesReport(operation, ref, outcome, series.counts, series.sum)
                for (operation, ref, outcome), series in requests.items()
            ],
            turns_waiting=0 if self.turns is None else self.turns.waiting,
            turn_counts=[now - before for now, before in zip(waits.counts, reported.counts, strict=True)],
            turn_sum=waits.sum - reported.sum,
            highest_lag_ms=self.lag.take_highest_ms(),
            cpu_s=time.process_time(),
            tenants=self._weights.tenants,
        )


class ServerReports:
    """The reports of all door processes, received in the store process."""

    def __init__(self, metrics: Metrics, weight_of: Callable[[str], int]) -> None:
        self._metrics = metrics
        self._weight_of = weight_of
        # The requests that waited for a turn at the last report, by the number of the process.
        self._waiting: dict[int, int] = {}
        # All waits for a turn that have ended.
        self.waits = Histogram(WAIT_BOUNDS)
        self._cpu_s: dict[int, float] = {}
        metrics.turns = self
        metrics.door_processes = self._cpu_s

    @property
    def waiting(self) -> int:
        return sum(self._waiting.values())

    def take(self, number: int, report: links.DoorReport) -> Mapping[str, int]:
        """Add the counts of a door process. Return the weights of the tenants that it names."""
        for each in report.requests:
            self._metrics.add_requests(
                each.operation, each.ref, each.outcome, _histogram(LATENCY_BOUNDS, each.counts, each.sum)
            )
        self._waiting[number] = report.turns_waiting
        self.waits.add(_histogram(WAIT_BOUNDS, report.turn_counts, report.turn_sum))
        self._metrics.lag.note(report.highest_lag_ms)
        self._cpu_s[number] = report.cpu_s
        return {tenant: self._weight_of(tenant) for tenant in report.tenants}

    def forget(self, number: int) -> None:
        """Forget the current figures of a door process, because it has ended."""
        self._waiting.pop(number, None)
        self._cpu_s.pop(number, None)

    def count_end(self) -> None:
        """Count a door process that ended by itself."""
        self._metrics.door_process_ends += 1

    async def render(self) -> bytes:
        return await self._metrics.render()


def _histogram(bounds: tuple[float, ...], counts: list[int], total: float) -> Histogram:
    histogram = Histogram(bounds)
    histogram.counts = counts
    histogram.sum = total
    return histogram
