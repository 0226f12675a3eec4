"""`holdfast dequeue`, and `ack`, `nack`, `extend` and `release`, which settle the message that it claimed."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import NOT_FOUND, Usage, exit_code
from holdfast.cli.messages.shell_variables import PREFIX, as_exports, as_failure, clean_up, variables_of, write_payload
from holdfast.cli.output import payload_fields
from holdfast.cli.session import CommandSession, QueueName, duration
from holdfast.model.errors import HoldfastError
from holdfast.model.parsing.durations import parse_duration_ms

if TYPE_CHECKING:
    import holdfast
    from holdfast.model.answers import Result

Lease = Annotated[
    str | None,
    typer.Option(
        "--lease",
        "--visibility",
        "-l",
        metavar="DURATION",
        help="How long the message is leased. [default: the queue's `lease_ms`, 5s]",
    ),
]
ReceiptArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RECEIPT]", help=f"Receipt of the message. [default: ${PREFIX}RECEIPT, set by `dequeue`]"),
]
QueueOption = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help=f"Queue of the message. [default: ${PREFIX}NAME, set by `dequeue`]"),
]


def dequeue(
    cli: CommandSession,
    queue: QueueName,
    block: Annotated[
        str | None,
        typer.Option(
            "--block",
            "-b",
            metavar="DURATION",
            help="How long to wait for a message; 0: do not wait. [default: forever]",
        ),
    ] = None,
    lease: Lease = None,
    payload_out: Annotated[
        str | None,
        typer.Option(
            "--payload-out",
            "-o",
            metavar="FILE|-",
            help="Write the payload to this file, or to stdout. [default: a temporary file]",
        ),
    ] = None,
    stateful: Annotated[bool, typer.Option("--stateful", help="Also claim the message's state document.")] = False,
    owner: Annotated[str | None, typer.Option(help="Name of the holder, shown by `list` and `inspect`.")] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, help="Maximum number of messages to claim; more than one requires --json."
        ),
    ] = 1,
) -> None:
    """Claim a message, and print it as variables for the shell.

    The output is `export` lines for HOLDFAST_QUEUE_TENANT, _NAME, _MESSAGE_ID, _RECEIPT, _CORRELATION_ID,
    _LEASE_EXPIRES_AT, _STATE_ETAG, _PAYLOAD_PATH, _ATTEMPT, _VERSION and _STATE, which `ack`, `nack`, `extend` and
    `release` read. Without a message, the exit code is 3, and `eval` of the output fails.

    ```console
    eval "$(holdfast dequeue jobs --lease 1m)" && ./work "$HOLDFAST_QUEUE_PAYLOAD_PATH" && holdfast ack
    ```
    """
    output = cli.output
    if limit > 1 and not output.is_json:
        raise Usage("shell variables hold one message: give --json with --limit")
    if payload_out is not None and limit > 1:
        raise Usage("--payload-out writes one payload: omit --limit")
    is_shell = not output.is_json and payload_out != "-"
    options: dict[str, Any] = {"wait": None if block is None else duration(block), "state": stateful}
    options |= {name: value for name, value in (("lease", duration(lease)), ("owner", owner)) if value is not None}
    try:
        found = cli.queue(queue)
        is_waiting = block is None or parse_duration_ms("--block", duration(block)) > 0
        if is_waiting:
            cli.warn_if_missing(found.ref, is_waiting=True)
        messages = found.claim(limit, **options)
    except HoldfastError as error:
        if is_shell:
            typer.echo(as_failure(exit_code(error)), nl=False)
        raise
    if not messages:
        if not is_waiting:
            cli.warn_if_missing(found.ref, is_waiting=False)
        if is_shell:
            typer.echo(as_failure(NOT_FOUND), nl=False)
        raise typer.Exit(NOT_FOUND)
    for message in messages:
        _deliver(cli, message, payload_out, stateful=stateful)


def _deliver(
    cli: CommandSession, message: "holdfast.BlockingMessage", payload_out: str | None, *, stateful: bool
) -> None:
    path = None
    try:
        if payload_out == "-":
            message.write_to(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        elif payload_out is not None:
            path = str(Path(payload_out).absolute())
            with open(path, "wb", opener=_private) as file:
                message.write_to(file)
        elif not cli.output.is_json:
            path = write_payload(message)
        variables = variables_of(message, path, with_state=stateful)
        if stateful and message.etag is not None and not variables[f"{PREFIX}STATE"]:
            cli.output.note("the state document is too long for a variable; --json prints it")
        if cli.output.is_json:
            # stdout holds the payload alone.
            if payload_out != "-":
                cli.output.record(delivery_row(message, path, with_state=stateful))
        elif payload_out != "-":
            typer.echo(as_exports(variables), nl=False)
        else:
            typer.echo(as_exports(variables), nl=False, err=True)
        sys.stdout.flush()
    except BaseException:
        # The caller did not get the message. Release it at once, so that it need not wait for its lease to expire.
        message.release()
        if path is not None and payload_out is None:
            Path(path).unlink(missing_ok=True)
        raise


def delivery_row(message: "holdfast.Message", path: str | None, *, with_state: bool) -> dict[str, Any]:
    """Return a claimed message as the row for `--json`, with its payload, or the path of the payload's file."""
    delivery = message._held.delivery
    row: dict[str, Any] = {
        "tenant": message.tenant,
        "queue": message.queue,
        "id": str(message.id),
        "snowflake": str(message.id.snowflake),
        "receipt": message.receipt,
        "correlation_id": message.correlation_id,
        "priority": message.priority,
        "attempt": message.attempt,
        "version": message.version,
        "group": message.group,
        "headers": message.headers,
        "content_type": message.content_type,
        "enqueued_at": message.enqueued_at,
        "lease_expires_at": message.lease_expires_at,
    }
    if with_state:
        row["state"] = {"document": message.state, "etag": message.etag}
    if path is not None:
        return {**row, "payload_path": path}
    return {**row, **payload_fields(message.payload, is_json=delivery.is_json)}


