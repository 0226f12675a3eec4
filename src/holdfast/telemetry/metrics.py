"""The metrics of a server: what is counted as it happens, and what is read at each scrape.

No state of a module: a server makes its own `Metrics`.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from holdfast.model.answers import Stats
from holdfast.model.errors import HoldfastError
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.telemetry import declared
from holdfast.telemetry.exposition import MetricFamily, histograms, number, numbers
from holdfast.telemetry.figures import Figures, Histogram
from holdfast.telemetry.labels import OTHER, LabelSets
from holdfast.telemetry.lag import LoopLag

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

OK = "ok"
DEFAULT_MAX_LABELS = 1_000

# From a claim that finds something in memory to a wait of half a minute.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)

# A scrape looks at this many queues at most for each label set there can be.
_LOOKED_AT_PER_SET = 10
# Queues looked at, or lines written, before others have their turn on the event loop.
_TURN = 200

# Operations, outcomes and kinds are words of our own: anything else would be somebody's input, or a mistake.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,47}")
_MAX_WORDS = 256


# A word, the queue it is of (None: of none), and an outcome where there is one.
_Key = tuple[str, QueueRef | None, str]


class Source(Protocol):
    """What a scrape reads."""

    def queues(self) -> AsyncIterator[tuple[QueueRef, Stats]]: ...

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]: ...

    async def figures(self) -> Figures: ...


class Turns(Protocol):
    """The requests that wait at the sockets of a server."""

    @property
    def waiting(self) -> int: ...

    @property
    def waits(self) -> Histogram: ...


class Metrics:
    def __init__(
        self, source: Source | None = None, *, max_labels: int = DEFAULT_MAX_LABELS, version: str = "unknown"
    ) -> None:
        self.lag = LoopLag()
        # Whether rates are shared with other servers at the moment; None: they never are.
        self.shares_limits: Callable[[], bool] | None = None
        # The turns that tenants take at the socket; None: nobody takes turns there.
        self.turns: Turns | None = None
        # The CPU seconds of each door process, by its number; None: the doors are in this process.
        self.door_processes: dict[int, float] | None = None
        self.door_process_ends = 0
        self._source = source
        self._version = version
        self._labels = LabelSets(max_labels)
        self._words: dict[str, str] = {}
        self._requests: dict[_Key, Histogram] = {}
        self._decisions: dict[_Key, int] = defaultdict(int)
        self._waits: dict[_Key, Histogram] = {}
        self._transitions: dict[_Key, int] = defaultdict(int)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    # --- As it happens -----------------------------------------------------------------------------------------

    def request(self, operation: str, ref: QueueRef | None, outcome: str, seconds: float) -> None:
        """One request was answered. `ref` None: it concerned no queue, or nobody who may ask. `outcome` is `OK` or an
        error's code."""
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
        """A limit of this kind let a call through, made it wait, or refused it."""
        key: _Key = (kind, ref, outcome)
        if key not in self._decisions:
            key = self._key(kind, ref, outcome)
        self._decisions[key] += 1

    def waited(self, ref: QueueRef, kind: str, ms: float) -> None:
        """A call over a limit waited this long for its turn."""
        series = self._waits.get((kind, ref, ""))
        if series is None:
            series = self._new(self._waits, kind, ref, "")
        series.observe(ms / 1_000)

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

    # --- At each scrape ----------------------------------------------------------------------------------------

    async def render(self) -> bytes:
        """Prometheus' text, `CONTENT_TYPE`. A store that cannot answer costs its own lines, not the scrape."""
        figures, stats = await self._gather()
        parts = []
        for written, part in enumerate(self._lines(figures, stats), 1):
            parts.append(part)
            if written % _TURN == 0:
                await asyncio.sleep(0)
        return "".join(parts).encode() + generate_latest(self._registry)

    async def _gather(self) -> tuple[Figures | None, dict[QueueRef, Stats] | None]:
        if self._source is None:
            self._settle_labels(None, is_complete=False)
            return None, None
        figures = Figures(is_up=False)
        stats: dict[QueueRef, Stats] = {}
        is_complete = False
        with suppress(HoldfastError):  # STORE_UP tells of it
            figures = await self._source.figures()
            stats, is_complete = await self._look_at_queues(self._source)
        self._settle_labels(stats, is_complete=is_complete)
        # Last: a scrape that is broken off before has taken nothing.
        for ref, counts in (await self._source.take_tallies()).items():
            kept = ref if ref in self._labels else OTHER
            for event, count in counts.items():
                self._transitions[event.value, kept, ""] += count
        return figures, stats

    async def _look_at_queues(self, source: Source) -> tuple[dict[QueueRef, Stats], bool]:
        stats: dict[QueueRef, Stats] = {}
        async for ref, each in source.queues():
            if len(stats) == self._labels.limit * _LOOKED_AT_PER_SET:
                return stats, False
            stats[ref] = each
            if len(stats) % _TURN == 0:
                await asyncio.sleep(0)
        return stats, True

    def _settle_labels(self, queues: dict[QueueRef, Stats] | None, *, is_complete: bool) -> None:
        lost = set(self._labels.settle(queues, is_complete=is_complete))
        for series in (self._requests, self._waits):
            for key in [key for key in series if self._is_astray(key[1])]:
                gone = series.pop(key)
                if key[1] not in lost:  # never shown under its own name, so nobody sees it twice
                    self._new(series, key[0], OTHER, key[2]).add(gone)
        for counts in (self._decisions, self._transitions):
            for key in [key for key in counts if self._is_astray(key[1])]:
                count = counts.pop(key)
                if key[1] not in lost:
                    counts[key[0], OTHER, key[2]] += count

    def _is_astray(self, ref: QueueRef | None) -> bool:
        return ref is not None and ref != OTHER and ref not in self._labels

    # --- The lines ---------------------------------------------------------------------------------------------
    # Written one by one, with turns for others between them: so each loop goes over a list made before.

    def _lines(self, figures: Figures | None, stats: Mapping[QueueRef, Stats] | None) -> Iterator[str]:
        yield from self._request_lines()
        yield from self._limit_lines()
        text = self._labels.text
        transitions = list(self._transitions.items())
        yield from numbers(
            declared.TRANSITIONS, ((f'event="{event}",{text(ref)}', count) for (event, ref, _), count in transitions)
        )
        if stats is not None:
            yield from self._queue_lines(stats)
        if figures is not None:
            yield from _store_lines(figures)
        yield number(declared.LABEL_SETS, len(self._labels))
        yield number(declared.LABEL_SETS_MAX, self._labels.limit)
        yield number(declared.LOOP_LAG, self.lag.take_highest())
        if self.door_processes is not None:
            yield number(declared.DOOR_PROCESSES, len(self.door_processes))
            yield number(declared.DOOR_PROCESS_ENDS, self.door_process_ends)
            cpu = list(self.door_processes.items())
            yield from numbers(declared.DOOR_CPU_SECONDS, ((f'process="{each}"', cpu_s) for each, cpu_s in cpu))
        yield from numbers(declared.BUILD, [(f'version="{self._version}"', 1)])

    def _request_lines(self) -> Iterator[str]:
        labels = self._labels
        requests = list(self._requests.items())
        yield from numbers(
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
        yield from numbers(
            declared.LIMIT_DECISIONS,
            (
                (f'kind="{kind}",outcome="{outcome}",{labels.text(ref)}', count)
                for (kind, ref, outcome), count in decisions
            ),
        )
        yield from self._latency_lines(declared.LIMIT_WAIT_SECONDS, list(self._waits.items()))
        if self.turns is not None:
            yield number(declared.TURNS_WAITING, self.turns.waiting)
            yield from histograms(declared.TURN_WAIT_SECONDS, {"": self.turns.waits})
        if self.shares_limits is not None:
            yield number(declared.LIMITS_SHARED, int(self.shares_limits()))

    def _latency_lines(self, family: MetricFamily, every: list[tuple[_Key, Histogram]]) -> Iterator[str]:
        """The outcomes of one operation, and the queues without latencies of their own, are shown together."""
        together: dict[str, Histogram] = {}
        for (word, ref, _), series in every:
            text = f'{family.labels[0]}="{word}",{self._labels.latency_text(ref)}'
            if text not in together:
                together[text] = Histogram(series.bounds)
            together[text].add(series)
            yield ""  # a turn for others may come here
        yield from histograms(family, together)

    def _queue_lines(self, stats: Mapping[QueueRef, Stats]) -> Iterator[str]:
        shown = [(self._labels.text(ref), each) for ref, each in stats.items() if ref in self._labels]
        if rest := [each for ref, each in stats.items() if ref not in self._labels]:
            shown.append((self._labels.text(OTHER), _together(rest)))
        yield from numbers(
            declared.MESSAGES,
            (
                (f'state="{state}",{labels}', getattr(each, state))
                for labels, each in shown
                for state in ("ready", "delayed", "in_flight", "failed")
            ),
        )
        yield from numbers(declared.BYTES, ((labels, each.bytes) for labels, each in shown))
        yield from numbers(declared.OLDEST, ((labels, each.oldest_ready_age_ms / 1_000) for labels, each in shown))
        yield from numbers(declared.WAITERS, ((labels, each.waiters) for labels, each in shown))
        yield from numbers(declared.PAUSED, ((labels, int(each.paused)) for labels, each in shown))
        yield number(declared.QUEUES, len(stats))


def _together(every: list[Stats]) -> Stats:
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
    yield number(declared.STORE_UP, int(figures.is_up))
    yield number(declared.STORE_ACCEPTS_ENQUEUES, int(figures.is_up and figures.refusal is None))
    for family, figure in (
        (declared.STORE_FREE_BYTES, figures.free_bytes),
        (declared.STORE_REFUSALS, figures.refusals),
        (declared.STORE_STOPS, figures.stops),
        (declared.WAL_FREE_BYTES, figures.wal_free_bytes),
        (declared.CLOCK_SKEW, figures.clock_skew_s),
        (declared.STORE_WRITES, figures.writes),
        (declared.STORE_UNWRITTEN_BYTES, figures.unwritten_bytes),
        (declared.STORE_CHECKPOINTS, figures.checkpoints),
    ):
        if figure is not None:
            yield number(family, figure)
    if figures.syncs is not None:
        yield from histograms(declared.STORE_SYNC_SECONDS, {"": figures.syncs})
    for field, family in declared.ROCKSDB.items():
        yield from numbers(
            family, [(f'family="{name}"', getattr(each, field)) for name, each in figures.families.items()]
        )
