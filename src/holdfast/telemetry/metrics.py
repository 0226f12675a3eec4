"""The metrics of a server: counts that are recorded as calls happen, and figures that are read at each scrape.

The module has no state: each server makes its own `Metrics`.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from holdfast.model.answers import Stats
from holdfast.model.errors import HoldfastError
from holdfast.model.events import Event
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.telemetry import declared
from holdfast.telemetry.exposition import MetricFamily, format_histograms, format_samples, format_value
from holdfast.telemetry.figures import Figures, Histogram
from holdfast.telemetry.labels import OTHER, LabelSets, MetricsNames
from holdfast.telemetry.lag import LoopLag

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

OK = "ok"
DEFAULT_MAX_LABELS = 1_000

# In seconds, from a claim that is served from memory to a wait of half a minute.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)

# A scrape reads at most this number of queues for each label set.
_QUEUES_PER_LABEL_SET = 10
# After this number of queues or lines, a scrape lets other tasks of the event loop run.
_BATCH = 200

# Operations, outcomes and kinds are words of Holdfast. Anything else comes from a caller or is a mistake; it is counted
# as `other`.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,47}")
_MAX_WORDS = 256


# An operation, event or kind; the queue, or None for none; and the outcome, or "" for none.
_Key = tuple[str, QueueRef | None, str]


class ScrapedQueue(NamedTuple):
    """A queue as a scrape reads it."""

    ref: QueueRef
    numbers: QueueNumbers
    stats: Stats


class Source(Protocol):
    """The store of a server, as a scrape reads it."""

    def queues(self) -> AsyncIterator[ScrapedQueue]:
        """Yield all queues."""

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the numbers of transitions since the last call."""

    async def figures(self) -> Figures:
        """Return the current figures of the store."""


