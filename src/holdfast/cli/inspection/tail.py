"""`holdfast tail`: the journal as it grows, one line an event."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import complain, printable
from holdfast.cli.output import duration, echo_json
from holdfast.cli.session import CommandSession
from holdfast.model.errors import InvalidArgument, Throttled, Unavailable
from holdfast.model.events import Event, JournalEvent

if TYPE_CHECKING:
    import holdfast
    from holdfast.model.answers import JournalEvents

PAGE = 1_000
_POLL_S = 0.25
_AWAY_S = 1.0
# Beyond any journal's end.
_FAR = 1 << 60

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
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="Of it alone; several times for several.")
    ] = None,
    event: Annotated[
        list[Event] | None, typer.Option("--event", "-e", help="Of this kind; several times for several.")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many of the last events.")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the oldest event that is kept.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more.")] = True,
) -> None:
    """Follow what happens to messages, event by event.

    With --tenant, of that tenant alone; an operator without it sees all tenants.
    """
    tenant = None if cli.place.origin("tenant") == "default" else cli.place.tenant
    refs = {cli.ref(each) for each in queue or ()}
    kinds = set(event or ())

    def is_wanted(each: JournalEvent) -> bool:
        return (not refs or (each.tenant, each.queue) in refs) and (not kinds or each.event in kinds)

    for ref in sorted(refs):
        cli.tell_if_missing(ref, is_waiting=False)
    position = None if everything else start_of(cli.hf, last, tenant)
    for page in pages(cli.hf, position, tenant, follow=follow):
        show(cli, [each for each in page if is_wanted(each)])


def pages(
    hf: "holdfast.Holdfast", position: str | None, tenant: str | None, *, follow: bool
) -> Iterator[list[JournalEvent]]:
    pause = threading.Event()
    is_away = False
    while True:
        try:
            page = hf.journal(position, PAGE, tenant=tenant)
        except (Unavailable, Throttled) as error:
            if not follow:
                raise
            if not is_away:
                complain(f"{error.message} It is asked again until it answers.")
            is_away = True
            pause.wait(_AWAY_S)
            continue
        is_away = False
        position = page.next or position
        if page:
            yield page
        elif follow:
            pause.wait(_POLL_S)
        else:
            return


def start_of(hf: "holdfast.Holdfast", last: int, tenant: str | None) -> str | None:
    """The position before the last so many events."""
    position = hf.journal(None, 1, tenant=tenant).next
    # Of several databases it is not one number; of an object store it is, with gaps, and none that is small.
    if position.isdigit():
        with suppress(InvalidArgument):
            return str(max(0, halve(hf, tenant, bool) - last))
    return _walk(hf, last, tenant)


def halve(
    hf: "holdfast.Holdfast", tenant: str | None, is_before: Callable[["JournalEvents"], bool], low: int = 0
) -> int:
    """Return the first position from `low` on for which `is_before`, given the next event behind it, is false.

    Positions rise with the events, so a few dozen looks are enough. Reading a week of events would take too long.
    """
    high = low * 2 or 1
    while high < _FAR and is_before(hf.journal(str(high), 1, tenant=tenant)):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if is_before(hf.journal(str(middle), 1, tenant=tenant)):
            low = middle + 1
        else:
            high = middle
    return low


def _walk(hf: "holdfast.Holdfast", last: int, tenant: str | None) -> str | None:
    # Where each of the latest pages begins, and how many events are on it: as few as hold the last so many.
    begun: deque[tuple[str | None, int]] = deque()
    held, position = 0, None
    while page := hf.journal(position, PAGE, tenant=tenant):
        begun.append((position, len(page)))
        held, position = held + len(page), page.next
        while begun and held - begun[0][1] >= last:
            held -= begun.popleft()[1]
    if not begun:
        return position
    start = begun[0][0]
    return hf.journal(start, held - last, tenant=tenant).next if held > last else start


def show(cli: CommandSession, events: Iterable[JournalEvent]) -> None:
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
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in ("snowflake", "given_correlation_id"):
        fields.pop(name, None)
    return {**fields, "id": event.id, "correlation_id": event.correlation_id}


def line_of(event: JournalEvent) -> str:
    at = datetime.fromtimestamp(event.at / 1_000).astimezone().strftime("%H:%M:%S.%f")[:-3]
    place = f"{event.tenant}/{event.queue}"
    text = f"{at}  {event.event:<9}  {place:<24}  {event.id}  attempt {event.attempt}  {details_of(event)}"
    return printable(text).rstrip()


def details_of(event: JournalEvent) -> str:
    """Return how long it took, and why it happened, where the event says so."""
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
