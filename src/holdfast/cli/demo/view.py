"""The output of the demo: a live view on a terminal, otherwise lines; and the audit at the end."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import holdfast
from holdfast.cli.demo.audit import Audit
from holdfast.cli.demo.producers import DEMO_QUEUES, Accepted
from holdfast.cli.demo.workers import DemoWorker, DemoWorkers, held_by
from holdfast.clock import SystemClock
from holdfast.model.answers import Stats
from holdfast.stores.rocks.verify.store_check import Report

# The number of refreshes over which rates are computed, about a second.
_RATE_REFRESHES = 5
_SHOWN_LINES = 4


class View:
    """Shows the queues and workers while the demo runs. With `is_quiet`, nothing is printed."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._clock = SystemClock()
        self._started_at = self._clock.now_ms()
        self._stats: dict[str, Stats] = {}
        self._held: dict[str, int] = {}
        # Elapsed seconds and the number of acked messages, for the last refreshes.
        self._done: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_RATE_REFRESHES)
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._seconds_printed = 0
        self._is_quiet = is_quiet
        self._console = Console(highlight=False)
        is_live = self._console.is_terminal and not is_quiet
        self._live = Live(console=self._console, auto_refresh=False) if is_live else None
        self._hf: holdfast.AsyncHoldfast | None = None
        self._workers: DemoWorkers | None = None
        self._accepted = Accepted()

    @contextmanager
    def show(self) -> Iterator[None]:
        if self._live is None:
            yield
            return
        with self._live:
            self._live.update(Text("holdfast demo: starting the workers"), refresh=True)
            yield

    def begin(self, hf: holdfast.AsyncHoldfast, workers: DemoWorkers, accepted: Accepted) -> None:
        """Start the clock of the view, once the workers have started."""
        self._hf, self._workers, self._accepted = hf, workers, accepted
        self._started_at = self._clock.now_ms()
        where = (
            "this process" if workers.is_simulated else "processes " + ", ".join(str(each.pid) for each in workers.all)
        )
        self.say(f"{len(DEMO_QUEUES)} producers, {len(workers.all)} workers in {where}")

    def elapsed(self) -> float:
        """Return the seconds since the workers have started."""
        return (self._clock.now_ms() - self._started_at) / 1_000

    def say(self, text: str) -> None:
        """Add a line about an event of the demo."""
        self._lines.append(f"{self.elapsed() if self._workers else 0:4.1f} s  {text}")
        if self._live is None and not self._is_quiet:
            typer.echo(self._lines[-1])

    @property
    def is_empty(self) -> bool:
        """Return True if no message is ready, delayed or in flight."""
        return all(not (each.ready or each.delayed or each.in_flight) for each in self._stats.values())

    async def refresh(self) -> None:
        """Read all counts, and update the view. Without a terminal, print a line per second instead."""
        assert self._hf is not None
        assert self._workers is not None
        for each in DEMO_QUEUES:
            self._stats[str(each)] = await self._hf.queue(each.queue, tenant=each.tenant).stats()
        self._done.append((self.elapsed(), sum(each.outcomes["succeeded"] for each in self._workers.all)))
        if self._live is not None:
            self._held = {each.name: len(await held_by(self._hf, each.name)) for each in self._workers.all}
            self._live.update(self._draw(self._workers.all), refresh=True)
        elif not self._is_quiet and self.elapsed() >= self._seconds_printed + 1:
            self._seconds_printed = int(self.elapsed())
            typer.echo(self._line(self._workers.all))

    # --- While it runs -----------------------------------------------------------------------------------------

    def _rate(self) -> float:
        (then, before), (now, after) = self._done[0], self._done[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def _draw(self, every_worker: list[DemoWorker]) -> Group:
        queues = Table(title=f"holdfast demo, {self.elapsed():.0f} s, {self._rate():,.0f} acked/s", min_width=76)
        queues.add_column("queue")
        for column in ("ready", "delayed", "in flight", "dead letters"):
            queues.add_column(column, justify="right", min_width=8)
        for name, stats in self._stats.items():
            dead = Text(f"{stats.failed:,}", style="yellow" if stats.failed else "")
            queues.add_row(name, f"{stats.ready:,}", f"{stats.delayed:,}", f"{stats.in_flight:,}", dead)
        workers = Table(min_width=76)
        workers.add_column("worker")
        for column in ("process", "holds", "acked", "retried", "dead-lettered"):
            workers.add_column(column, justify="right", min_width=7)
        for worker in every_worker:
            outcomes, held = worker.outcomes, f"{self._held.get(worker.name, 0):,}"
            is_dead = worker.held_at_death is not None
            cells = (worker.name, "killed" if is_dead else str(worker.pid), held)
            counts = (f"{outcomes['succeeded']:,}", f"{outcomes['retried']:,}", f"{outcomes['failed']:,}")
            workers.add_row(*cells, *counts, style="red" if is_dead else "")
        return Group(queues, workers, Text("\n".join(self._lines)))

    def _line(self, every_worker: list[DemoWorker]) -> str:
        every = self._stats.values()
        done: Counter[str] = sum((worker.outcomes for worker in every_worker), Counter())
        return (
            f"{self.elapsed():4.1f} s  enqueued {len(self._accepted.expected):,}  acked {done['succeeded']:,} "
            f"({self._rate():,.0f}/s)  retried {done['retried']:,}  ready {sum(each.ready for each in every):,}  "
            f"delayed {sum(each.delayed for each in every):,}  in flight {sum(each.in_flight for each in every):,}  "
            f"dead letters {sum(each.failed for each in every):,}"
        )

    # --- At the end --------------------------------------------------------------------------------------------

    def conclude(self, audit: Audit, report: Report) -> None:
        """Print the audit, the faults and the verdict."""
        is_good = report.is_clean and not audit.faults
        for line in _audit_lines(audit, report):
            self._console.print(line, markup=False, soft_wrap=True)
        for fault in [*audit.faults, *map(str, report.violations)]:
            self._console.print(f"  {fault}", markup=False, style="red", soft_wrap=True)
        verdict = (
            "every message ended as expected, and nothing was lost" if is_good else "FAILED, for the reasons above"
        )
        if is_good and audit.is_interrupted:
            verdict = f"interrupted with {audit.waiting:,} messages waiting in the store; nothing was lost"
        self._console.print(f"verdict: {verdict}", markup=False, style="green" if is_good else "bold red")


def _audit_lines(audit: Audit, report: Report) -> Iterator[str]:
    why = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(audit.failed_as.items())) or "none"
    yield (
        f"audit of the journal: {audit.enqueued:,} enqueued = {audit.succeeded:,} acked + {audit.failed:,} dead "
        f"letters ({why}) + {audit.waiting:,} waiting; lost {audit.lost:,}, acked twice {audit.succeeded_twice:,}"
    )
    yield (
        f"the killed worker held {audit.died_holding:,} messages: {audit.redelivered:,} were delivered again under a "
        f"higher version; retries {audit.retried:,}, leases expired {audit.expired:,}"
    )
    yield (
        f"verify of the store: {report.events:,} events, {report.messages:,} messages, "
        f"{report.violation_count:,} violations"
    )
