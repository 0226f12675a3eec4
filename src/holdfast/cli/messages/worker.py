"""`holdfast worker`: a program's own worker, by its name; and how workers speak on a terminal."""

import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from holdfast.cli.failures import TRY_AGAIN, complain, printable
from holdfast.model.errors import HoldfastError


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="Where the holdfast.Worker is.", show_default=False)
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what goes wrong.")] = False,
) -> None:
    """Run a worker of Python handlers, until SIGTERM or Ctrl-C.

    ```console
    holdfast worker shop.jobs:worker
    ```

    When too many handler threads outlive their timeout, it stops in order and starts its process again.
    """
    from holdfast.worker import WorkerStuck, run_target

    say_log(is_quiet=quiet, tells_messages=True)
    try:
        run_target(target)
    except WorkerStuck as error:
        _start_again(error)


def _start_again(error: HoldfastError) -> NoReturn:
    """Replace this process by a new one with the same command line: nothing else ends its stuck threads."""
    complain(f"{error}; starting again")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # The command line as it was started, with `python -m` and the interpreter's own options.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as failed:
        complain(f"cannot start {sys.executable} again ({failed}): start the worker by hand, or by a service manager")
        raise typer.Exit(TRY_AGAIN) from None


class _Complaints(logging.Handler):
    """A worker's log lines as this program's own. Of messages `holdfast run` tells in its own way."""

    def __init__(self, *, tells_messages: bool) -> None:
        super().__init__()
        self._tells_messages = tells_messages

    def emit(self, record: logging.LogRecord) -> None:
        if self._tells_messages or not hasattr(record, "message_id"):
            # With the traceback where there is one: it is the handler's.
            typer.echo(f"holdfast: {printable(self.format(record))}", err=True)


def say_log(*, is_quiet: bool, tells_messages: bool) -> None:
    log = logging.getLogger("holdfast")
    log.setLevel(logging.WARNING if is_quiet else logging.INFO)
    log.addHandler(_Complaints(tells_messages=tells_messages))
    log.propagate = False
