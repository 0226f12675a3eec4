"""`holdfast list`: a queue's messages, found by state and filter."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.inspection.queues import info_row, pages
from holdfast.cli.operator.queues import FILTER, ErrorContains, Headers, Ids, OfPriority, OlderThan, filter_of
from holdfast.cli.output import relative
from holdfast.cli.session import CommandSession, QueueName
from holdfast.clock import SystemClock
from holdfast.model.message import State

if TYPE_CHECKING:
    from holdfast.model.answers import Info


class Listed(StrEnum):
    READY = "ready"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


def list_(
    cli: CommandSession,
    queue: QueueName,
    state: Annotated[
        Listed | None,
        typer.Option(help="ready includes delayed messages. Default: all states.", show_default=False),
    ] = None,
    ids: Ids = None,
    owner: Annotated[str | None, typer.Option(help="In flight with this owner.", rich_help_panel=FILTER)] = None,
    held_for: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="In flight for at least this long.", rich_help_panel=FILTER),
    ] = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: OfPriority = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="No maximum; printed page by page.")] = False,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after an earlier listing, which named it.")
    ] = None,
) -> None:
    """List a queue's messages by id, the oldest first. Nothing is leased, and no payload is shown.

    To find a stuck message, list those that somebody has held for long. Extending a lease does not reset that time.

    ```console
    holdfast list payments --state in_flight --held-for 10m
    holdfast list payments --state failed --error-contains timeout --json
    ```
    """
    found = cli.queue(queue)
    which = filter_of(ids, error_contains, older_than, header, priority, owner=owner, held_for=held_for)
    now_ms = SystemClock().now_ms()
    more: str | None = None
    is_first = True
    for page in pages(found, state, which, None if everything else limit, cursor):
        if page or is_first:
            rows = (info_row(each) if cli.output.is_json else _row(each, state, now_ms) for each in page)
            cli.output.rows(rows, empty=f"{found.ref} has no such message")
        is_first = False
        more = page.cursor
    if more is not None:
        cli.output.note(f"there may be more: --cursor {more} continues, --all lists everything")


def _row(info: "Info", state: Listed | None, now_ms: int) -> dict[str, Any]:
    """Return the columns for people. They depend on the state that was asked for, not on the messages found."""
    row: dict[str, Any] = {
        "id": info.id,
        "state": shown_state(info, now_ms),
        "priority": info.priority,
        "attempt": info.attempt,
        "age_ms": max(0, now_ms - info.enqueued_at),
    }
    if state in (None, Listed.IN_FLIGHT):
        row["owner"] = info.owner
        row["held_ms"] = None if info.claimed_at is None else max(0, now_ms - info.claimed_at)
        row["lease"] = lease_text(info, now_ms)
    if state in (None, Listed.READY, Listed.DELAYED):
        is_delayed = info.state is State.READY and info.visible_at > now_ms
        row["due"] = relative(info.visible_at, now_ms) if is_delayed else None
    row["error"] = info.last_error
    return row


def shown_state(info: "Info", now_ms: int) -> str:
    return Listed.DELAYED if info.state is State.READY and info.visible_at > now_ms else info.state


def lease_text(info: "Info", now_ms: int) -> str | None:
    """Say when a lease ends. One that has ended is shown until a claim or a sweep returns its message."""
    if info.lease_expires_at is None:
        return None
    verb = "expires" if info.lease_expires_at > now_ms else "expired"
    return f"{verb} {relative(info.lease_expires_at, now_ms)}"
