"""`holdfast inspect`: everything about one message."""

import base64
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import printable
from holdfast.cli.inspection.list import lease_text, shown_state
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
# A look-up has the whole payload or none of it: a larger one is not fetched to show its beginning.
_MOST_FETCHED_BYTES = 1 << 20
_MOST_QUEUES = 1_000
_INSTANTS = ("enqueued_at", "visible_at", "claimed_at", "lease_expires_at", "settled_at", "expires_at")


def inspect(
    cli: CommandSession,
    id: Id,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Default: look through the tenant's queues.")
    ] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Write the whole payload alone, byte for byte.")] = False,
    events: Annotated[
        int, typer.Option("--events", min=0, help="Maximum number of journal events to look through; 0: none.")
    ] = 20_000,
) -> None:
    """Show everything about one message: its state, who holds it and until when, its payload, and what happened to it.

    The payload is shown up to 16 KiB. The timeline comes from the journal, as far back as that is kept. Exit code 3:
    there is no such message.

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
    whole = found.get(id, payload=True) if payload or info.bytes <= _MOST_FETCHED_BYTES else None
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
    tenant = cli.place.tenant
    names = [each.queue for each in cli.hf.queues(tenant=tenant)]
    for name in names[:_MOST_QUEUES]:
        queue = cli.hf.queue(name, tenant=tenant)
        with suppress(MessageNotFound, QueueNotFound):
            return queue, queue.get(snowflake)
    if len(names) > _MOST_QUEUES:
        raise MessageNotFound(
            f"message {to_uuid(snowflake)} is not in the first {_MOST_QUEUES:,} of {len(names):,} queues of tenant "
            f"{tenant}: name its queue with --queue"
        )
    raise MessageNotFound(
        f"no queue of tenant {tenant} has message {to_uuid(snowflake)}{_last_seen(cli, snowflake, events)}"
    )


def _last_seen(cli: CommandSession, snowflake: int, events: int) -> str:
    """Say how a message ended that is no longer stored, if the journal still has it. Its id tells its time."""
    enqueued_at = (snowflake >> 22) + EPOCH_MS
    seen = timeline_of(cli.hf, cli.place.tenant, snowflake, enqueued_at, events).events if events else []
    if not seen:
        return ""
    last = seen[-1]
    return f"; its last event is {last.event} at {instant(last.at)}, in {last.tenant}/{last.queue}"


# --- For people ----------------------------------------------------------------------------------------------------


def _for_people(row: dict[str, Any], info: "Info", now_ms: int) -> dict[str, Any]:
    shown = {**row, "state": shown_state(info, now_ms)}
    for key in _INSTANTS:
        if row[key] is not None:
            shown[key] = f"{instant(row[key])} ({relative(row[key], now_ms)})"
    if info.lease_expires_at is not None:
        shown["lease_expires_at"] = f"{instant(info.lease_expires_at)} ({lease_text(info, now_ms)})"
    return shown


def _show_payload(info: "Info", whole: "Info | None") -> None:
    if whole is None or whole.payload is None:
        typer.echo(f"\npayload: {size(info.bytes)}, not shown; --payload writes it")
        return
    text = _text_of(whole.payload)
    if text is None:
        typer.echo(f"\npayload: {len(whole.payload):,} bytes that are not text; --payload writes them")
        return
    cut = len(whole.payload) - PREVIEW_BYTES
    typer.echo(f"\npayload{f' (the first {size(PREVIEW_BYTES)}; --payload writes all)' if cut > 0 else ''}:")
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
        typer.echo("  the journal keeps no events of this message")


# --- For programs --------------------------------------------------------------------------------------------------


def _payload_fields(whole: "Info | None", *, is_cut: bool) -> dict[str, Any]:
    """Return the payload as on the wire if it is at most 16 KiB, or with `--payload`; otherwise a preview field."""
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
    """Return the beginning of a text, None if it is not one. A character cut in two at the end is left out."""
    head = payload[:PREVIEW_BYTES]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        is_cut_character = len(payload) > PREVIEW_BYTES and error.start >= len(head) - 3
        return head[: error.start].decode() if is_cut_character else None
