"""Commands for dead letters: `dlq`, and `redrive`, which returns them to their queue."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.inspection.queues import info_row, listed, with_payload
from holdfast.cli.operator.queues import (
    ErrorContains,
    Headers,
    Ids,
    OlderThan,
    PriorityFilter,
    make_filter,
    report_changed,
)
from holdfast.cli.payload import AsText, detect_type
from holdfast.cli.session import CommandSession, QueueName, Yes
from holdfast.model.errors import MessageNotFound
from holdfast.model.message import State

if TYPE_CHECKING:
    from holdfast.model.answers import Info


class Action(StrEnum):
    """The actions of `holdfast dlq`."""

    LIST = "list"
    SHOW = "show"
    REDRIVE = "redrive"
    PURGE = "purge"
    REMOVE = "remove"


def dlq(
    cli: CommandSession,
    queue: QueueName,
    action: Annotated[Action, typer.Argument(help="What to do with the dead letters.")] = Action.LIST,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of messages, for show, remove and redrive.")
    ] = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of dead letters to list.")] = 100,
    yes: Yes = False,
) -> None:
    """List, show, redrive, remove or purge a queue's dead letters.

    ```console
    holdfast dlq payments
    holdfast dlq payments show ID
    holdfast dlq payments redrive --error-contains timeout
    ```
    """
    found = cli.queue(queue)
    filter = make_filter(ids, error_contains, older_than, header, priority)
    match action:
        case Action.LIST:
            cli.output.rows(
                map(letter_row, listed(found, "failed", filter, limit)), empty=f"{found.ref} has no dead letters"
            )
        case Action.SHOW:
            for id in _require_ids(ids, "show"):
                info = found.get(id, payload=True)
                _check_failed(info, queue)
                cli.output.record(with_payload(cli, info_row(info), info))
        case Action.REDRIVE:
            report_changed(cli, found.ref, "redriven", found.redrive(filter))
        case Action.REMOVE:
            given = _require_ids(ids, "remove")
            cli.confirm(f"Remove {len(given):,} dead letters of {found.ref}?", yes=yes)
            for id in given:
                _check_failed(found.get(id), queue)
                found.remove(id)
                cli.output.done(f"removed {id}", {"id": id, "removed": True})
        case Action.PURGE:
            if filter:
                raise Usage("purge removes all dead letters; to remove some, use: holdfast dlq QUEUE remove ID...")
            cli.confirm(f"Remove all {found.stats().failed:,} dead letters of {found.ref}?", yes=yes)
            report_changed(cli, found.ref, "removed", found.purge("failed"))


def letter_row(info: "Info") -> dict[str, Any]:
    """Return a dead letter as a row of the list."""
    return {
        "id": info.id,
        "reason": info.reason,
        "attempt": info.attempt,
        "failures": info.failures,
        "expiries": info.expiries,
        "enqueued_at": info.enqueued_at,
        "settled_at": info.settled_at,
        "bytes": info.bytes,
        "correlation_id": info.correlation_id,
        "last_error": info.last_error,
    }


def redrive(
    cli: CommandSession,
    queue: QueueName,
    ids: Ids = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: PriorityFilter = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="PER_S", help="Maximum number of messages per second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how many messages match.")] = False,
    edit_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replace the payload of the message (--id) by this file first.")
    ] = None,
    text: AsText = False,
) -> None:
    """Return failed messages to their queue, with all their retries and a new time to live.

    Messages keep their ids.
    """
    found = cli.queue(queue)
    filter = make_filter(ids, error_contains, older_than, header, priority)
    edit = None
    if text and edit_file is None:
        raise Usage("--text applies to the new payload: give --edit-file too")
    if edit_file is not None:
        if ids is None or len(ids) != 1:
            raise Usage("--edit-file changes one message: give its --id")
        edit = {"id": ids[0], "payload": detect_type(edit_file.read_bytes(), None, is_text=text)[0]}
    changed = found.redrive(filter, rate_per_s=rate, dry_run=dry_run, edit=edit)
    if ids is not None and not changed.matched:
        raise MessageNotFound(f"{found.ref} has no dead letter with that id")
    if dry_run:
        cli.output.done(
            f"{changed.matched:,} would be redriven ({found.ref})",
            {"tenant": found.ref.tenant, "queue": found.ref.queue, "matched": changed.matched, "changed": 0},
        )
        return
    report_changed(cli, found.ref, "redriven", changed)


def _require_ids(ids: list[str] | None, action: str) -> list[str]:
    if not ids:
        raise Usage(f"{action} needs ids: holdfast dlq QUEUE {action} ID...")
    return ids


def _check_failed(info: "Info", queue: str) -> None:
    if info.state is not State.FAILED:
        raise MessageNotFound(f"{info.id} is {info.state}, not a dead letter: see holdfast get {queue} {info.id}")