# --- Verdicts ------------------------------------------------------------------------------------------------------


def ack(cli: CommandSession, receipt: ReceiptArgument = None, queue: QueueOption = None) -> None:
    """Acknowledge a claimed message: it succeeded, and is never delivered again.

    The payload's temporary file is removed.
    """
    settled = find_current_message(cli, receipt, queue)
    _report(cli, settled, "acked", settled.queue.ack([settled.receipt]))


def nack(
    cli: CommandSession,
    receipt: ReceiptArgument = None,
    queue: QueueOption = None,
    error: Annotated[
        str | None, typer.Option("--error", "-e", metavar="TEXT", help="The error, kept with the message.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Retry after this long instead of the queue's backoff.")
    ] = None,
    defer: Annotated[bool, typer.Option("--defer", help="Retry later without counting a failure.")] = False,
    final: Annotated[bool, typer.Option("--final", help="Do not retry: make it a dead letter.")] = False,
) -> None:
    """Report that a claimed message failed: it is retried later, or becomes a dead letter after its last retry."""
    settled = find_current_message(cli, receipt, queue)
    results = settled.queue.nack([settled.receipt], error, delay=duration(delay), defer=defer, final=final)
    _report(cli, settled, "nacked", results)


def extend(
    cli: CommandSession, receipt: ReceiptArgument = None, queue: QueueOption = None, lease: Lease = None
) -> None:
    """Extend the lease of a claimed message.

    The new lease is counted from now, so it may also end earlier than the current one.
    """
    settled = find_current_message(cli, receipt, queue)
    _report(cli, settled, "extended", settled.queue.extend([settled.receipt], duration(lease)), is_settled=False)


def release(cli: CommandSession, receipt: ReceiptArgument = None, queue: QueueOption = None) -> None:
    """Return a claimed message to its queue without counting the attempt."""
    settled = find_current_message(cli, receipt, queue)
    _report(cli, settled, "released", settled.queue.release([settled.receipt]))


class CurrentMessage:
    """The message that a command settles, found by its receipt."""

    def __init__(self, queue: "holdfast.Queue", receipt: str, *, is_from_dequeue: bool) -> None:
        self.queue = queue
        self.receipt = receipt
        self.is_from_dequeue = is_from_dequeue


def find_current_message(cli: CommandSession, receipt: str | None, queue: str | None) -> CurrentMessage:
    """Find the message by the command line, or by the variables that `dequeue` set. Raise Usage if both are missing."""
    variables = {name: os.environ.get(PREFIX + name) or None for name in ("RECEIPT", "NAME", "TENANT")}
    token = receipt or variables["RECEIPT"]
    if token is None:
        raise Usage(f"give the receipt, or run this after `dequeue`, which sets {PREFIX}RECEIPT")
    name = queue or variables["NAME"]
    if name is None:
        raise Usage(f"give --queue, or run this after `dequeue`, which sets {PREFIX}NAME")
    # The tenant of the claimed message, unless the command line gives another.
    has_tenant = "/" in name or cli.target.origin("tenant").startswith("flag")
    if queue is None and not has_tenant and variables["TENANT"] is not None:
        name = f"{variables['TENANT']}/{name}"
    return CurrentMessage(cli.queue(name), token, is_from_dequeue=token == variables["RECEIPT"])


def _report(
    cli: CommandSession, settled: CurrentMessage, verb: str, results: "list[Result]", *, is_settled: bool = True
) -> None:
    [result] = results
    if not result.ok:
        raise result.failure()
    if is_settled and settled.is_from_dequeue:
        clean_up(os.environ)
    row = {
        "id": result.id,
        "ok": result.ok,
        "correlation_id": result.correlation_id,
        "state": result.state,
        "retry_at": result.retry_at,
        "lease_expires_at": result.lease_expires_at,
    }
    cli.output.done(f"{verb} {result.id}", row)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
