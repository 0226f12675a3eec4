"""`holdfast enqueue`: messages from an argument, a file, a pipe, or many of them."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.payload import TEXT, AsText, Payload, opened, typed
from holdfast.cli.session import CommandSession, QueueName, duration
from holdfast.clock import steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.ids import MessageId

if TYPE_CHECKING:
    import holdfast

_BATCH = 500
# Under a rate: how often something is sent each second at most.
_TICKS_PER_S = 20
_MOST_LINE = 64 << 20
# A large payload that is on its way by then needs no bar.
_PATIENCE_S = 2.0

Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be given several times.")
]


def enqueue(
    cli: CommandSession,
    queue: QueueName,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAYLOAD|-|@FILE]", help="The payload; - reads stdin, @FILE a file.", show_default=False
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="0-255, lower first. Default: 100")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Not before so long: 30s, 5m, 12h.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: 2030-01-31T08:00, local or with its zone, or ms since 1970."),
    ] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="To the dead letters after so long.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Idempotency key: given again, it answers the first message.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="FIFO group: its messages are handled in order.")] = None,
    header: Header = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Kept through retries and redrives.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Instead of the queue's.")] = None,
    content_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Default: JSON if the payload is, else text if it is, else bytes."),
    ] = None,
    text: AsText = False,
    lines: Annotated[bool, typer.Option("--lines", help="A message for each line of stdin, or of the file.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="So many of it.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="PER_S", help="At most so many a second.")] = None,
) -> None:
    """Add messages to a queue; their ids are printed.

    Payloads that are JSON go as JSON, byte for byte. Text that begins like JSON (with {, [ or a quote) and is not valid
    is refused; --text sends it as plain text.

    ```console
    holdfast enqueue payments '{"order": 7}' --key order-7
    holdfast enqueue mail @letter.eml --delay 5m
    seq 1000 | holdfast enqueue jobs --lines --rate 50
    ```
    """
    if payload is None and not lines:
        raise Usage("give a payload: text, - for stdin, or @FILE; or --lines for a message each line of stdin")
    if lines and count is not None:
        raise Usage("--lines and --count both say how many: give one of them")
    options: dict[str, Any] = {
        "priority": priority,
        "delay": duration(delay),
        "deliver_at": None if at is None else instant_of(at),
        "ttl": duration(ttl),
        "key": key,
        "group": group,
        "headers": pairs_of("--header", header) or None,
        "correlation_id": correlation_id,
        "max_retries": max_retries,
        "content_type": content_type,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if key is not None and (lines or (count or 1) > 1):
        raise Usage("one --key for several messages would keep the first alone: enqueue them one by one")
    if lines:
        _send(cli, queue, _messages_of_lines(payload, content_type, is_text=text), given, rate=rate, total=None)
        return
    with opened(payload or "-") as whole:
        if whole.is_large and (count or 1) == 1:
            if text:
                given.setdefault("content_type", TEXT)
            _print(cli, [_upload(cli, queue, whole, given)])
        else:
            message = _message_of(whole.read(), content_type, is_text=text)
            _send(cli, queue, repeat(message, count or 1), given, rate=rate, total=count or 1)


def _upload(cli: CommandSession, name: str, payload: Payload, options: dict[str, Any]) -> MessageId:
    """As it is: what kind of payload it is cannot be seen without reading all of it."""
    queue = cli.queue(name)
    bar = cli.progress(f"to {queue.ref}", payload.size, after_s=_PATIENCE_S)
    with bar as told, closing(payload.source(told)) as source:
        return queue.upload(source, **options)


def _send(
    cli: CommandSession,
    name: str,
    messages: "Iterator[holdfast.NewMessage]",
    options: dict[str, Any],
    *,
    rate: float | None,
    total: int | None,
) -> None:
    queue = cli.queue(name)
    done = 0
    began = steady_s()
    batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate / _TICKS_PER_S)))
    pause = threading.Event()
    # One message is no progress.
    with cli.progress(f"to {queue.ref}", total) if total != 1 else _silent() as told:
        while True:
            try:
                several = list(islice(messages, batch))
                if not several:
                    break
                if rate is not None:
                    pause.wait(max(0.0, began + done / rate - steady_s()))
                ids = queue.enqueue(several, **options)
            except Usage as error:
                raise Usage(f"{error}{_enqueued_before(done)}") from None
            except HoldfastError as error:
                raise type(error)(f"{error.message}{_enqueued_before(done)}", **error.facts) from error
            done += len(ids)
            told(done)
            _print(cli, ids)
    if total != 1:
        cli.output.note(f"{done:,} enqueued into {queue.ref}")


def _enqueued_before(done: int) -> str:
    return f" ({done:,} were enqueued before that)" if done else ""


def _message_of(body: bytes, content_type: str | None, *, is_text: bool) -> "holdfast.NewMessage":
    from holdfast import NewMessage

    value, named = typed(body, content_type, is_text=is_text)
    return NewMessage(value) if named is None else NewMessage(value, content_type=named)


def _messages_of_lines(
    given: str | None, content_type: str | None, *, is_text: bool
) -> "Iterator[holdfast.NewMessage]":
    """Make a message of each line that is not empty. An error names the line."""
    for number, line in enumerate(_lines(given), start=1):
        if line:
            try:
                yield _message_of(line, content_type, is_text=is_text)
            except (Usage, InvalidArgument) as error:
                raise type(error)(f"line {number:,} of the input: {error}") from None


def _print(cli: CommandSession, ids: list[MessageId]) -> None:
    if cli.output.is_json:
        cli.output.rows(
            {
                "id": str(id),
                "snowflake": str(id.snowflake),
                "correlation_id": id.correlation_id,
                "duplicate": id.duplicate,
            }
            for id in ids
        )
    else:
        typer.echo("\n".join(ids))


def _silent() -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda done: None)


def _lines(given: str | None) -> Iterator[bytes]:
    if given is None or given == "-":
        yield from _bounded(sys.stdin.buffer)
    elif given.startswith("@"):
        with Path(given[1:]).open("rb") as file:
            yield from _bounded(file)
    else:
        raise Usage("--lines reads stdin (-) or a file (@FILE), not an argument")


def _bounded(file: Any) -> Iterator[bytes]:
    while line := file.readline(_MOST_LINE):
        yield line.rstrip(b"\r\n")


def pairs_of(flag: str, given: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise Usage(f"{flag} {each!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def instant_of(given: str) -> int | datetime:
    if given.isascii() and given.isdigit():
        return int(given)
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        raise Usage(
            f"--at {given!r} is not a time: give 2030-01-31T08:00, 2030-01-31T08:00Z or ms since 1970"
        ) from None
    # Without a zone it is the machine's own, as for `at` and `date`.
    return when.astimezone()
