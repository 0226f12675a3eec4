"""`holdfast top`: every queue, live."""

import select
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.inspection.tail import start_of
from holdfast.cli.output import table_of
from holdfast.cli.session import CommandSession
from holdfast.clock import steady_s
from holdfast.model.answers import QueueSummary
from holdfast.model.errors import Forbidden
from holdfast.model.events import Event

if TYPE_CHECKING:
    import holdfast

# Beyond so many pages of events between two looks the rates are no longer counted to the end.
_MOST_PAGES = 50
_PAGE = 1_000
_ROWS = 200

_Key = tuple[str, str, Event]


class Rates:
    """Events of each queue a second, read off the journal."""

    def __init__(self, hf: "holdfast.Holdfast", tenant: str | None) -> None:
        self._hf = hf
        self._tenant = tenant
        self._position = start_of(hf, 0, tenant)
        self._at = steady_s()

    def take(self) -> dict[_Key, float]:
        seen: Counter[_Key] = Counter()
        for _ in range(_MOST_PAGES):
            page = self._hf.journal(self._position, _PAGE, tenant=self._tenant)
            self._position = page.next or self._position
            seen.update((each.tenant, each.queue, each.event) for each in page)
            if len(page) < _PAGE:
                break
        else:
            self._position = start_of(self._hf, 0, self._tenant)
        now = steady_s()
        seconds, self._at = max(now - self._at, 0.001), now
        return {key: number / seconds for key, number in seen.items()}


def top(
    cli: CommandSession,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, max=3_600, help="Seconds between looks.")
    ] = 1.0,
) -> None:
    """The queues live: what is ready, delayed, in flight and failed, how old, and how fast. q ends it.

    With --tenant, of that tenant alone; an operator without it sees all tenants.
    """
    tenant = None if cli.place.origin("tenant") == "default" else cli.place.tenant
    tenant = _visible(cli, tenant)
    rates = Rates(cli.hf, tenant)
    output = cli.output
    is_live = output.is_terminal and not (once or output.is_json or output.is_quiet)
    if not is_live:
        while True:
            _wait(interval)
            output.rows(frame(cli.hf, tenant, rates), empty="no queues")
            sys.stdout.flush()
            if once or not output.is_json:
                return
    _live(cli, tenant, rates, interval)


def _live(cli: CommandSession, tenant: str | None, rates: Rates, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    with _keys() as pressed, Live(console=cli.output.console, screen=True, auto_refresh=False) as live:
        while True:
            rows = frame(cli.hf, tenant, rates)
            title = f"{cli.place.url}   {len(rows):,} queues   q ends"
            shown = table_of(rows[:_ROWS], title=title) if rows else Text(f"{title}\n\nno queues yet")
            live.update(shown, refresh=True)
            if pressed(interval) in ("q", "Q", "\x03", "\x1b"):
                return


def frame(hf: "holdfast.Holdfast", tenant: str | None, rates: Rates) -> list[dict[str, Any]]:
    """A row for each queue, those with the most work first."""
    taken = rates.take()
    names = [tenant] if tenant is not None else [each.tenant for each in hf.tenants()]
    rows = [_row(name, each, taken) for name in names for each in hf.queues(tenant=name)]
    return sorted(rows, key=lambda row: (-row["ready"] - row["in_flight"], row["queue"]))


def _row(tenant: str, each: QueueSummary, rates: dict[_Key, float]) -> dict[str, Any]:
    return {
        "queue": f"{tenant}/{each.queue}",
        "ready": each.ready,
        "delayed": each.delayed,
        "in_flight": each.in_flight,
        "failed": each.failed,
        "oldest_ready_age_ms": each.oldest_ready_age_ms,
        "enqueued_per_s": rates.get((tenant, each.queue, Event.ENQUEUED), 0.0),
        "succeeded_per_s": rates.get((tenant, each.queue, Event.SUCCEEDED), 0.0),
        "retried_per_s": rates.get((tenant, each.queue, Event.RETRIED), 0.0),
        "bytes": each.bytes,
        "waiters": each.waiters,
        "paused": each.paused,
        "draining": each.draining,
    }


def _visible(cli: CommandSession, tenant: str | None) -> str | None:
    """None for an operator, who sees all; anybody else sees the own tenant."""
    if tenant is None:
        try:
            cli.hf.tenants()
        except Forbidden:
            return cli.place.tenant
    return tenant


def _wait(seconds: float) -> None:
    import threading

    threading.Event().wait(seconds)


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key so long, and answers it, or nothing; the terminal is as before afterwards."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            _wait(seconds)
            return ""

        yield wait
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([file], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
