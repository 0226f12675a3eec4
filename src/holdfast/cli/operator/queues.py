"""Commands for operators: `policy`, `pause`, `resume`, `purge`, `cancel`, `move`, `reprioritise`, `delete`."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.enqueue import parse_pairs
from holdfast.cli.session import CommandSession, QueueName, Yes, duration
from holdfast.model.parsing.durations import parse_duration_ms
from holdfast.model.policy import QueuePolicy, Quotas, TenantConfig

if TYPE_CHECKING:
    from holdfast.model.answers import BulkResult
    from holdfast.model.names import QueueRef

FILTER = "Filter"

Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Id of a message. Repeatable.", rich_help_panel=FILTER)
]
ErrorContains = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text that the last error contains.", rich_help_panel=FILTER)
]
OlderThan = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Minimum time since the message was enqueued.", rich_help_panel=FILTER),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Header of the message. Repeatable.", rich_help_panel=FILTER
    ),
]
PriorityFilter = Annotated[
    int | None, typer.Option("--priority", "-p", help="Priority of the message.", rich_help_panel=FILTER)
]
InState = Annotated[str, typer.Option("--state", help="State of the messages: ready (includes delayed) or failed.")]


def make_filter(
    ids: list[str] | None,
    error_contains: str | None,
    older_than: str | None,
    header: list[str] | None,
    priority: int | None,
    *,
    owner: str | None = None,
    held_for: str | None = None,
) -> dict[str, Any]:
    """Return the filter for a bulk operation or a list. A message must match every condition that was given."""
    fields = {
        "ids": ids or None,
        "error_contains": error_contains,
        "older_than_ms": None if older_than is None else parse_duration_ms("--older-than", duration(older_than)),
        "headers": parse_pairs("--header", header) or None,
        "priority": priority,
        "owner": owner,
        "held_for_ms": None if held_for is None else parse_duration_ms("--held-for", duration(held_for)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def policy(
    cli: CommandSession,
    queue: QueueName,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...", help="Fields to change, such as lease=30s, max_retries=5 or ttl=none."
        ),
    ] = None,
) -> None:
    """Show or change a queue's policy. A missing queue is created.

    ```console
    holdfast policy payments lease=30s max_retries=5 limits.write_ops_per_s=200
    ```
    """
    found = cli.queue(queue)
    result = found.set_policy(**parse_changes(changes)) if changes else found.policy()
    cli.output.record({"tenant": found.ref.tenant, "queue": found.ref.queue, **msgspec.to_builtins(result)})


def parse_changes(given: list[str] | None) -> dict[str, Any]:
    """Parse FIELD=VALUE arguments, such as `lease=30s limits.burst_s=2`, into a document.

    Durations may have a unit. The value `none` removes a limit.
    """
    document: dict[str, Any] = {}
    for each in given or ():
        path, equals, text = each.partition("=")
        if not (path and equals and text):
            raise Usage(f"{each!r} is not FIELD=VALUE")
        *parents, name = path.split(".")
        target = document
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise Usage(f"{each!r} and {parent!r} exclude each other: a field has one value")
        key, value = _parse_change(name, text)
        target[key] = value
    return document


# The names of duration fields without `_ms`: as arguments, they have values with a unit.
_DURATIONS = frozenset(
    field.removesuffix("_ms")
    for document in (QueuePolicy, Quotas, TenantConfig)
    for field in document.__struct_fields__
    if field.endswith("_ms")
)


def _parse_change(name: str, text: str) -> tuple[str, Any]:
    if text.lower() in ("none", "null"):
        return (f"{name}_ms" if name in _DURATIONS else name), None
    if name in _DURATIONS:
        return f"{name}_ms", parse_duration_ms(name, duration(text))
    if name.endswith("_ms") and not text.isdigit():
        return name, parse_duration_ms(name, text)
    try:
        value: Any = msgspec.json.decode(text.encode())
    except ValueError:
        value = text
    return name, value


def pause(cli: CommandSession, queue: QueueName) -> None:
    """Pause a queue: claims return nothing until it is resumed.

    Messages can still be enqueued, and messages in flight can still be settled.
    """
    found = cli.queue(queue)
    found.pause()
    _report(cli, found.ref, f"paused {found.ref}; resume it with: holdfast resume {queue}", is_paused=True)


def resume(cli: CommandSession, queue: QueueName) -> None:
    """Resume a paused queue."""
    found = cli.queue(queue)
    found.resume()
    _report(cli, found.ref, f"resumed {found.ref}", is_paused=False)


def _report(cli: CommandSession, ref: "QueueRef", text: str, *, is_paused: bool) -> None:
    cli.output.done(text, {"tenant": ref.tenant, "queue": ref.queue, "paused": is_paused})


def purge(cli: CommandSession, queue: QueueName, state: InState = "ready", yes: Yes = False) -> None:
    """Remove all ready and delayed messages of a queue, or all failed ones.

    Messages in flight are not removed.
    """
    found = cli.queue(queue)
    stats = found.stats()
    number = stats.failed if state == "failed" else stats.ready + stats.delayed
    cli.confirm(f"Remove {number:,} {state} messages from {found.ref}?", yes=yes)
    report_changed(cli, found.ref, "removed", found.purge(state))


def cancel(
    cli: CommandSession,
    queue: QueueName,
    ids: Ids = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
    yes: Yes = False,
) -> None:
    """Remove the ready and delayed messages that match a filter.

    A message must match every condition.
    """
    filter = make_filter(ids, None, older_than, header, priority)
    if not filter:
        raise Usage(
            "give a filter (--id, --older-than, --header, --priority), or remove all messages with `holdfast purge`"
        )
    found = cli.queue(queue)
    cli.confirm(f"Remove every ready message of {found.ref} that matches?", yes=yes)
    report_changed(cli, found.ref, "removed", found.cancel(filter))


def move(
    cli: CommandSession,
    queue: QueueName,
    to: Annotated[str, typer.Argument(metavar="TO", help="Name of the other queue, or TENANT/QUEUE.")],
    state: InState = "ready",
    ids: Ids = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
) -> None:
    """Move ready or failed messages to another queue.

    Messages keep their ids, counts and state documents.
    """
    found = cli.queue(queue)
    tenant, slash, name = to.rpartition("/")
    filter = make_filter(ids, error_contains, older_than, header, priority)
    changed = found.move(name, tenant=tenant if slash else None, filter=filter, state=state)
    report_changed(cli, found.ref, "moved", changed)


def reprioritise(
    cli: CommandSession,
    queue: QueueName,
    to: Annotated[int, typer.Argument(metavar="PRIORITY", help="The new priority: 0-255, lower first.")],
    ids: Ids = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
) -> None:
    """Change the priority of ready and delayed messages."""
    found = cli.queue(queue)
    filter = make_filter(ids, None, older_than, header, priority)
    report_changed(cli, found.ref, "changed", found.reprioritise(to, filter))


def delete(
    cli: CommandSession,
    queue: QueueName,
    force_after: Annotated[
        str, typer.Option(metavar="DURATION", help="How long messages in flight may still be settled.")
    ] = "30s",
    yes: Yes = False,
) -> None:
    """Delete a queue with all its messages, after messages in flight have been settled.

    Until then the queue drains: nothing can be enqueued or claimed.
    """
    found = cli.queue(queue)
    stats = found.stats()
    number = stats.ready + stats.delayed + stats.in_flight + stats.failed
    cli.confirm(f"Delete {found.ref} with {number:,} messages?", yes=yes)
    found.delete(duration(force_after) or 0)
    cli.output.done(
        f"{found.ref} is draining, and is deleted afterwards",
        {"tenant": found.ref.tenant, "queue": found.ref.queue, "draining": True},
    )


def report_changed(cli: CommandSession, ref: "QueueRef", verb: str, changed: "BulkResult") -> None:
    """Print how many messages a bulk operation changed, and how many matched its filter if that differs."""
    more = "" if changed.matched == changed.changed else f" of {changed.matched:,} that match"
    cli.output.done(
        f"{verb} {changed.changed:,}{more} ({ref})",
        {"tenant": ref.tenant, "queue": ref.queue, "matched": changed.matched, "changed": changed.changed},
    )
