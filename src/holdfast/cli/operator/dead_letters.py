"""The dead letters: `dlq`, and `redrive`, which brings them back."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.inspection.queues import info_row, listed, with_payload
from holdfast.cli.operator.queues import ErrorContains, Headers, Ids, OfPriority, OlderThan, filter_of, tell_changed
from holdfast.cli.payload import AsText, typed
from holdfast.cli.session import CommandSession, QueueName, Yes
from holdfast.model.errors import MessageNotFound
from holdfast.model.message import State

if TYPE_CHECKING:
    from holdfast.model.answers import Info


class Action(StrEnum):
    LIST = "list"
    SHOW = "show"
    REDRIVE = "redrive"
    PURGE = "purge"
    REMOVE = "remove"


def dlq(
    cli: CommandSession,
    queue: QueueName,
    action: Annotated[Action, typer.Argument(help="What to do with them.")] = Action.LIST,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Messages: of show and remove, and of redrive.", show_default=False),
    ] = None,
    error_contains: ErrorContains = None,
    older_than: OlderThan = None,
    header: Headers = None,
    priority: OfPriority = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most so many.")] = 100,
    yes: Yes = False,
) -> None:
    """A queue's dead letters: list them, show one, redrive, remove or purge them.

    ```console
    holdfast dlq payments
    holdfast dlq payments show ID
    holdfast dlq payments redrive --error-contains timeout
    ```
    """
    found = cli.queue(queue)
    which = filter_of(ids, error_contains, older_than, header, priority)
    match action:
        case Action.LIST:
            cli.output.rows(map(letter_row, listed(found, "failed", which, limit)), empty=f"{found.ref} has none")
        case Action.SHOW:
            for id in _some(ids, "show"):
                info = found.get(id, payload=True)
                _check_failed(info, queue)
                cli.output.record(with_payload(cli, info_row(info), info))
        case Action.REDRIVE:
            tell_changed(cli, found.ref, "redriven", found.redrive(which))
        case Action.REMOVE:
            some = _some(ids, "remove")
            cli.confirm(f"Remove {len(some):,} dead letters of {found.ref}?", yes=yes)
            for id in some:
                _check_failed(found.get(id), queue)
                found.remove(id)
                cli.output.done(f"removed {id}", {"id": id, "removed": True})
        case Action.PURGE:
            if which:
                raise Usage("purge removes every dead letter: for some of them, give remove ID...")
            cli.confirm(f"Remove all {found.stats().failed:,} dead letters of {found.ref}?", yes=yes)
            tell_changed(cli, found.ref, "removed", found.purge("failed"))


def letter_row(info: "Info") -> dict[str, Any]:
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
    priority: OfPriority = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="PER_S", help="At most so many a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many match.")] = False,
    edit_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Give the one message (--id) this payload first."),
    ] = None,
    text: AsText = False,
) -> None:
    """Bring failed messages back, with a fresh retry budget and time to live. Ids stay the same."""
    found = cli.queue(queue)
    which = filter_of(ids, error_contains, older_than, header, priority)
    edit = None
    if text and edit_file is None:
        raise Usage("--text is of the new payload: give --edit-file too")
    if edit_file is not None:
        if ids is None or len(ids) != 1:
            raise Usage("--edit-file changes one message: name it with --id")
        edit = {"id": ids[0], "payload": typed(edit_file.read_bytes(), None, is_text=text)[0]}
    changed = found.redrive(which, rate_per_s=rate, dry_run=dry_run, edit=edit)
    if ids is not None and not changed.matched:
        raise MessageNotFound(f"{found.ref} has no dead letter of that id")
    if dry_run:
        cli.output.done(
            f"{changed.matched:,} would be redriven ({found.ref})",
            {"tenant": found.ref.tenant, "queue": found.ref.queue, "matched": changed.matched, "changed": 0},
        )
        return
    tell_changed(cli, found.ref, "redriven", changed)


def _some(ids: list[str] | None, action: str) -> list[str]:
    if not ids:
        raise Usage(f"{action} which? Give their ids: holdfast dlq QUEUE {action} ID...")
    return ids


def _check_failed(info: "Info", queue: str) -> None:
    if info.state is not State.FAILED:
        raise MessageNotFound(f"{info.id} is {info.state}, not a dead letter: see holdfast get {queue} {info.id}")
