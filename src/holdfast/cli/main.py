"""The commands, and what the shell is told when one fails.

Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.cli.demo import demo
from holdfast.cli.serve import ServeCommand, serve
from holdfast.cli.upkeep import backup, verify
from holdfast.model.errors import HoldfastError, MessageNotFound, QueueNotFound, Refused, StaleLease

NOTHING_THERE = 3
REFUSED = 4
STALE_LEASE = 5
TRY_AGAIN = 75

app = typer.Typer(
    name="holdfast",
    help="A message queue for Python programs, kept in a directory.",
    epilog="Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=ServeCommand)(serve)
app.command()(demo)
app.command()(verify)
app.command()(backup)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        app()
    except HoldfastError as error:
        # One line, whatever the message brings along: scripts read it.
        typer.echo(f"holdfast: {' '.join(str(error).split())}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: HoldfastError) -> int:
    match error:
        case StaleLease():
            return STALE_LEASE
        case QueueNotFound() | MessageNotFound():
            return NOTHING_THERE
        case Refused():
            return REFUSED
        case _:
            return TRY_AGAIN
