"""`holdfast inspect`: show one message in full."""

import base64
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import printable
from holdfast.cli.inspection.list import describe_lease, describe_state
from holdfast.cli.inspection.queues import Id, info_row, write_payload_of
from holdfast.cli.inspection.tail import details_of, event_row
from holdfast.cli.inspection.timeline import Timeline, timeline_of
from holdfast.cli.output import echo_json, instant, payload_fields, relative, size
from holdfast.cli.session import CommandSession
from holdfast.clock import SystemClock
from holdfast.model.errors import MessageNotFound, QueueNotFound
from holdfast.model.ids import EPOCH_MS, parse_id, to_uuid

if TYPE_CHECKING:
    import holdfast
    from holdfast.model.answers import Info
    from holdfast.model.names import QueueRef

PREVIEW_BYTES = 16 << 10
# `get` returns the whole payload or none of it. A larger payload is not fetched only to show its beginning.
_MAX_FETCHED_BYTES = 1 << 20
_MAX_QUEUES = 1_000
_INSTANTS = ("enqueued_at", "visible_at", "claimed_at", "lease_expires_at", "settled_at", "expires_at")


def inspect(
    cli: CommandSession,
    id: Id,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", metavar="QUEUE", help="Queue of the message. [default: search all queues of the tenant]"
        ),
    ] = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Write only the payload, whole and byte for byte.")
    ] = False,
    events: Annotated[
        int,
        typer.Option(
            "--events", min=0, help="Maximum number of journal events to search for the timeline; 0: no timeline."
        ),
    ] = 20_000,
) -> None:
    """Show one message in full: its state, lease, payload and timeline.

    The first 16 KiB of the payload are shown. The timeline is read from the journal, as far back as it is kept. Exits
    with 3 if there is no such message.

    ```console
    holdfast inspect 0192f0c1-9a2b-7000-8000-000000000000
    ```
    """
    snowflake = parse_id(id)
    if queue is not None:
        found = cli.queue(queue)
        info = found.get(id)
    else:
        found, info = _find(cli, snowflake, events)
    if payload and not cli.output.is_json:
        write_payload_of(found.get(id, payload=True))
        return
    if cli.output.is_quiet and not cli.output.is_json:
        typer.echo(info.id)
        return
    whole = found.get(id, payload=True) if payload or info.bytes <= _MAX_FETCHED_BYTES else None
    info = whole or info
    timeline = timeline_of(cli.hf, found.ref.tenant, snowflake, info.enqueued_at, events) if events else None
    row = {"tenant": found.ref.tenant, "queue": found.ref.queue, **info_row(info)}
    if cli.output.is_json:
        row |= _payload_fields(whole, is_cut=not payload) | _timeline_fields(timeline)
        echo_json(row)
        return
    cli.output.record(_for_people(row, info, SystemClock().now_ms()))
    _show_payload(info, whole)
    _show_timeline(timeline, found.ref)


def _find(cli: CommandSession, snowflake: int, events: int) -> "tuple[holdfast.Queue, Info]":
    tenant = cli.target.tenant
    names = [each.queue for each in cli.hf.queues(tenant=tenant)]
    for name in names[:_MAX_QUEUES]:
        queue = cli.hf.queue(name, tenant=tenant)
        with suppress(MessageNotFound, QueueNotFound):
            return queue, queue.get(snowflake)
    if len(names) > _MAX_QUEUES:
        raise MessageNotFound(
            f"message {to_uuid(snowflake)} is not in the first {_MAX_QUEUES:,} of {len(names):,} queues of tenant "
            f"{tenant}: give its queue with --queue"
        )
    raise MessageNotFound(
        f"no queue of tenant {tenant} has message {to_uuid(snowflake)}{_last_seen(cli, snowflake, events)}"
    )


def _last_seen(cli: CommandSession, snowflake: int, events: int) -> str:
    """Describe the last event of a removed message, if the journal has it. The id contains the time of the enqueue."""
    enqueued_at = (snowflake >> 22) + EPOCH_MS
    seen = timeline_of(cli.hf, cli.target.tenant, snowflake, enqueued_at, events).events if events else []
    if not seen:
        return ""
    last = seen[-1]
    return f"; its last event is {last.event} at {instant(last.at)}, in {last.tenant}/{last.queue}"


# --- For people ----------------------------------------------------------------------------------------------------


def _for_people(row: dict[str, Any], info: "Info", now_ms: int) -> dict[str, Any]:
    shown = {**row, "state": describe_state(info, now_ms)}
    for key in _INSTANTS:
        if row[key] is not None:
            shown[key] = f"{instant(row[key])} ({relative(row[key], now_ms)})"
    if info.lease_expires_at is not None:
        shown["lease_expires_at"] = f"{instant(info.lease_expires_at)} ({describe_lease(info, now_ms)})"
    return shown


def _show_payload(info: "Info", whole: "Info | None") -> None:
    if whole is None or whole.payload is None:
        typer.echo(f"\npayload: {size(info.bytes)}, not shown; write it with --payload")
        return
    text = _text_of(whole.payload)
    if text is None:
        typer.echo(f"\npayload: {len(whole.payload):,} bytes that are not text; write them with --payload")
        return
    cut = len(whole.payload) - PREVIEW_BYTES
    typer.echo(f"\npayload{f' (the first {size(PREVIEW_BYTES)}; write all of it with --payload)' if cut > 0 else ''}:")
    for line in text.splitlines() or [""]:
        typer.echo(f"  {printable(line)}")


def _show_timeline(timeline: Timeline | None, ref: "QueueRef") -> None:
    if timeline is None:
        return
    typer.echo("\ntimeline:")
    for event in timeline.events:
        where = "" if (event.tenant, event.queue) == ref else f"in {event.tenant}/{event.queue}  "
        line = f"{instant(event.at)}  {event.event:<9}  {where}attempt {event.attempt}  {details_of(event)}"
        typer.echo(f"  {printable(line).rstrip()}")
    if timeline.gap is not None:
        typer.echo(f"  {printable(timeline.gap)}")
    elif not timeline.events:
        typer.echo("  the journal has no events of this message")


# --- For programs --------------------------------------------------------------------------------------------------


def _payload_fields(whole: "Info | None", *, is_cut: bool) -> dict[str, Any]:
    """Return the payload's field as in the HTTP API if it is not cut or at most 16 KiB, otherwise a preview field."""
    if whole is None or whole.payload is None:
        return {}
    if not is_cut or len(whole.payload) <= PREVIEW_BYTES:
        return payload_fields(whole.payload, is_json=whole.is_json)
    if (text := _text_of(whole.payload)) is not None:
        return {"payload_preview": text}
    return {"payload_preview_base64": base64.b64encode(whole.payload[:PREVIEW_BYTES]).decode()}


def _timeline_fields(timeline: Timeline | None) -> dict[str, Any]:
    if timeline is None:
        return {}
    return {"timeline": [event_row(each) for each in timeline.events], "timeline_gap": timeline.gap}


def _text_of(payload: bytes) -> str | None:
    """Return the beginning of a text, or None for other bytes. A character that is cut at the end is left out."""
    head = payload[:PREVIEW_BYTES]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        is_cut_character = len(payload) > PREVIEW_BYTES and error.start >= len(head) - 3
        return head[: error.start].decode() if is_cut_character else None
