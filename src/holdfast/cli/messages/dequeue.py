"""`holdfast dequeue`, and `ack`, `nack`, `extend`, `release` for what it gave."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import NOTHING_THERE, Usage, exit_code
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
        "--lease", "--visibility", "-l", metavar="DURATION", help="How long it is yours. Default: the queue's, 5s."
    ),
]
ReceiptArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RECEIPT]", help=f"Default: ${PREFIX}RECEIPT, as `dequeue` left it.", show_default=False),
]
OfQueue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help=f"Default: ${PREFIX}NAME, as `dequeue` left it.")
]


def dequeue(
    cli: CommandSession,
    queue: QueueName,
    block: Annotated[
        str | None,
        typer.Option("--block", "-b", metavar="DURATION", help="Wait so long; 0: not at all. Default: for ever."),
    ] = None,
    lease: Lease = None,
    payload_out: Annotated[
        str | None,
        typer.Option("--payload-out", "-o", metavar="FILE|-", help="The payload goes here. Default: a temporary file."),
    ] = None,
    stateful: Annotated[bool, typer.Option("--stateful", help="With the message's state document.")] = False,
    owner: Annotated[str | None, typer.Option(help="Who has it, for whoever looks.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many; more than one as --json.")] = 1,
) -> None:
    """Take a message under a lease, for the commands that follow.

    Prints `export` lines for a shell: HOLDFAST_QUEUE_TENANT, _NAME, _MESSAGE_ID, _RECEIPT, _CORRELATION_ID,
    _LEASE_EXPIRES_AT, _STATE_ETAG, _PAYLOAD_PATH, _ATTEMPT, _VERSION and _STATE. Exit code 3, and an `eval` that fails:
    there was none.

    ```console
    eval "$(holdfast dequeue jobs --lease 1m)" && ./work "$HOLDFAST_QUEUE_PAYLOAD_PATH" && holdfast ack
    ```
    """
    output = cli.output
    if limit > 1 and not output.is_json:
        raise Usage("a shell's variables hold one message: give --json with --limit")
    if payload_out is not None and limit > 1:
        raise Usage("--payload-out takes one payload: leave out --limit")
    is_shell = not output.is_json and payload_out != "-"
    options: dict[str, Any] = {"wait": None if block is None else duration(block), "state": stateful}
    options |= {name: value for name, value in (("lease", duration(lease)), ("owner", owner)) if value is not None}
    try:
        found = cli.queue(queue)
        is_waiting = block is None or parse_duration_ms("--block", duration(block)) > 0
        if is_waiting:
            cli.tell_if_missing(found.ref, is_waiting=True)
        messages = found.claim(limit, **options)
    except HoldfastError as error:
        if is_shell:
            typer.echo(as_failure(exit_code(error)), nl=False)
        raise
    if not messages:
        if not is_waiting:
            cli.tell_if_missing(found.ref, is_waiting=False)
        if is_shell:
            typer.echo(as_failure(NOTHING_THERE), nl=False)
        raise typer.Exit(NOTHING_THERE)
    for message in messages:
        _hand_over(cli, message, payload_out, stateful=stateful)


def _hand_over(
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
            cli.output.note("the state document is too long for a variable: --json has it")
        if cli.output.is_json:
            # What took the payload on stdout has no room for anything else there.
            if payload_out != "-":
                cli.output.record(delivery_row(message, path, with_state=stateful))
        elif payload_out != "-":
            typer.echo(as_exports(variables), nl=False)
        else:
            typer.echo(as_exports(variables), nl=False, err=True)
        sys.stdout.flush()
    except BaseException:
        # Nobody has it now: it goes back at once, not when its lease runs out.
        message.release()
        if path is not None and payload_out is None:
            Path(path).unlink(missing_ok=True)
        raise


def delivery_row(message: "holdfast.Message", path: str | None, *, with_state: bool) -> dict[str, Any]:
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


def ack(cli: CommandSession, receipt: ReceiptArgument = None, queue: OfQueue = None) -> None:
    """Done: the message is never delivered again. The payload's temporary file is removed."""
    settled = taken(cli, receipt, queue)
    _tell(cli, settled, "acked", settled.queue.ack([settled.receipt]))


def nack(
    cli: CommandSession,
    receipt: ReceiptArgument = None,
    queue: OfQueue = None,
    error: Annotated[str | None, typer.Option("--error", "-e", metavar="TEXT", help="Why; it is kept.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Back after so long, not after a backoff.")
    ] = None,
    defer: Annotated[bool, typer.Option("--defer", help="Only not now: it uses up none of the retries.")] = False,
    final: Annotated[bool, typer.Option("--final", help="No retry can help: to the dead letters.")] = False,
) -> None:
    """It failed: the message comes back later, or goes to the dead letters when its retries are used up."""
    settled = taken(cli, receipt, queue)
    results = settled.queue.nack([settled.receipt], error, delay=duration(delay), defer=defer, final=final)
    _tell(cli, settled, "nacked", results)


def extend(cli: CommandSession, receipt: ReceiptArgument = None, queue: OfQueue = None, lease: Lease = None) -> None:
    """Hold it longer: the lease runs out so long from now."""
    settled = taken(cli, receipt, queue)
    _tell(cli, settled, "extended", settled.queue.extend([settled.receipt], duration(lease)), is_over=False)


def release(cli: CommandSession, receipt: ReceiptArgument = None, queue: OfQueue = None) -> None:
    """Give it back as if it had never been taken: nothing is counted."""
    settled = taken(cli, receipt, queue)
    _tell(cli, settled, "released", settled.queue.release([settled.receipt]))


class CurrentMessage:
    """What a command after `dequeue` is about."""

    def __init__(self, queue: "holdfast.Queue", receipt: str, *, is_from_dequeue: bool) -> None:
        self.queue = queue
        self.receipt = receipt
        self.is_from_dequeue = is_from_dequeue


def taken(cli: CommandSession, receipt: str | None, queue: str | None) -> CurrentMessage:
    left = {name: os.environ.get(PREFIX + name) or None for name in ("RECEIPT", "NAME", "TENANT")}
    token = receipt or left["RECEIPT"]
    if token is None:
        raise Usage(f"give the receipt, or run this after `dequeue`, which leaves it in {PREFIX}RECEIPT")
    name = queue or left["NAME"]
    if name is None:
        raise Usage(f"give --queue, or run this after `dequeue`, which leaves it in {PREFIX}NAME")
    # The message's own tenant, unless the command line says otherwise.
    is_said = "/" in name or cli.place.origin("tenant").startswith("flag")
    if queue is None and not is_said and left["TENANT"] is not None:
        name = f"{left['TENANT']}/{name}"
    return CurrentMessage(cli.queue(name), token, is_from_dequeue=token == left["RECEIPT"])


def _tell(
    cli: CommandSession, settled: CurrentMessage, verb: str, results: "list[Result]", *, is_over: bool = True
) -> None:
    [result] = results
    if not result.ok:
        raise result.failure()
    if is_over and settled.is_from_dequeue:
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
