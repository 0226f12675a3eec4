"""`stats`, `queues`, `tenants`, `peek` and `get`; and the rows in which other commands show messages."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.output import payload_fields, preview
from holdfast.cli.session import CommandSession, QueueName

if TYPE_CHECKING:
    from holdfast.model.answers import Info, Page

# Messages per request.
PAGE = 1_000

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the message: UUID or snowflake.")]
OptionalQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUEUE]",
        help="Name of the queue, or TENANT/QUEUE. Without it, the counts of the whole tenant are shown.",
    ),
]


def stats(cli: CommandSession, queue: OptionalQueue = None) -> None:
    """Show the exact message counts of a queue, or of a tenant."""
    if queue is None:
        tenant = cli.hf.tenant(cli.target.tenant)
        cli.output.record({"tenant": tenant.name, **msgspec.to_builtins(tenant.stats())})
        return
    found = cli.queue(queue)
    cli.output.record({"tenant": found.ref.tenant, "queue": found.ref.queue, **msgspec.to_builtins(found.stats())})


def queues(cli: CommandSession) -> None:
    """List the tenant's queues with their message counts."""
    rows = [queue_row(each) for each in cli.hf.queues(tenant=cli.target.tenant)]
    if any("legacy_left" in row for row in rows):
        rows = [{**row, "legacy_left": row.get("legacy_left", 0)} for row in rows]
    cli.output.rows(rows, empty=f"tenant {cli.target.tenant} has no queues")


def queue_row(summary: Any) -> dict[str, Any]:
    """Return a queue's counts as a row that begins with its name."""
    fields = msgspec.to_builtins(summary)
    return {"queue": fields.pop("queue"), **fields}


def tenants(
    cli: CommandSession,
    name: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Name of a tenant. Without it, all tenants are listed.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...", help="Fields to change, such as weight=2 or quotas.max_messages=100000."
        ),
    ] = None,
) -> None:
    """List tenants; show or change one tenant's limits and quotas.

    ```console
    holdfast tenants acme quotas.max_messages=100000 limits.write_ops_per_s=500
    ```
    """
    if name is None:
        cli.output.rows(map(_tenant_row, cli.hf.tenants()), empty="no tenants")
        return
    from holdfast.cli.operator.queues import parse_changes

    found = cli.hf.tenant(name)
    config = found.set(**parse_changes(changes)) if changes else found.get()
    cli.output.record(
        {"tenant": found.name, **msgspec.to_builtins(config), "stats": msgspec.to_builtins(found.stats())}
    )


def _tenant_row(summary: Any) -> dict[str, Any]:
    fields = msgspec.to_builtins(summary)
    return {"tenant": fields.pop("tenant"), **fields}


def peek(
    cli: CommandSession,
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 5,
) -> None:
    """Show the next messages of a queue with their payloads, without claiming them."""
    cli.output.rows((_peek_row(cli, each) for each in cli.queue(queue).peek(limit)), empty="nothing is ready")


def _peek_row(cli: CommandSession, info: "Info") -> dict[str, Any]:
    row = {
        "id": info.id,
        "priority": info.priority,
        "attempt": info.attempt,
        "enqueued_at": info.enqueued_at,
        "group": info.group,
        "headers": info.headers,
        "correlation_id": info.correlation_id,
        "content_type": info.content_type,
        "bytes": info.bytes,
    }
    return with_payload(cli, row, info)


def with_payload(cli: CommandSession, row: dict[str, Any], info: "Info") -> dict[str, Any]:
    """Add the payload to a row: whole in JSON, otherwise its beginning."""
    if cli.output.is_json:
        return {**row, **payload_fields(info.payload, is_json=info.is_json)}
    return {**row, "payload": preview(info.payload)}


def get(
    cli: CommandSession,
    queue: QueueName,
    id: Id,
    payload: Annotated[bool, typer.Option("--payload", help="Write only the payload, byte for byte.")] = False,
) -> None:
    """Show one message of a queue, whatever its state.

    Exits with 3 if there is no such message.
    """
    info = cli.queue(queue).get(id, payload=True)
    if payload and not cli.output.is_json:
        write_payload_of(info)
        return
    cli.output.record(with_payload(cli, info_row(info), info))


def write_payload_of(info: "Info") -> None:
    """Write a message's payload to stdout, byte for byte."""
    sys.stdout.buffer.write(info.payload or b"")
    sys.stdout.buffer.flush()


def info_row(info: "Info") -> dict[str, Any]:
    """Return all fields of a message except its payload."""
    fields: dict[str, Any] = msgspec.to_builtins(info, builtin_types=(bytes,))
    for name in ("payload", "is_json"):
        fields.pop(name)
    return {**fields, "snowflake": str(info.snowflake)}


def listed(queue: Any, state: str, filter: Any, limit: int) -> Iterator["Info"]:
    """Yield up to `limit` messages, read page by page."""
    for page in pages(queue, state, filter, limit):
        yield from page


def pages(
    queue: Any, state: str | None, filter: Any, limit: int | None, cursor: str | None = None
) -> Iterator["Page[Info]"]:
    """Yield pages with up to `limit` messages in all (None: every message), continuing after `cursor`."""
    while limit is None or limit > 0:
        page = queue.list(state=state, limit=min(limit or PAGE, PAGE), cursor=cursor, filter=filter)
        yield page
        limit = None if limit is None else limit - len(page)
        cursor = page.cursor
        if cursor is None:
            return
