"""The metrics of store processes, and their way into those of the server.

The first process asks the others at each scrape. The counts of a process that is killed are lost from its last scrape
on.
"""

import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import msgspec

from holdfast.model.answers import HotQueue
from holdfast.model.errors import HoldfastError
from holdfast.model.events import Event
from holdfast.model.limits import Kind
from holdfast.model.names import QueueRef
from holdfast.server.processes.link import StoreLink
from holdfast.server.processes.reports import NO_CALLER
from holdfast.server.scrape import CoreSource
from holdfast.service.access import ANYONE
from holdfast.service.limits.admission import Outcome
from holdfast.telemetry.figures import SYNC_BOUNDS, FamilyFigures, Figures, Histogram
from holdfast.telemetry.metrics import LATENCY_BOUNDS, Metrics, ScrapedQueue
from holdfast.wire.framed import links

_log = logging.getLogger("holdfast")

_MAX_SERIES = 10_000


class StoreScrape(msgspec.Struct, frozen=True, array_like=True):
    """The metrics of a store process since its last scrape, and its figures of the moment."""

    queues: list[ScrapedQueue]
    tallies: list[tuple[QueueRef, dict[Event, int]]]
    decisions: list[tuple[QueueRef, str, str, int]]
    # For each queue and kind: the counts and the sum of a histogram.
    waits: list[tuple[QueueRef, str, list[int], float]]
    is_up: bool
    refusal: str | None
    # Sums over the processes make sense for these.
    refusals: int
    stops: int
    writes: int
    checkpoints: int
    unwritten_bytes: int
    sync_counts: list[int]
    sync_sum: float
    families: dict[str, FamilyFigures]
    hot: list[HotQueue]
    cpu_s: float


class StoreCounts:
    """The metrics of a store process other than the first. An observer of admission, too."""

    def __init__(self, source: CoreSource) -> None:
        self._source = source
        self._decisions: defaultdict[tuple[QueueRef, str, str], int] = defaultdict(int)
        self._waits: dict[tuple[QueueRef, str], Histogram] = {}

    def decided(self, ref: QueueRef, kind: Kind, outcome: Outcome) -> None:
        """Count a decision of admission."""
        if len(self._decisions) < _MAX_SERIES:
            self._decisions[ref, kind, outcome] += 1

    def waited(self, ref: QueueRef, kind: Kind, ms: float) -> None:
        """Count the time that a call waited for admission."""
        if len(self._waits) < _MAX_SERIES:
            self._waits.setdefault((ref, kind), Histogram(LATENCY_BOUNDS)).observe(ms / 1_000)

    async def take(self) -> StoreScrape:
        """Return everything since the last call."""
        figures = await self._source.figures()
        queues = [each async for each in self._source.queues()] if figures.is_up else []
        tallies = [(ref, dict(counts)) for ref, counts in (await self._source.take_tallies()).items()]
        decisions, self._decisions = self._decisions, defaultdict(int)
        waits, self._waits = self._waits, {}
        syncs = figures.syncs or Histogram(SYNC_BOUNDS)
        return StoreScrape(
            queues=queues,
            tallies=tallies,
            decisions=[(*key, count) for key, count in decisions.items()],
            waits=[(*key, each.counts, each.sum) for key, each in waits.items()],
            is_up=figures.is_up,
            refusal=figures.refusal,
            refusals=figures.refusals or 0,
            stops=figures.stops or 0,
            writes=figures.writes or 0,
            checkpoints=figures.checkpoints or 0,
            unwritten_bytes=figures.unwritten_bytes or 0,
            sync_counts=syncs.counts,
            sync_sum=syncs.sum,
            families=dict(figures.families),
            hot=list(figures.hot),
            cpu_s=time.process_time(),
        )


_read_scrape = msgspec.msgpack.Decoder(StoreScrape).decode


async def scrape(link: StoreLink) -> StoreScrape:
    """Return the metrics of another store process."""
    call = links.write_link_call(links.ScrapeCall(None, None, None))
    return _read_scrape(await link.ask(NO_CALLER + call, ANYONE.own_tenant))


class DividedSource:
    """The queues and figures of all store processes, for the metrics of the server (`telemetry.metrics.Source`)."""

    def __init__(self, own: CoreSource, others: Callable[[], Mapping[int, StoreLink]]) -> None:
        """`others` returns the links to the other store processes, by their numbers."""
        self._own = own
        self._others = others
        self._scraped: dict[int, StoreScrape] = {}
        self.metrics: Metrics | None = None

    async def figures(self) -> Figures:
        """Return the sums of the figures. It is the first call of a scrape, and asks the other processes."""
        self._scraped = {}
        figures = await self._own.figures()
        for number, link in self._others().items():
            try:
                scraped = self._scraped[number] = await scrape(link)
            except HoldfastError as error:
                _log.debug("scrape_failed store_process=%s error=%s", number, error.message)
                figures = replace(figures, is_up=False)
                continue
            figures = _plus(figures, scraped)
            self._count(scraped)
        return figures

    def _count(self, scraped: StoreScrape) -> None:
        metrics = self.metrics
        if metrics is None:
            return
        for ref, kind, outcome, count in scraped.decisions:
            metrics.add_decisions(ref, kind, outcome, count)
        for ref, kind, counts, total in scraped.waits:
            waits = Histogram(LATENCY_BOUNDS)
            waits.counts, waits.sum = counts, total
            metrics.add_waits(ref, kind, waits)
        metrics.store_processes = {number: each.cpu_s for number, each in self._scraped.items()}

    async def queues(self) -> AsyncIterator[ScrapedQueue]:
        """Yield the queues of all processes."""
        async for each in self._own.queues():
            yield each
        for scraped in self._scraped.values():
            for each in scraped.queues:
                yield each

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the tallies of all processes; see `Store.take_tallies`."""
        tallies: dict[QueueRef, dict[Event, int]] = defaultdict(lambda: defaultdict(int))
        taken = [(await self._own.take_tallies()).items()]
        for each in [*taken, *(scraped.tallies for scraped in self._scraped.values())]:
            for ref, counts in each:
                for event, count in counts.items():
                    tallies[ref][event] += count
        return tallies


def _plus(figures: Figures, scraped: StoreScrape) -> Figures:
    syncs = Histogram(SYNC_BOUNDS)
    syncs.counts, syncs.sum = list(scraped.sync_counts), scraped.sync_sum
    if figures.syncs is not None:
        syncs.add(figures.syncs)
    families = dict(figures.families)
    for name, each in scraped.families.items():
        families[name] = each if name not in families else families[name].plus(each)
    return replace(
        figures,
        is_up=figures.is_up and scraped.is_up,
        refusal=figures.refusal or scraped.refusal,
        refusals=(figures.refusals or 0) + scraped.refusals,
        stops=(figures.stops or 0) + scraped.stops,
        writes=(figures.writes or 0) + scraped.writes,
        checkpoints=(figures.checkpoints or 0) + scraped.checkpoints,
        unwritten_bytes=(figures.unwritten_bytes or 0) + scraped.unwritten_bytes,
        syncs=syncs,
        families=families,
        hot=[*figures.hot, *scraped.hot],
    )
