"""The operators' verbs: `policy`, `pause`, `resume`, `purge`, `cancel`, `move`, `reprioritise`, `delete`."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.enqueue import pairs_of
from holdfast.cli.session import CommandSession, QueueName, Yes, duration
from holdfast.model.parsing.durations import parse_duration_ms
from holdfast.model.policy import QueuePolicy, Quotas, TenantConfig

if TYPE_CHECKING:
    from holdfast.model.answers import BulkResult
    from holdfast.model.names import QueueRef

FILTER = "Which messages"

Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="This message; several times for several.", rich_help_panel=FILTER),
]
ErrorContains = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Whose last error has this text in it.", rich_help_panel=FILTER)
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Enqueued longer ago than this.", rich_help_panel=FILTER)
]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="With it.", rich_help_panel=FILTER)
]
OfPriority = Annotated[int | None, typer.Option("--priority", "-p", help="Of it.", rich_help_panel=FILTER)]
InState = Annotated[str, typer.Option("--state", help="ready (delayed too) or failed.")]


def filter_of(
    ids: list[str] | None,
    error_contains: str | None,
    older_than: str | None,
    header: list[str] | None,
    priority: int | None,
    *,
    owner: str | None = None,
    held_for: str | None = None,
) -> dict[str, Any]:
    fields = {
        "ids": ids or None,
        "error_contains": error_contains,
        "older_than_ms": None if older_than is None else parse_duration_ms("--older-than", duration(older_than)),
        "headers": pairs_of("--header", header) or None,
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
        typer.Argument(metavar="[FIELD=VALUE]...", help="lease=30s, max_retries=5, ttl=none, …", show_default=False),
    ] = None,
) -> None:
    """How a queue treats its messages; with FIELD=VALUE, change it. A queue that is not there yet is made.

    ```console
    holdfast policy payments lease=30s max_retries=5 limits.write_ops_per_s=200
    ```
    """
    found = cli.queue(queue)
    result = found.set_policy(**changes_of(changes)) if changes else found.policy()
    cli.output.record({"tenant": found.ref.tenant, "queue": found.ref.queue, **msgspec.to_builtins(result)})


def changes_of(given: list[str] | None) -> dict[str, Any]:
    """`lease=30s limits.burst_s=2` as a document: durations may be written as such, `none` lifts a limit."""
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
                raise Usage(f"{each!r} and {parent!r} are both given: a field has one value")
        key, value = _change(name, text)
        target[key] = value
    return document


# By what they are called without their unit, which is how they are written with a value that has one.
_DURATIONS = frozenset(
    field.removesuffix("_ms")
    for document in (QueuePolicy, Quotas, TenantConfig)
    for field in document.__struct_fields__
    if field.endswith("_ms")
)


def _change(name: str, text: str) -> tuple[str, Any]:
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
    """Stop claims: they find nothing, and wait. Messages still come in; those in flight go on."""
    found = cli.queue(queue)
    found.pause()
    _tell(cli, found.ref, f"paused {found.ref}: holdfast resume {queue} lets it go on", is_paused=True)


def resume(cli: CommandSession, queue: QueueName) -> None:
    """Let a paused queue go on."""
    found = cli.queue(queue)
    found.resume()
    _tell(cli, found.ref, f"resumed {found.ref}", is_paused=False)


def _tell(cli: CommandSession, ref: "QueueRef", said: str, *, is_paused: bool) -> None:
    cli.output.done(said, {"tenant": ref.tenant, "queue": ref.queue, "paused": is_paused})


def purge(cli: CommandSession, queue: QueueName, state: InState = "ready", yes: Yes = False) -> None:
    """Remove everything that is ready, delayed too; or everything that failed. Never what is in flight."""
    found = cli.queue(queue)
    stats = found.stats()
    number = stats.failed if state == "failed" else stats.ready + stats.delayed
    cli.confirm(f"Remove {number:,} {state} messages from {found.ref}?", yes=yes)
    tell_changed(cli, found.ref, "removed", found.purge(state))


def cancel(
    cli: CommandSession,
    queue: QueueName,
    ids: Ids = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: OfPriority = None,
    yes: Yes = False,
) -> None:
    """Remove what is ready and matches; every condition given must hold."""
    which = filter_of(ids, None, older_than, header, priority)
    if not which:
        raise Usage("say which messages (--id, --older-than, --header, --priority); `holdfast purge` removes all")
    found = cli.queue(queue)
    cli.confirm(f"Remove every ready message of {found.ref} that matches?", yes=yes)
    tell_changed(cli, found.ref, "removed", found.cancel(which))


def move(
    cli: CommandSession,
    queue: QueueName,
    to: Annotated[str, typer.Argument(metavar="TO", help="Another queue, or TENANT/QUEUE.", show_default=False)],
    state: InState = "ready",
    ids: Ids = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: OfPriority = None,
) -> None:
    """Move what is ready, or failed, to another queue. Ids, counts and state documents go along."""
    found = cli.queue(queue)
    tenant, slash, name = to.rpartition("/")
    which = filter_of(ids, error_contains, older_than, header, priority)
    changed = found.move(name, tenant=tenant if slash else None, filter=which, state=state)
    tell_changed(cli, found.ref, "moved", changed)


def reprioritise(
    cli: CommandSession,
    queue: QueueName,
    to: Annotated[int, typer.Argument(metavar="PRIORITY", help="0-255, lower first.", show_default=False)],
    ids: Ids = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: OfPriority = None,
) -> None:
    """Give what is ready and matches another priority."""
    found = cli.queue(queue)
    which = filter_of(ids, None, older_than, header, priority)
    tell_changed(cli, found.ref, "changed", found.reprioritise(to, which))


def delete(
    cli: CommandSession,
    queue: QueueName,
    force_after: Annotated[
        str, typer.Option(metavar="DURATION", help="So long may what is in flight still be settled.")
    ] = "30s",
    yes: Yes = False,
) -> None:
    """Delete a queue with all its messages. It drains first: nothing comes in, nothing is claimed."""
    found = cli.queue(queue)
    stats = found.stats()
    number = stats.ready + stats.delayed + stats.in_flight + stats.failed
    cli.confirm(f"Delete {found.ref} with {number:,} messages?", yes=yes)
    found.delete(duration(force_after) or 0)
    cli.output.done(
        f"{found.ref} drains and is then deleted",
        {"tenant": found.ref.tenant, "queue": found.ref.queue, "draining": True},
    )


def tell_changed(cli: CommandSession, ref: "QueueRef", verb: str, changed: "BulkResult") -> None:
    more = "" if changed.matched == changed.changed else f" of {changed.matched:,} that match"
    cli.output.done(
        f"{verb} {changed.changed:,}{more} ({ref})",
        {"tenant": ref.tenant, "queue": ref.queue, "matched": changed.matched, "changed": changed.changed},
    )
