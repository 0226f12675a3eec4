"""`holdfast worker`: run the worker of a Python module; and a worker's log lines on a terminal."""

import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from holdfast.cli.failures import TRY_AGAIN, print_error, printable
from holdfast.model.errors import HoldfastError


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Module and name of the holdfast.Worker.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
) -> None:
    """Run a Python worker until SIGTERM or Ctrl-C.

    ```console
    holdfast worker shop.jobs:worker
    ```

    If too many handler threads run past their timeout, the worker shuts down and restarts its process.
    """
    from holdfast.worker import WorkerStuck, run_target

    print_log(is_quiet=quiet, shows_messages=True)
    try:
        run_target(target)
    except WorkerStuck as error:
        _restart(error)


def _restart(error: HoldfastError) -> NoReturn:
    """Replace this process by a new one with the same command line, which is the only way to end stuck threads."""
    print_error(f"{error}; restarting")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # sys.orig_argv also holds `-m` and the interpreter's own options.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as failed:
        print_error(
            f"cannot restart {sys.executable} ({failed}): start the worker again, or let a service manager do so"
        )
        raise typer.Exit(TRY_AGAIN) from None


class _StderrHandler(logging.Handler):
    """Prints a worker's log lines on stderr. Without `shows_messages`, lines about single messages are left out."""

    def __init__(self, *, shows_messages: bool) -> None:
        super().__init__()
        self._shows_messages = shows_messages

    def emit(self, record: logging.LogRecord) -> None:
        if self._shows_messages or not hasattr(record, "message_id"):
            # Includes the traceback of a failed handler.
            typer.echo(f"holdfast: {printable(self.format(record))}", err=True)


def print_log(*, is_quiet: bool, shows_messages: bool) -> None:
    """Print the library's log on stderr. `holdfast run` leaves out lines about messages, which it reports itself."""
    log = logging.getLogger("holdfast")
    log.setLevel(logging.WARNING if is_quiet else logging.INFO)
    log.addHandler(_StderrHandler(shows_messages=shows_messages))
    log.propagate = False
