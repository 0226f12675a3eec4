"""The commands, and what the shell is told when one fails.

Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.
"""

import sys
from typing import Annotated

import typer

from holdfast.cli.failures import exit_code, tell
from holdfast.cli.loading import MARKUP, RootGroup

__all__ = ["app", "exit_code", "main"]

app = typer.Typer(
    cls=RootGroup,
    name="holdfast",
    help="A message and job queue: in a directory, on a server, or shared over PostgreSQL or an object store.",
    epilog="Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.",
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MOST_USED = """\
Holdfast, a message queue. The most used commands:

  holdfast serve                           serve queues on this machine, at http://127.0.0.1:7077
  holdfast enqueue QUEUE PAYLOAD           add a message
  holdfast run QUEUE -- ./handler          run a program for each message
  eval "$(holdfast dequeue QUEUE)"         take one for a shell script; then holdfast ack, or nack
  holdfast queues                          what is ready, in flight and failed
  holdfast top, holdfast tail              the same live; every event as it happens
  holdfast list QUEUE --state in_flight    who holds which message; holdfast inspect ID shows all of one
  holdfast dlq QUEUE                       dead letters; holdfast redrive QUEUE brings them back
  holdfast demo                            see it work

Without a server, give a directory: --url ./data. Every command: holdfast --help"""


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(_MOST_USED)


def main() -> None:
    sys.exit(_run())


def _run() -> int:
    try:
        answer = app(standalone_mode=False, prog_name="holdfast")
        sys.stdout.flush()
    except Exception as error:
        return tell(error)
    # Of a command that left by `typer.Exit` it is the code; of one that came to its end, nothing.
    return answer if isinstance(answer, int) else 0
