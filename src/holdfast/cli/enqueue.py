"""`holdfast enqueue`: messages from an argument, a file, a pipe, or many of them."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.command import QueueName, Session, duration
from holdfast.cli.failures import Usage
from holdfast.cli.payload import Payload, opened
from holdfast.clock import steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.ids import MessageId

_BATCH = 500
# Under a rate: how often something is sent each second at most.
_TICKS_PER_S = 20
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_MOST_LINE = 64 << 20
# A large payload that is on its way by then needs no bar.
_PATIENCE_S = 2.0

Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be given several times.")
]


def enqueue(
    cli: Session,
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
    lines: Annotated[bool, typer.Option("--lines", help="A message for each line of stdin, or of the file.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="So many of it.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="PER_S", help="At most so many a second.")] = None,
) -> None:
    """Add messages to a queue; their ids are printed.

    Payloads that are JSON go as JSON, byte for byte.

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
        _send(cli, queue, _lines(payload), given, rate=rate, total=None)
        return
    with opened(payload or "-") as whole:
        if whole.is_large and (count or 1) == 1:
            _print(cli, [_upload(cli, queue, whole, given)])
        else:
            _send(cli, queue, repeat(whole.read(), count or 1), given, rate=rate, total=count or 1)


def _upload(cli: Session, name: str, payload: Payload, options: dict[str, Any]) -> MessageId:
    """As it is: what kind of payload it is cannot be seen without reading all of it."""
    queue = cli.queue(name)
    bar = cli.progress(f"to {queue.ref}", payload.size, after_s=_PATIENCE_S)
    with bar as told, closing(payload.source(told)) as source:
        return queue.upload(source, **options)


def _send(
    cli: Session, name: str, bodies: Iterator[bytes], options: dict[str, Any], *, rate: float | None, total: int | None
) -> None:
    queue = cli.queue(name)
    done = 0
    began = steady_s()
    batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate / _TICKS_PER_S)))
    pause = threading.Event()
    # One message is no progress.
    with cli.progress(f"to {queue.ref}", total) if total != 1 else _silent() as told:
        while several := list(islice(bodies, batch)):
            if rate is not None:
                pause.wait(max(0.0, began + done / rate - steady_s()))
            try:
                ids = _enqueue(queue, several, options)
            except HoldfastError as error:
                if done:
                    raise type(error)(f"{error.message} ({done:,} were enqueued before that)", **error.facts) from error
                raise
            done += len(ids)
            told(done)
            _print(cli, ids)
    if total != 1:
        cli.output.note(f"{done:,} enqueued into {queue.ref}")


def _enqueue(queue: Any, bodies: list[bytes], options: dict[str, Any]) -> list[MessageId]:
    """All or none. What differs in kind goes in calls of its own: a content type holds for a whole call."""
    from holdfast import NewMessage

    messages = []
    for body in bodies:
        value, content_type = typed(body, options.get("content_type"))
        messages.append(NewMessage(value) if content_type is None else NewMessage(value, content_type=content_type))
    ids: list[MessageId] = queue.enqueue(messages, **options)
    return ids


def _print(cli: Session, ids: list[MessageId]) -> None:
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
    elif not cli.output.is_quiet:
        typer.echo("\n".join(ids))


def _silent() -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda done: None)


def typed(body: bytes, content_type: str | None) -> tuple[Any, str | None]:
    """The payload as the client takes it, and the content type if it is to be named."""
    wants_json = content_type is not None and (content_type.split(";")[0].strip() == _JSON or "+json" in content_type)
    if content_type is not None and not wants_json:
        return body, None
    try:
        msgspec.json.decode(body)
        body.decode()
        return msgspec.Raw(body), None
    except (ValueError, RecursionError) as error:
        if wants_json:
            raise InvalidArgument(f"the payload is not JSON ({error}), but --content-type says so") from None
    try:
        body.decode()
        return body, _TEXT if body else None
    except UnicodeDecodeError:
        return body, None


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
        if stripped := line.rstrip(b"\r\n"):
            yield stripped


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
