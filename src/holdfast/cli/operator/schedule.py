"""`holdfast schedule`: list and change the schedules of a queue."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.enqueue import Header, parse_pairs
from holdfast.cli.payload import AsText, detect_type, read_payload
from holdfast.cli.session import CommandSession, QueueName, Yes, duration
from holdfast.model.errors import MessageNotFound

if TYPE_CHECKING:
    from holdfast.model.schedules import ScheduleInfo


def schedule(
    cli: CommandSession,
    queue: QueueName,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a schedule. Without it, all schedules are listed.")
    ] = None,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="[PAYLOAD|-|@FILE]", help="Payload of each message: text, - for stdin, or @FILE."),
    ] = None,
    cron: Annotated[str | None, typer.Option("--cron", metavar="LINE", help='Cron line, such as "0 3 * * *".')] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Interval, such as 15m.")] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone of the cron line. [default: UTC]")
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the schedule: its ticks are skipped.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a paused schedule.")] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the schedule. Messages that it has enqueued stay.")
    ] = False,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="Priority of its messages.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="Time to live of its messages.")] = None,
    group: Annotated[str | None, typer.Option(help="FIFO group of its messages.")] = None,
    header: Header = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Correlation id of its messages.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Maximum number of retries of its messages.")] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="Content type of the payload.")] = None,
    text: AsText = False,
    yes: Yes = False,
) -> None:
    """List, create, change, pause or remove a queue's schedules.

    Each tick enqueues one message, however many servers there are.

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
        "headers": parse_pairs("--header", header) or None,
        "correlation_id": correlation_id,
        "max_retries": max_retries,
        "content_type": content_type,
    }
    changes = {each: value for each, value in options.items() if value is not None}
    if changes and payload is None:
        raise Usage(f"--{min(changes).replace('_', '-')} applies to the payload: give the payload too")
    if text and payload is None:
        raise Usage("--text applies to the payload: give the payload too")
    if payload is not None:
        body, content_type = detect_type(read_payload(payload), content_type, is_text=text)
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
    """Return a schedule as a row, without its payload."""
    row: dict[str, Any] = msgspec.to_builtins(info, builtin_types=(bytes,))
    for each in ("payload", "is_json"):
        row["message"].pop(each, None)
    return row


def _find(schedules: "list[ScheduleInfo]", name: str, queue: str) -> "ScheduleInfo":
    for each in schedules:
        if each.name == name:
            return each
    raise MessageNotFound(f"{queue} has no schedule {name[:80]!r}: create it with --cron or --every, and a payload")