class Turns(Protocol):
    """The requests that wait at the sockets of a server."""

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait now."""

    @property
    def waits(self) -> Histogram:
        """Return the waiting times so far, in seconds."""


class Metrics:
    """The metrics of one server.

    Attributes:
        lag: The lag of the event loop; its `run` must be started for it.
        shares_limits: Returns whether rates are shared with other servers now; None if they never are.
        turns: The turns of requests at the sockets; None if requests do not take turns.
    """

    def __init__(
        self,
        source: Source | None = None,
        *,
        max_labels: int = DEFAULT_MAX_LABELS,
        names: MetricsNames = MetricsNames.NAMES,
        version: str = "unknown",
    ) -> None:
        self.lag = LoopLag()
        self.shares_limits: Callable[[], bool] | None = None
        self.turns: Turns | None = None
        # The CPU seconds of each door process, by its number; None: the doors are in this process.
        self.door_processes: dict[int, float] | None = None
        self.door_process_ends = 0
        # The CPU seconds of each store process but this one, by its number; None: there is no other.
        self.store_processes: dict[int, float] | None = None
        self.store_process_ends = 0
        self._source = source
        self._version = version
        self._labels = LabelSets(max_labels, names)
        self._words: dict[str, str] = {}
        self._requests: dict[_Key, Histogram] = {}
        self._decisions: dict[_Key, int] = defaultdict(int)
        self._waits: dict[_Key, Histogram] = {}
        self._transitions: dict[_Key, int] = defaultdict(int)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    # --- Recording ---------------------------------------------------------------------------------------------

    def request(self, operation: str, ref: QueueRef | None, outcome: str, seconds: float) -> None:
        """Record a finished request.

        Args:
            ref: The queue; None if the request concerned no queue or its caller was not permitted.
            outcome: `OK`, or the code of the error.
        """
        series = self._requests.get((operation, ref, outcome))
        if series is None:
            series = self._new(self._requests, operation, ref, outcome)
        series.observe(seconds)

    def add_requests(self, operation: str, ref: QueueRef | None, outcome: str, requests: Histogram) -> None:
        """Count requests that another process of this server has answered."""
        series = self._requests.get((operation, ref, outcome))
        if series is None:
            series = self._new(self._requests, operation, ref, outcome)
        series.add(requests)

    def decided(self, ref: QueueRef, kind: str, outcome: str) -> None:
        """Record a decision of admission. `kind` is read or write."""
        key: _Key = (kind, ref, outcome)
        if key not in self._decisions:
            key = self._key(kind, ref, outcome)
        self._decisions[key] += 1

    def waited(self, ref: QueueRef, kind: str, ms: float) -> None:
        """Record the time for which a call waited for admission. `kind` is read or write."""
        series = self._waits.get((kind, ref, ""))
        if series is None:
            series = self._new(self._waits, kind, ref, "")
        series.observe(ms / 1_000)

    def add_decisions(self, ref: QueueRef, kind: str, outcome: str, count: int) -> None:
        """Count decisions of admission in another process of this server."""
        self._decisions[self._key(kind, ref, outcome)] += count

    def add_waits(self, ref: QueueRef, kind: str, waits: Histogram) -> None:
        """Count waits for admission in another process of this server."""
        series = self._waits.get((kind, ref, ""))
        if series is None:
            series = self._new(self._waits, kind, ref, "")
        series.add(waits)

    def _new(self, series: dict[_Key, Histogram], word: str, ref: QueueRef | None, outcome: str) -> Histogram:
        key = self._key(word, ref, outcome)
        found = series.get(key)
        if found is None:
            found = series[key] = Histogram(LATENCY_BOUNDS)
        return found

    def _key(self, word: str, ref: QueueRef | None, outcome: str) -> _Key:
        kept = ref if ref is None or self._labels.keeps(ref) else OTHER
        return self._word(word), kept, self._word(outcome) if outcome else ""

    def _word(self, word: str) -> str:
        known = self._words.get(word)
        if known is None:
            known = word if len(self._words) < _MAX_WORDS and _WORD.fullmatch(word) else "other"
            if known is word:
                self._words[word] = word
        return known

    # --- Scraping ----------------------------------------------------------------------------------------------

    async def render(self) -> bytes:
        """Return the metrics in the format of `CONTENT_TYPE`.

        If the store fails, only the lines about the store and its queues are missing.
        """
        figures, stats = await self._gather()
        parts = []
        for written, part in enumerate(self._lines(figures, stats), 1):
            parts.append(part)
            if written % _BATCH == 0:
                await asyncio.sleep(0)
        return "".join(parts).encode() + generate_latest(self._registry)

    async def _gather(self) -> tuple[Figures | None, dict[QueueRef, Stats] | None]:
        if self._source is None:
            self._update_labels(None, is_complete=False)
            return None, None
        figures = Figures(is_up=False)
        queues: list[ScrapedQueue] = []
        is_complete = False
        with suppress(HoldfastError):  # STORE_UP is then 0
            figures = await self._source.figures()
            queues, is_complete = await self._read_queues(self._source)
        self._update_labels({each.ref: each.numbers for each in queues}, is_complete=is_complete)
        # This comes last, because it resets the counts: a scrape that is cancelled before loses none.
        for ref, counts in (await self._source.take_tallies()).items():
            kept = ref if ref in self._labels else OTHER
            for event, count in counts.items():
                self._transitions[event.value, kept, ""] += count
        return figures, {each.ref: each.stats for each in queues}

    async def _read_queues(self, source: Source) -> tuple[list[ScrapedQueue], bool]:
        """Return the queues, and whether they are all."""
        queues: list[ScrapedQueue] = []
        async for each in source.queues():
            if len(queues) == self._labels.limit * _QUEUES_PER_LABEL_SET:
                return queues, False
            queues.append(each)
            if len(queues) % _BATCH == 0:
                await asyncio.sleep(0)
        return queues, True

    def _update_labels(self, queues: Mapping[QueueRef, QueueNumbers] | None, *, is_complete: bool) -> None:
        lost = set(self._labels.update(queues, is_complete=is_complete))
        for series in (self._requests, self._waits):
            for key in [key for key in series if key[1] in lost or self._has_no_labels(key[1])]:
                removed = series.pop(key)
                # The counts of a queue that lost its labels were shown already; under `other` they would count twice.
                if key[1] not in lost:
                    self._new(series, key[0], OTHER, key[2]).add(removed)
        for counts in (self._decisions, self._transitions):
            for key in [key for key in counts if key[1] in lost or self._has_no_labels(key[1])]:
                count = counts.pop(key)
                if key[1] not in lost:
                    counts[key[0], OTHER, key[2]] += count

    def _has_no_labels(self, ref: QueueRef | None) -> bool:
        return ref is not None and ref != OTHER and ref not in self._labels

    # --- Lines -------------------------------------------------------------------------------------------------
    # Other tasks run between the lines and may record more, so each loop iterates over a copy.

    def _lines(self, figures: Figures | None, stats: Mapping[QueueRef, Stats] | None) -> Iterator[str]:
        yield from self._request_lines()
        yield from self._limit_lines()
        text = self._labels.text
        transitions = list(self._transitions.items())
        yield from format_samples(
            declared.TRANSITIONS, ((f'event="{event}",{text(ref)}', count) for (event, ref, _), count in transitions)
        )
        if stats is not None:
            yield from self._queue_lines(stats)
        if figures is not None:
            yield from _store_lines(figures)
            yield from self._hot_lines(figures)
        yield format_value(declared.LABEL_SETS, len(self._labels))
        yield format_value(declared.LABEL_SETS_MAX, self._labels.limit)
        yield format_value(declared.LOOP_LAG, self.lag.take_highest_ms() / 1_000)
        if self.door_processes is not None:
            yield format_value(declared.DOOR_PROCESSES, len(self.door_processes))
            yield format_value(declared.DOOR_PROCESS_ENDS, self.door_process_ends)
            cpu = list(self.door_processes.items())
            yield from format_samples(declared.DOOR_CPU_SECONDS, ((f'process="{each}"', cpu_s) for each, cpu_s in cpu))
        if self.store_processes is not None:
            yield format_value(declared.STORE_PROCESSES, 1 + len(self.store_processes))
            yield format_value(declared.STORE_PROCESS_ENDS, self.store_process_ends)
            used = list(self.store_processes.items())
            yield from format_samples(
                declared.STORE_CPU_SECONDS, ((f'process="{each}"', cpu_s) for each, cpu_s in used)
            )
        yield from format_samples(declared.BUILD, [(f'version="{self._version}"', 1)])

    def _request_lines(self) -> Iterator[str]:
        labels = self._labels
        requests = list(self._requests.items())
        yield from format_samples(
            declared.REQUESTS,
            (
                (f'operation="{operation}",outcome="{outcome}",{labels.text(ref)}', sum(series.counts))
                for (operation, ref, outcome), series in requests
            ),
        )
        yield from self._latency_lines(declared.REQUEST_SECONDS, requests)

    def _limit_lines(self) -> Iterator[str]:
        labels = self._labels
        decisions = list(self._decisions.items())
        yield from format_samples(
            declared.LIMIT_DECISIONS,
            (
                (f'kind="{kind}",outcome="{outcome}",{labels.text(ref)}', count)
                for (kind, ref, outcome), count in decisions
            ),
        )
        yield from self._latency_lines(declared.LIMIT_WAIT_SECONDS, list(self._waits.items()))
        if self.turns is not None:
            yield format_value(declared.TURNS_WAITING, self.turns.waiting)
            yield from format_histograms(declared.TURN_WAIT_SECONDS, {"": self.turns.waits})
        if self.shares_limits is not None:
            yield format_value(declared.LIMITS_SHARED, int(self.shares_limits()))

    def _latency_lines(self, family: MetricFamily, every: list[tuple[_Key, Histogram]]) -> Iterator[str]:
        """Yield the latencies, summed over the outcomes and over the queues without latencies of their own."""
        sums: dict[str, Histogram] = {}
        for (word, ref, _), series in every:
            text = f'{family.labels[0]}="{word}",{self._labels.latency_text(ref)}'
            if text not in sums:
                sums[text] = Histogram(series.bounds)
            sums[text].add(series)
            yield ""  # lets other tasks run between the sums
        yield from format_histograms(family, sums)

    def _queue_lines(self, stats: Mapping[QueueRef, Stats]) -> Iterator[str]:
        shown = [(self._labels.text(ref), each) for ref, each in stats.items() if ref in self._labels]
        if rest := [each for ref, each in stats.items() if ref not in self._labels]:
            shown.append((self._labels.text(OTHER), sum_stats(rest)))
        yield from format_samples(
            declared.MESSAGES,
            (
                (f'state="{state}",{labels}', getattr(each, state))
                for labels, each in shown
                for state in ("ready", "delayed", "in_flight", "failed")
            ),
        )
        yield from format_samples(declared.BYTES, ((labels, each.bytes) for labels, each in shown))
        yield from format_samples(
            declared.OLDEST, ((labels, each.oldest_ready_age_ms / 1_000) for labels, each in shown)
        )
        yield from format_samples(declared.WAITERS, ((labels, each.waiters) for labels, each in shown))
        yield from format_samples(declared.PAUSED, ((labels, int(each.paused)) for labels, each in shown))
        yield format_value(declared.QUEUES, len(stats))

    def _hot_lines(self, figures: Figures) -> Iterator[str]:
        shares: dict[str, float] = defaultdict(float)
        for each in figures.hot:
            queue = self._labels.text(QueueRef(each.tenant, each.queue))
            shares[f'family="{each.family}",access="{each.access}",{queue}'] += each.share
        yield from format_samples(
            declared.ROCKSDB_HOT_SHARE, ((text, round(share, 4)) for text, share in shares.items())
        )


def sum_stats(every: list[Stats]) -> Stats:
    """Return the counts of several queues together."""
    return Stats(
        ready=sum(each.ready for each in every),
        delayed=sum(each.delayed for each in every),
        in_flight=sum(each.in_flight for each in every),
        failed=sum(each.failed for each in every),
        bytes=sum(each.bytes for each in every),
        oldest_ready_age_ms=max(each.oldest_ready_age_ms for each in every),
        waiters=sum(each.waiters for each in every),
        paused=any(each.paused for each in every),
        draining=any(each.draining for each in every),
    )


def _store_lines(figures: Figures) -> Iterator[str]:
    yield format_value(declared.STORE_UP, int(figures.is_up))
    yield format_value(declared.STORE_ACCEPTS_ENQUEUES, int(figures.is_up and figures.refusal is None))
    for family, figure in (
        (declared.STORE_FREE_BYTES, figures.free_bytes),
        (declared.STORE_REFUSALS, figures.refusals),
        (declared.STORE_STOPS, figures.stops),
        (declared.WAL_FREE_BYTES, figures.wal_free_bytes),
        (declared.CLOCK_SKEW, figures.clock_skew_s),
        (declared.STORE_WRITES, figures.writes),
        (declared.STORE_LEGACY_MESSAGES, figures.legacy_left),
        (declared.STORE_UNWRITTEN_BYTES, figures.unwritten_bytes),
        (declared.STORE_CHECKPOINTS, figures.checkpoints),
    ):
        if figure is not None:
            yield format_value(family, figure)
    if figures.connections is not None:
        yield format_value(declared.STORE_PROBLEMS, len(figures.problems))
        yield format_value(declared.STORE_CONNECTIONS, figures.connections.limit)
        yield format_value(declared.STORE_CONNECTIONS_IN_USE, figures.connections.in_use)
        yield format_value(declared.STORE_CONNECTION_WAITS, figures.connections.waiting)
        yield format_value(declared.STORE_LOCK_TIMEOUTS, figures.connections.lock_timeouts)
        yield format_value(declared.STORE_CONNECTION_FAILURES, figures.connections.failures)
    if figures.syncs is not None:
        yield from format_histograms(declared.STORE_SYNC_SECONDS, {"": figures.syncs})
    for field, family in declared.ROCKSDB.items():
        yield from format_samples(
            family, [(f'family="{name}"', getattr(each, field)) for name, each in figures.families.items()]
        )
