"""`holdfast schedule`: messages by the clock."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.enqueue import Header, pairs_of
from holdfast.cli.payload import AsText, read_payload, typed
from holdfast.cli.session import CommandSession, QueueName, Yes, duration
from holdfast.model.errors import MessageNotFound

if TYPE_CHECKING:
    from holdfast.model.schedules import ScheduleInfo


def schedule(
    cli: CommandSession,
    queue: QueueName,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of one schedule. Left out: list all.", show_default=False)
    ] = None,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAYLOAD|-|@FILE]",
            help="What each tick enqueues; - reads stdin, @FILE a file.",
            show_default=False,
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="LINE", help='When, as a cron line: "0 3 * * *".')
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="When, as an interval: 15m.")] = None,
    timezone: Annotated[str | None, typer.Option(metavar="ZONE", help="Of the cron line. Default: UTC")] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Let its ticks pass.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let a paused one go on.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Forget it. Messages that it made stay.")] = False,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="Of its messages.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="Of its messages.")] = None,
    group: Annotated[str | None, typer.Option(help="FIFO group of its messages.")] = None,
    header: Header = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Of its messages.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Of its messages.")] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="Of its messages.")] = None,
    text: AsText = False,
    yes: Yes = False,
) -> None:
    """A queue's schedules: list them, or make, change, pause or remove one. A tick enqueues once, however many servers.

    ```console
    holdfast schedule reports nightly --cron "0 3 * * *" --timezone Europe/Berlin '{"kind": "daily"}'
    holdfast schedule reports nightly --pause
    holdfast schedule reports
    ```
    """
    found = cli.queue(queue)
    if name is None:
        cli.output.rows(map(schedule_row, found.schedules()), empty=f"{found.ref} has no schedules")
        return
    if sum((pause, resume, remove)) > 1:
        raise Usage("--pause, --resume and --remove exclude each other")
    if remove:
        cli.confirm(f"Remove the schedule {name} of {found.ref}?", yes=yes)
        found.unschedule(name)
        cli.output.done(f"removed {name} of {found.ref}", {"name": name, "removed": True})
        return
    options: dict[str, Any] = {
        "priority": priority,
        "ttl": duration(ttl),
        "group": group,
        "headers": pairs_of("--header", header) or None,
        "correlation_id": correlation_id,
        "max_retries": max_retries,
        "content_type": content_type,
    }
    changes = {each: value for each, value in options.items() if value is not None}
    if changes and payload is None:
        raise Usage(f"--{min(changes).replace('_', '-')} is of the message: give its payload too")
    if text and payload is None:
        raise Usage("--text is of the message: give its payload too")
    if payload is not None:
        body, content_type = typed(read_payload(payload), content_type, is_text=text)
        changes["payload"] = body
        if content_type is not None:
            changes["content_type"] = content_type
    when = {"cron": cron, "every": duration(every), "timezone": timezone}
    changes |= {each: value for each, value in when.items() if value is not None}
    if pause or resume:
        changes["paused"] = pause
    info = found.schedule(name, **changes) if changes else _find(found.schedules(), name, str(found.ref))
    cli.output.record(schedule_row(info))


def schedule_row(info: "ScheduleInfo") -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(info, builtin_types=(bytes,))
    for each in ("payload", "is_json"):
        row["message"].pop(each, None)
    return row


def _find(schedules: "list[ScheduleInfo]", name: str, queue: str) -> "ScheduleInfo":
    for each in schedules:
        if each.name == name:
            return each
    raise MessageNotFound(f"{queue} has no schedule {name[:80]!r}: make it with --cron or --every, and a payload")
