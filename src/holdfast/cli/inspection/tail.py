"""`holdfast tail`: print the events of the journal as they happen."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import print_error, printable
from holdfast.cli.output import duration, echo_json
from holdfast.cli.session import CommandSession
from holdfast.clock import sleep
from holdfast.model.errors import InvalidArgument, Throttled, Unavailable
from holdfast.model.events import Event, JournalEvent

if TYPE_CHECKING:
    import holdfast
    from holdfast.model.answers import JournalEvents

PAGE = 1_000
_POLL_S = 0.25
_RETRY_S = 1.0
# Larger than any position in a journal.
_MAX_POSITION = 1 << 60

_STYLES = {
    Event.ENQUEUED: "cyan",
    Event.CLAIMED: "blue",
    Event.SUCCEEDED: "green",
    Event.RETRIED: "yellow",
    Event.FAILED: "bold red",
    Event.EXPIRED: "magenta",
    Event.REDRIVEN: "cyan",
    Event.REMOVED: "red",
}


def tail(
    cli: CommandSession,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="Only events of this queue. Repeatable.")
    ] = None,
    event: Annotated[
        list[Event] | None, typer.Option("--event", "-e", help="Only events of this kind. Repeatable.")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with this many of the last events.")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the oldest event in the journal.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more events.")] = True,
) -> None:
    """Print the events of messages as they happen.

    With --tenant, only that tenant's events are printed. Without it, an operator sees all tenants.
    """
    tenant = None if cli.target.origin("tenant") == "default" else cli.target.tenant
    refs = {cli.ref(each) for each in queue or ()}
    kinds = set(event or ())

    def is_wanted(each: JournalEvent) -> bool:
        return (not refs or (each.tenant, each.queue) in refs) and (not kinds or each.event in kinds)

    for ref in sorted(refs):
        cli.warn_if_missing(ref, is_waiting=False)
    position = None if everything else start_of(cli.hf, last, tenant)
    for page in pages(cli.hf, position, tenant, follow=follow):
        show(cli, [each for each in page if is_wanted(each)])


def pages(
    hf: "holdfast.Holdfast", position: str | None, tenant: str | None, *, follow: bool
) -> Iterator[list[JournalEvent]]:
    """Yield the journal's pages after a position. With `follow`, wait for more, and retry if it is unavailable."""
    is_unavailable = False
    while True:
        try:
            page = hf.journal(position, PAGE, tenant=tenant)
        except (Unavailable, Throttled) as error:
            if not follow:
                raise
            if not is_unavailable:
                print_error(f"{error.message} Retrying every {_RETRY_S:g} s.")
            is_unavailable = True
            sleep(_RETRY_S)
            continue
        is_unavailable = False
        position = page.next or position
        if page:
            yield page
        elif follow:
            sleep(_POLL_S)
        else:
            return


def start_of(hf: "holdfast.Holdfast", last: int, tenant: str | None) -> str | None:
    """Return the position before the last `last` events, or None if that is the beginning of the journal."""
    position = hf.journal(None, 1, tenant=tenant).next
    # With several databases a position is not one number. In an object store it is, but not every number is a position.
    if position.isdigit():
        with suppress(InvalidArgument):
            return str(max(0, bisect_journal(hf, tenant, bool) - last))
    return _read_to_end(hf, last, tenant)


def bisect_journal(
    hf: "holdfast.Holdfast", tenant: str | None, is_before: Callable[["JournalEvents"], bool], low: int = 0
) -> int:
    """Find by bisection the first position from `low` for which `is_before`, given the event after it, is false.

    Positions increase with the events, so a few dozen requests are enough. Reading a week of events would take too
    long.
    """
    high = low * 2 or 1
    while high < _MAX_POSITION and is_before(hf.journal(str(high), 1, tenant=tenant)):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if is_before(hf.journal(str(middle), 1, tenant=tenant)):
            low = middle + 1
        else:
            high = middle
    return low


def _read_to_end(hf: "holdfast.Holdfast", last: int, tenant: str | None) -> str | None:
    # The start and the length of the latest pages: only as many pages as contain the last events.
    pages_read: deque[tuple[str | None, int]] = deque()
    length, position = 0, None
    while page := hf.journal(position, PAGE, tenant=tenant):
        pages_read.append((position, len(page)))
        length, position = length + len(page), page.next
        while pages_read and length - pages_read[0][1] >= last:
            length -= pages_read.popleft()[1]
    if not pages_read:
        return position
    start = pages_read[0][0]
    return hf.journal(start, length - last, tenant=tenant).next if length > last else start


def show(cli: CommandSession, events: Iterable[JournalEvent]) -> None:
    """Print events, one per line."""
    for each in events:
        if cli.output.is_json:
            echo_json(event_row(each))
        elif cli.output.is_quiet:
            typer.echo(each.id)
        elif cli.output.is_terminal:
            from rich.text import Text

            cli.output.console.print(Text(line_of(each), style=_STYLES.get(each.event, "")), soft_wrap=True)
        else:
            typer.echo(line_of(each))


def event_row(event: JournalEvent) -> dict[str, Any]:
    """Return an event as the row for `--json`."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in ("snowflake", "given_correlation_id"):
        fields.pop(name, None)
    return {**fields, "id": event.id, "correlation_id": event.correlation_id}


def line_of(event: JournalEvent) -> str:
    """Format an event as a line for people."""
    at = datetime.fromtimestamp(event.at / 1_000).astimezone().strftime("%H:%M:%S.%f")[:-3]
    queue = f"{event.tenant}/{event.queue}"
    text = f"{at}  {event.event:<9}  {queue:<24}  {event.id}  attempt {event.attempt}  {details_of(event)}"
    return printable(text).rstrip()


def details_of(event: JournalEvent) -> str:
    """Describe how long the message waited or was worked on, and the reason and error of the event."""
    details = []
    if event.event is Event.CLAIMED:
        details.append(f"waited {duration(max(0, event.at - event.enqueued_at))}")
    elif event.claimed_at is not None and event.event in (Event.SUCCEEDED, Event.RETRIED, Event.FAILED):
        details.append(f"took {duration(max(0, event.at - event.claimed_at))}")
    if event.reason:
        details.append(event.reason)
    if event.error:
        details.append(f"{event.error[:200]!r}")
    return ", ".join(details)
