"""What the demo shows: a live view on a terminal, lines elsewhere, and the audit at the end."""

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
from holdfast.cli.demo.producers import KINDS, Accepted
from holdfast.cli.demo.workers import DemoWorkers, Seat, held_by
from holdfast.clock import SystemClock
from holdfast.model.answers import Stats
from holdfast.stores.rocks.verify.store_check import Report

# Rates are taken over so many looks, about a second.
_LOOKS = 5
_LINES = 4


class View:
    def __init__(self, *, is_quiet: bool) -> None:
        self._clock = SystemClock()
        self._started_at = self._clock.now_ms()
        self._stats: dict[str, Stats] = {}
        self._in_hand: dict[str, int] = {}
        # What the workers had done, as of the last looks.
        self._done: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_LOOKS)
        self._said: deque[str] = deque(maxlen=_LINES)
        self._lines = 0
        self._is_quiet = is_quiet
        self._console = Console(highlight=False)
        is_live = self._console.is_terminal and not is_quiet
        self._live = Live(console=self._console, auto_refresh=False) if is_live else None
        self._hf: holdfast.AsyncHoldfast | None = None
        self._crew: DemoWorkers | None = None
        self._accepted = Accepted()

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self._live is None:
            yield
            return
        with self._live:
            self._live.update(Text("holdfast demo: starting the workers"), refresh=True)
            yield

    def begin(self, hf: holdfast.AsyncHoldfast, crew: DemoWorkers, accepted: Accepted) -> None:
        self._hf, self._crew, self._accepted = hf, crew, accepted
        self._started_at = self._clock.now_ms()
        where = "this process" if crew.is_played else "processes " + ", ".join(str(seat.pid) for seat in crew.seats)
        self.say(f"{len(KINDS)} producers, {len(crew.seats)} workers in {where}")

    def elapsed(self) -> float:
        return (self._clock.now_ms() - self._started_at) / 1_000

    def say(self, text: str) -> None:
        self._said.append(f"{self.elapsed() if self._crew else 0:4.1f} s  {text}")
        if self._live is None and not self._is_quiet:
            typer.echo(self._said[-1])

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is held."""
        return all(not (each.ready or each.delayed or each.in_flight) for each in self._stats.values())

    async def refresh(self) -> None:
        assert self._hf is not None
        assert self._crew is not None
        for kind in KINDS:
            self._stats[str(kind)] = await self._hf.queue(kind.queue, tenant=kind.tenant).stats()
        self._done.append((self.elapsed(), sum(seat.told["succeeded"] for seat in self._crew.seats)))
        if self._live is not None:
            self._in_hand = {seat.name: len(await held_by(self._hf, seat.name)) for seat in self._crew.seats}
            self._live.update(self._picture(self._crew.seats), refresh=True)
        elif not self._is_quiet and self.elapsed() >= self._lines + 1:
            self._lines = int(self.elapsed())
            typer.echo(self._line(self._crew.seats))

    # --- While it runs -----------------------------------------------------------------------------------------

    def _rate(self) -> float:
        (then, before), (now, after) = self._done[0], self._done[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def _picture(self, seats: list[Seat]) -> Group:
        queues = Table(title=f"holdfast demo, {self.elapsed():.0f} s, {self._rate():,.0f} acked/s", min_width=76)
        queues.add_column("queue")
        for column in ("ready", "delayed", "in flight", "dead letters"):
            queues.add_column(column, justify="right", min_width=8)
        for name, stats in self._stats.items():
            dead = Text(f"{stats.failed:,}", style="yellow" if stats.failed else "")
            queues.add_row(name, f"{stats.ready:,}", f"{stats.delayed:,}", f"{stats.in_flight:,}", dead)
        workers = Table(min_width=76)
        workers.add_column("worker")
        for column in ("process", "in hand", "acked", "retried", "dead-lettered"):
            workers.add_column(column, justify="right", min_width=7)
        for seat in seats:
            told, in_hand = seat.told, f"{self._in_hand.get(seat.name, 0):,}"
            is_dead = seat.held is not None
            cells = (seat.name, "killed" if is_dead else str(seat.pid), in_hand)
            counts = (f"{told['succeeded']:,}", f"{told['retried']:,}", f"{told['failed']:,}")
            workers.add_row(*cells, *counts, style="red" if is_dead else "")
        return Group(queues, workers, Text("\n".join(self._said)))

    def _line(self, seats: list[Seat]) -> str:
        every = self._stats.values()
        done: Counter[str] = sum((seat.told for seat in seats), Counter())
        return (
            f"{self.elapsed():4.1f} s  enqueued {len(self._accepted.fates):,}  acked {done['succeeded']:,} "
            f"({self._rate():,.0f}/s)  retried {done['retried']:,}  ready {sum(each.ready for each in every):,}  "
            f"delayed {sum(each.delayed for each in every):,}  in flight {sum(each.in_flight for each in every):,}  "
            f"dead letters {sum(each.failed for each in every):,}"
        )

    # --- At the end --------------------------------------------------------------------------------------------

    def conclude(self, audit: Audit, report: Report) -> None:
        is_good = report.is_clean and not audit.faults
        for line in _told(audit, report):
            self._console.print(line, markup=False, soft_wrap=True)
        for fault in [*audit.faults, *map(str, report.violations)]:
            self._console.print(f"  {fault}", markup=False, style="red", soft_wrap=True)
        verdict = "every message ended as it should, nothing was lost" if is_good else "NOT AS IT SHOULD BE"
        if is_good and audit.is_interrupted:
            verdict = f"interrupted with {audit.waiting:,} messages waiting in the store; nothing was lost"
        self._console.print(f"verdict: {verdict}", markup=False, style="green" if is_good else "bold red")


def _told(audit: Audit, report: Report) -> Iterator[str]:
    why = ", ".join(f"{count:,} {fate}" for fate, count in sorted(audit.failed_as.items())) or "none"
    yield (
        f"audit of the journal: {audit.enqueued:,} enqueued = {audit.succeeded:,} acked + {audit.failed:,} dead "
        f"letters ({why}) + {audit.waiting:,} waiting; lost {audit.lost:,}, acked twice {audit.succeeded_twice:,}"
    )
    yield (
        f"the killed worker held {audit.died_holding:,} messages: {audit.redelivered:,} were delivered again under a "
        f"higher version; retries {audit.retried:,}, leases run out {audit.expired:,}"
    )
    yield (
        f"verify of the store: {report.events:,} events, {report.messages:,} messages, "
        f"{report.violation_count:,} violations"
    )
