"""`holdfast top`: show all queues live."""

import select
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.inspection.tail import start_of
from holdfast.cli.output import table_of
from holdfast.cli.session import CommandSession
from holdfast.clock import sleep, steady_s
from holdfast.model.answers import Access, QueueSummary
from holdfast.model.errors import Forbidden
from holdfast.model.events import Event

if TYPE_CHECKING:
    import holdfast

# The maximum number of pages that are counted for one frame. Later events are skipped.
_MAX_PAGES = 50
_PAGE = 1_000
_MAX_ROWS = 200
# A terminal with fewer columns shows no shares of the busiest queues: they would squeeze the counts.
_WIDE = 160

_Key = tuple[str, str, Event]
# The shares by column family, of each queue and kind of access.
_HotShares = dict[tuple[str, str, Access], dict[str, float]]


class Rates:
    """Events per second of each queue, counted in the journal."""

    def __init__(self, hf: "holdfast.Holdfast", tenant: str | None) -> None:
        self._hf = hf
        self._tenant = tenant
        self._position = start_of(hf, 0, tenant)
        self._at = steady_s()

    def take(self) -> dict[_Key, float]:
        """Return the rates since the previous call."""
        seen: Counter[_Key] = Counter()
        for _ in range(_MAX_PAGES):
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
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, max=3_600, help="Seconds between frames.")
    ] = 1.0,
) -> None:
    """Show all queues live, with message counts, ages and rates. Press q to quit.

    With --tenant, only that tenant's queues are shown. Without it, an operator sees all tenants.
    """
    tenant = None if cli.target.origin("tenant") == "default" else cli.target.tenant
    tenant = _visible_tenant(cli, tenant)
    rates = Rates(cli.hf, tenant)
    output = cli.output
    is_live = output.is_terminal and not (once or output.is_json or output.is_quiet)
    if not is_live:
        while True:
            sleep(interval)
            rows = frame(cli.hf, tenant, rates)
            output.rows(rows if output.is_json else map(with_hottest, rows), empty="no queues")
            sys.stdout.flush()
            if once or not output.is_json:
                return
    _live(cli, tenant, rates, interval)


def _live(cli: CommandSession, tenant: str | None, rates: Rates, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    with _keyboard() as read_key, Live(console=cli.output.console, screen=True, auto_refresh=False) as live:
        while True:
            rows = frame(cli.hf, tenant, rates)
            title = f"{cli.target.url}   {len(rows):,} queues   q quits"
            shown = (
                table_of([shown_row(row, cli.output.console.width) for row in rows[:_MAX_ROWS]], title=title)
                if rows
                else Text(f"{title}\n\nno queues yet")
            )
            live.update(shown, refresh=True)
            if read_key(interval) in ("q", "Q", "\x03", "\x1b"):
                return


def frame(hf: "holdfast.Holdfast", tenant: str | None, rates: Rates) -> list[dict[str, Any]]:
    """Return a row for each queue, those with the most ready and in-flight messages first."""
    taken, hot = rates.take(), _hot_shares(hf)
    names = [tenant] if tenant is not None else [each.tenant for each in hf.tenants()]
    rows = [_row(name, each, taken, hot) for name in names for each in hf.queues(tenant=name)]
    return sorted(rows, key=lambda row: (-row["ready"] - row["in_flight"], row["queue"]))


def _row(tenant: str, each: QueueSummary, rates: dict[_Key, float], hot: _HotShares) -> dict[str, Any]:
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
        "hot_reads": hot.get((tenant, each.queue, Access.READ), {}),
        "hot_writes": hot.get((tenant, each.queue, Access.WRITE), {}),
        "bytes": each.bytes,
        "waiters": each.waiters,
        "paused": each.paused,
        "draining": each.draining,
    }


def _hot_shares(hf: "holdfast.Holdfast") -> _HotShares:
    """Return each busy queue's shares of reads and writes by column family; none unless the caller is an operator."""
    shares: _HotShares = {}
    with suppress(Forbidden):
        for each in hf.hot_queues():
            shares.setdefault((each.tenant, each.queue, each.access), {})[each.family] = round(each.share, 4)
    return shares


def shown_row(row: dict[str, Any], width: int) -> dict[str, Any]:
    """Return a row as a terminal with `width` columns shows it."""
    if width >= _WIDE:
        return with_hottest(row)
    return {name: value for name, value in row.items() if not name.startswith("hot_")}


def with_hottest(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for people: of the shares by column family only the largest, such as `vi 61%`."""
    return {**row, **{key: _hottest(row[key]) for key in ("hot_reads", "hot_writes")}}


def _hottest(shares: Mapping[str, float]) -> str | None:
    if not shares:
        return None
    family = max(shares, key=shares.__getitem__)
    return f"{family} {shares[family]:.0%}"


def _visible_tenant(cli: CommandSession, tenant: str | None) -> str | None:
    """Return None for an operator without --tenant, who sees all tenants, and otherwise the caller's tenant."""
    if tenant is None:
        try:
            cli.hf.tenants()
        except Forbidden:
            return cli.target.tenant
    return tenant


@contextmanager
def _keyboard() -> Iterator[Any]:
    """Yield a function that waits some seconds for a key and returns it, or an empty string.

    The terminal's settings are restored at the end.
    """
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            sleep(seconds)
            return ""

        yield wait
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def read_key(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([file], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(file)
        yield read_key
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
