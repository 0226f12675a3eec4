"""`holdfast state`: save a message's state document for its next attempt."""

from typing import Annotated

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.dequeue import QueueOption, find_current_message
from holdfast.cli.messages.shell_variables import PREFIX, as_exports, state_text
from holdfast.cli.payload import read_payload
from holdfast.cli.session import CommandSession


def state(
    cli: CommandSession,
    document: Annotated[
        str, typer.Argument(metavar="DOCUMENT|-|@FILE", help="The document in JSON: text, - for stdin, or @FILE.")
    ],
    receipt: Annotated[
        str | None,
        typer.Option(metavar="RECEIPT", help=f"Receipt of the message. [default: ${PREFIX}RECEIPT, set by `dequeue`]"),
    ] = None,
    queue: QueueOption = None,
    if_match: Annotated[
        str | None,
        typer.Option(
            metavar="ETAG",
            envvar=f"{PREFIX}STATE_ETAG",
            show_envvar=False,
            help="Save only if the current document has this ETag; empty: only if there is no document yet. "
            f"[default: ${PREFIX}STATE_ETAG, set by `dequeue --stateful`]",
        ),
    ] = None,
) -> None:
    """Save the state document of a claimed message for its next attempt.

    Prints `export` lines with the new ETag for the next save. Exits with 4 if the document was changed since.

    ```console
    eval "$(holdfast dequeue jobs --stateful)" && eval "$(holdfast state '{"page": 7}')" && holdfast release
    ```
    """
    try:
        value = msgspec.json.decode(read_payload(document))
    except ValueError as error:
        raise Usage(f"the document is not JSON: {error}") from None
    held = find_current_message(cli, receipt, queue)
    etag = held.queue.save_state(held.receipt, value, if_match or None)
    if cli.output.is_json:
        cli.output.record({"document": value, "etag": etag})
        return
    variables = {f"{PREFIX}STATE_ETAG": etag or "", f"{PREFIX}STATE": state_text(value)}
    typer.echo(as_exports(variables), nl=False)
