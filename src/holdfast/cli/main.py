"""The program `holdfast`: run a command, and turn its end into an exit code.

Exit codes: 0 success, 2 usage error, 3 not found, 4 refused, 5 stale lease, 75 try again later.
"""

import atexit
import gc
import sys
from typing import Annotated

import typer

from holdfast.cli.failures import exit_code, report_failure
from holdfast.cli.loading import MARKUP, RootGroup

__all__ = ["app", "exit_code", "main"]

app = typer.Typer(
    cls=RootGroup,
    name="holdfast",
    help="A message and job queue: in a directory, on a server, or shared over PostgreSQL or an object store.",
    epilog="Exit codes: 0 success, 2 usage error, 3 not found, 4 refused, 5 stale lease, 75 try again later.",
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MOST_USED = """\
Holdfast, a message queue. The most used commands:

  holdfast serve                           serve queues on this machine, at http://127.0.0.1:7077
  holdfast enqueue QUEUE PAYLOAD           add a message
  holdfast run QUEUE -- ./handler          run a program for each message
  eval "$(holdfast dequeue QUEUE)"         claim a message in a shell script; settle it with holdfast ack or nack
  holdfast queues                          list queues with their message counts
  holdfast top, holdfast tail              show queues live; show events as they happen
  holdfast list QUEUE --state in_flight    list claimed messages; holdfast inspect ID shows one in full
  holdfast dlq QUEUE                       list dead letters; holdfast redrive QUEUE returns them to the queue
  holdfast demo                            run a demonstration

Without a server, give a directory: --url ./data. For all commands, see holdfast --help."""


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
    """Run the command that `sys.argv` names, and exit with its code."""
    # Spares the garbage collection at the interpreter's end, which walks over every object of every module: 20 ms of a
    # client command's 100.
    atexit.register(gc.freeze)
    sys.exit(_run())


def _run() -> int:
    try:
        result = app(standalone_mode=False, prog_name="holdfast")
        sys.stdout.flush()
    except Exception as error:
        return report_failure(error)
    # A command that raised `typer.Exit` returns its code; any other command returns None.
    return result if isinstance(result, int) else 0
