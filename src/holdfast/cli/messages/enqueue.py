"""`holdfast enqueue`: add messages given as an argument, as a file, or as lines of a pipe."""

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.payload import TEXT, AsText, Payload, detect_type, open_payload
from holdfast.cli.session import CommandSession, QueueName, duration
from holdfast.clock import sleep, steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.ids import MessageId

if TYPE_CHECKING:
    import holdfast

_BATCH = 500
# With --rate: the maximum number of calls per second.
_MAX_CALLS_PER_S = 20
_MAX_LINE_BYTES = 64 << 20
# An upload that is finished by then shows no progress bar.
_BAR_AFTER_S = 2.0

Header = Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header. Repeatable.")]


def enqueue(
    cli: CommandSession,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD|-|@FILE]", help="The payload: text, - for stdin, or @FILE.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="0-255, lower first. [default: 100]")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Deliver after this long, such as 30s, 5m or 12h.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Deliver at this time: 2030-01-31T08:00 (local time, or with a zone), or milliseconds since 1970.",
        ),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time to live, after which the message becomes a dead letter."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Idempotency key: a repeated key returns the first message's id.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="FIFO group: its messages are delivered in order.")] = None,
    header: Header = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Id for tracing, kept through retries and redrives.")
    ] = None,
    max_retries: Annotated[int | None, typer.Option(help="Maximum number of retries. [default: the queue's]")] = None,
    content_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Content type of the payload. [default: JSON if it is valid JSON, text if it is UTF-8, else bytes]",
        ),
    ] = None,
    text: AsText = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Enqueue one message per line of stdin, or of the file.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Enqueue this many copies.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="PER_S", help="Maximum number of messages per second.")
    ] = None,
) -> None:
    """Add messages to a queue, and print their ids.

    A payload that is valid JSON is sent as JSON, byte for byte. Text that begins like JSON (with {, [ or a quote) but
    is not valid is refused; send it as plain text with --text.

    ```console
    holdfast enqueue payments '{"order": 7}' --key order-7
    holdfast enqueue mail @letter.eml --delay 5m
    seq 1000 | holdfast enqueue jobs --lines --rate 50
    ```
    """
    if payload is None and not lines:
        raise Usage("give a payload: text, - for stdin, or @FILE; or give --lines for one message per line of stdin")
    if lines and count is not None:
        raise Usage("--lines and --count exclude each other: give one of them")
    options: dict[str, Any] = {
        "priority": priority,
        "delay": duration(delay),
        "deliver_at": None if at is None else parse_instant(at),
        "ttl": duration(ttl),
        "key": key,
        "group": group,
        "headers": parse_pairs("--header", header) or None,
        "correlation_id": correlation_id,
        "max_retries": max_retries,
        "content_type": content_type,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if key is not None and (lines or (count or 1) > 1):
        raise Usage("--key makes later messages duplicates of the first: enqueue several messages one by one")
    if lines:
        _send(cli, queue, _read_messages(payload, content_type, is_text=text), given, rate=rate, total=None)
        return
    with open_payload(payload or "-") as whole:
        if whole.is_large and (count or 1) == 1:
            if text:
                given.setdefault("content_type", TEXT)
            _print(cli, [_upload(cli, queue, whole, given)])
        else:
            message = _make_message(whole.read(), content_type, is_text=text)
            _send(cli, queue, repeat(message, count or 1), given, rate=rate, total=count or 1)


def _upload(cli: CommandSession, name: str, payload: Payload, options: dict[str, Any]) -> MessageId:
    """Send a large payload as bytes: its type cannot be detected without reading all of it."""
    queue = cli.queue(name)
    bar = cli.progress(f"to {queue.ref}", payload.size, after_s=_BAR_AFTER_S)
    with bar as report, closing(payload.source(report)) as source:
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
    batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate / _MAX_CALLS_PER_S)))
    # A single message needs no progress bar.
    with cli.progress(f"to {queue.ref}", total) if total != 1 else _no_progress() as report:
        while True:
            try:
                several = list(islice(messages, batch))
                if not several:
                    break
                if rate is not None:
                    sleep(max(0.0, began + done / rate - steady_s()))
                ids = queue.enqueue(several, **options)
            except Usage as error:
                raise Usage(f"{error}{_enqueued_before(done)}") from None
            except HoldfastError as error:
                raise type(error)(f"{error.message}{_enqueued_before(done)}", **error.facts) from error
            done += len(ids)
            report(done)
            _print(cli, ids)
    if total != 1:
        cli.output.note(f"{done:,} enqueued into {queue.ref}")


def _enqueued_before(done: int) -> str:
    return f" ({done:,} were enqueued before it)" if done else ""


def _make_message(body: bytes, content_type: str | None, *, is_text: bool) -> "holdfast.NewMessage":
    from holdfast import NewMessage

    value, named = detect_type(body, content_type, is_text=is_text)
    return NewMessage(value) if named is None else NewMessage(value, content_type=named)


def _read_messages(given: str | None, content_type: str | None, *, is_text: bool) -> "Iterator[holdfast.NewMessage]":
    """Yield a message for each line that is not empty. An error names the line."""
    for number, line in enumerate(_read_lines(given), start=1):
        if line:
            try:
                yield _make_message(line, content_type, is_text=is_text)
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


def _no_progress() -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda done: None)


def _read_lines(given: str | None) -> Iterator[bytes]:
    if given is None or given == "-":
        yield from _split_lines(sys.stdin.buffer)
    elif given.startswith("@"):
        with Path(given[1:]).open("rb") as file:
            yield from _split_lines(file)
    else:
        raise Usage("--lines reads stdin (-) or a file (@FILE), and not an argument")


def _split_lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(_MAX_LINE_BYTES):
        yield line.rstrip(b"\r\n")


def parse_pairs(flag: str, given: list[str] | None) -> dict[str, str]:
    """Parse the NAME=VALUE values of a repeatable option."""
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise Usage(f"{flag} {each!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def parse_instant(given: str) -> int | datetime:
    """Parse the value of `--at`. A time without a zone is in the machine's time zone, as for `at` and `date`."""
    if given.isascii() and given.isdigit():
        return int(given)
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        raise Usage(
            f"--at {given!r} is not a time: give 2030-01-31T08:00, 2030-01-31T08:00Z or ms since 1970"
        ) from None
    return when.astimezone()
