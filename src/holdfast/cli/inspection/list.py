"""`holdfast list`: list a queue's messages by state and filter."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.inspection.queues import info_row, pages
from holdfast.cli.operator.queues import FILTER, ErrorContains, Headers, Ids, OlderThan, PriorityFilter, make_filter
from holdfast.cli.output import relative
from holdfast.cli.session import CommandSession, QueueName
from holdfast.clock import SystemClock
from holdfast.model.message import State

if TYPE_CHECKING:
    from holdfast.model.answers import Info


class Listed(StrEnum):
    """The states that `list` shows: those of a message, and `delayed` for a ready one that is not due."""

    READY = "ready"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


def list_(
    cli: CommandSession,
    queue: QueueName,
    state: Annotated[
        Listed | None, typer.Option(help="State of the messages; ready includes delayed. [default: all states]")
    ] = None,
    ids: Ids = None,
    owner: Annotated[str | None, typer.Option(help="Owner of a message in flight.", rich_help_panel=FILTER)] = None,
    held_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Minimum time that the message has been in flight.", rich_help_panel=FILTER
        ),
    ] = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="List all messages, page by page.")] = False,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after an earlier list, which printed the cursor.")
    ] = None,
) -> None:
    """List a queue's messages, oldest first, without claiming them.

    To find a stuck message, list those that have been held for a long time. Extending a lease does not reset that time.

    ```console
    holdfast list payments --state in_flight --held-for 10m
    holdfast list payments --state failed --error-contains timeout --json
    ```
    """
    found = cli.queue(queue)
    filter = make_filter(ids, error_contains, older_than, header, priority, owner=owner, held_for=held_for)
    now_ms = SystemClock().now_ms()
    more: str | None = None
    is_first = True
    for page in pages(found, state, filter, None if everything else limit, cursor):
        if page or is_first:
            rows = (info_row(each) if cli.output.is_json else _row(each, state, now_ms) for each in page)
            cli.output.rows(rows, empty=f"{found.ref} has no matching messages")
        is_first = False
        more = page.cursor
    if more is not None:
        cli.output.note(f"there may be more: list everything with --all, or continue with --cursor {more}")


def _row(info: "Info", state: Listed | None, now_ms: int) -> dict[str, Any]:
    """Return the columns of the table. They depend on the requested state, and not on the messages found."""
    row: dict[str, Any] = {
        "id": info.id,
        "state": describe_state(info, now_ms),
        "priority": info.priority,
        "attempt": info.attempt,
        "age_ms": max(0, now_ms - info.enqueued_at),
    }
    if state in (None, Listed.IN_FLIGHT):
        row["owner"] = info.owner
        row["held_ms"] = None if info.claimed_at is None else max(0, now_ms - info.claimed_at)
        row["lease"] = describe_lease(info, now_ms)
    if state in (None, Listed.READY, Listed.DELAYED):
        is_delayed = info.state is State.READY and info.visible_at > now_ms
        row["due"] = relative(info.visible_at, now_ms) if is_delayed else None
    row["error"] = info.last_error
    return row


def describe_state(info: "Info", now_ms: int) -> str:
    """Return the state as `list` shows it."""
    return Listed.DELAYED if info.state is State.READY and info.visible_at > now_ms else info.state


def describe_lease(info: "Info", now_ms: int) -> str | None:
    """Describe when the lease expires. An expired lease is shown until a claim or a sweep returns its message."""
    if info.lease_expires_at is None:
        return None
    verb = "expires" if info.lease_expires_at > now_ms else "expired"
    return f"{verb} {relative(info.lease_expires_at, now_ms)}"
