"""`holdfast state`: what a message's next attempt is to know."""

from typing import Annotated

import msgspec
import typer

from holdfast.cli.failures import Usage
from holdfast.cli.messages.dequeue import OfQueue, taken
from holdfast.cli.messages.shell_variables import PREFIX, as_exports, state_text
from holdfast.cli.payload import read_payload
from holdfast.cli.session import CommandSession


def state(
    cli: CommandSession,
    document: Annotated[str, typer.Argument(metavar="DOCUMENT|-|@FILE", help="JSON; -: from stdin.")],
    receipt: Annotated[
        str | None, typer.Option(metavar="RECEIPT", help=f"Default: ${PREFIX}RECEIPT, as `dequeue` left it.")
    ] = None,
    queue: OfQueue = None,
    if_match: Annotated[
        str | None,
        typer.Option(
            metavar="ETAG",
            envvar=f"{PREFIX}STATE_ETAG",
            show_envvar=False,
            help="Only if this is the state's ETag; empty: only if there is none yet. "
            f"Default: ${PREFIX}STATE_ETAG, as `dequeue --stateful` left it.",
        ),
    ] = None,
) -> None:
    """Save the state document of a message that `dequeue` took: its next attempt finds it.

    Prints `export` lines with the new ETag, for the next save. Exit code 4: somebody saved another since.

    ```console
    eval "$(holdfast dequeue jobs --stateful)" && eval "$(holdfast state '{"page": 7}')" && holdfast release
    ```
    """
    try:
        value = msgspec.json.decode(read_payload(document))
    except ValueError as error:
        raise Usage(f"the document is not JSON: {error}") from None
    held = taken(cli, receipt, queue)
    etag = held.queue.save_state(held.receipt, value, if_match or None)
    if cli.output.is_json:
        cli.output.record({"document": value, "etag": etag})
        return
    variables = {f"{PREFIX}STATE_ETAG": etag or "", f"{PREFIX}STATE": state_text(value)}
    typer.echo(as_exports(variables), nl=False)
