"""What the demo shows: a live table on a terminal, a line each second elsewhere, and the sum at the end."""

import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

import holdfast
from holdfast.cli.demo_load import KINDS, Tally
from holdfast.clock import SystemClock
from holdfast.model.answers import Info, Stats
from holdfast.model.events import Event
from holdfast.stores.rocks.verify import Report

# Seconds between looks. Rates are taken over the last second.
_TICK_S = 0.25
_TICKS_PER_S = 4


class View:
    def __init__(self, hf: holdfast.Holdfast, tally: Tally, *, is_quiet: bool) -> None:
        self._clock = SystemClock()
        self._started_at = self._clock.now_ms()
        self._queues = {str(kind): hf.queue(kind.queue, tenant=kind.tenant) for kind in KINDS}
        self._tally = tally
        self._stats: dict[str, Stats] = {}
        # What was done, as of the last looks.
        self._done: deque[tuple[float, Counter[str]]] = deque([(0.0, Counter())], maxlen=_TICKS_PER_S + 1)
        self._said = ""
        self._lines = 0
        self._is_quiet = is_quiet
        console = Console()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal and not is_quiet else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def ticks(self) -> Iterator[float]:
        """Seconds since the start, a few times a second, each shown."""
        pause = threading.Event()
        while True:
            pause.wait(_TICK_S)
            self.refresh()
            yield self._elapsed()

    def say(self, text: str) -> None:
        self._said = text
        if self._live is None and not self._is_quiet:
            typer.echo(text)

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is held."""
        return all(not (each.ready or each.delayed or each.in_flight) for each in self._stats.values())

    def refresh(self) -> None:
        self._stats = {name: queue.stats() for name, queue in self._queues.items()}
        with self._tally.lock:
            self._done.append((self._elapsed(), Counter(self._tally.done)))
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif not self._is_quiet and self._elapsed() >= self._lines + 1:
            self._lines += 1
            typer.echo(self._line())

    def _elapsed(self) -> float:
        return (self._clock.now_ms() - self._started_at) / 1_000

    def _rate(self, name: str) -> float:
        (then, before), (now, after) = self._done[0], self._done[-1]
        return (after[name] - before[name]) / max(now - then, _TICK_S)

    def _table(self) -> Table:
        table = Table(title=f"holdfast demo, {self._elapsed():.0f} s", caption=self._said or None, min_width=72)
        table.add_column("queue")
        for column in ("ready", "delayed", "in flight", "failed", "done", "done/s"):
            table.add_column(column, justify="right", min_width=7)
        for name, stats in self._stats.items():
            numbers = (stats.ready, stats.delayed, stats.in_flight, stats.failed, self._done[-1][1][name])
            table.add_row(name, *(f"{number:,}" for number in numbers), f"{self._rate(name):,.0f}")
        return table

    def _line(self) -> str:
        every = self._stats.values()
        return (
            f"{self._lines:3} s  enqueued {len(self._tally.accepted):,}  done {self._done[-1][1].total():,} "
            f"({sum(self._rate(name) for name in self._stats):,.0f}/s)  ready {sum(each.ready for each in every):,}  "
            f"delayed {sum(each.delayed for each in every):,}  in flight {sum(each.in_flight for each in every):,}  "
            f"failed {sum(each.failed for each in every):,}"
        )


@dataclass(frozen=True)
class Summary:
    """Counted from the journal, but for what only the callers know: which enqueues were answered."""

    enqueued: int
    succeeded: int
    failed: int
    retried: int
    # Leases that ran out: their messages were delivered again, or failed for good.
    expired: int
    waiting: int
    # Answered, and then neither ended nor there any more.
    lost: int
    succeeded_twice: int
    died_holding: int

    def show(self, report: Report) -> None:
        typer.echo(
            f"enqueued {self.enqueued:,}, succeeded {self.succeeded:,}, failed {self.failed:,}, still waiting "
            f"{self.waiting:,}; lost {self.lost:,}, succeeded twice {self.succeeded_twice:,}"
        )
        typer.echo(
            f"retried {self.retried:,}, leases run out {self.expired:,} (the worker that died held "
            f"{self.died_holding:,} messages)"
        )
        typer.echo(
            f"verify: {report.events:,} events and {report.messages:,} messages in the store, "
            f"{report.violation_count:,} violations"
        )
        for violation in report.violations:
            typer.echo(f"  {violation}")


_ENDED = frozenset({Event.SUCCEEDED, Event.REMOVED})


def summarise(hf: holdfast.Holdfast, tally: Tally) -> Summary:
    """Read the whole journal; the last event of each message says where it is."""
    events: Counter[Event] = Counter()
    last: dict[int, Event] = {}
    times_succeeded: Counter[int] = Counter()
    expired = 0
    position: str | None = None
    while page := hf.journal(position):
        for event in page:
            events[event.event] += 1
            last[event.snowflake] = event.event
            if event.event is Event.SUCCEEDED:
                times_succeeded[event.snowflake] += 1
            # The last lease that a message may lose ends it.
            expired += event.event is Event.EXPIRED or event.reason == "lease_expired"
        position = page.next
    open_ids = {id for id, event in last.items() if event not in _ENDED}
    kept = {info.snowflake for kind in KINDS for info in _stored(hf.queue(kind.queue, tenant=kind.tenant))}
    lost = (open_ids - kept) | (set(tally.accepted) - last.keys())
    return Summary(
        enqueued=events[Event.ENQUEUED],
        succeeded=events[Event.SUCCEEDED],
        failed=sum(event is Event.FAILED for event in last.values()),
        retried=events[Event.RETRIED],
        expired=expired,
        waiting=len({id for id in open_ids if last[id] is not Event.FAILED}),
        lost=len(lost),
        succeeded_twice=sum(times > 1 for times in times_succeeded.values()),
        died_holding=tally.died_holding,
    )


def _stored(queue: holdfast.Queue) -> Iterator[Info]:
    cursor: str | None = None
    while True:
        page = queue.list(limit=1_000, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
