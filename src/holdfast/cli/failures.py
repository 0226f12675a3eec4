"""What the shell is told when a command fails: one line, and a code that says what to do next."""

import os
import re
import sys
import traceback

import typer

from holdfast.model.errors import HoldfastError, MessageNotFound, QueueNotFound, Refused, StaleLease, Unauthenticated
from holdfast.model.extras import explain_import

DONE = 0
BROKEN = 1
USAGE = 2
NOTHING_THERE = 3
REFUSED = 4
STALE_LEASE = 5
TRY_AGAIN = 75
INTERRUPTED = 130
# As a shell reports a program that was ended by SIGPIPE.
NOBODY_READS = 141

# typer keeps its own copy of click: its errors are known by what it shows of them.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Usage(Exception):
    """The command was called in a way that it cannot be: exit code 2."""


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


def tell(error: BaseException) -> int:
    """Say it on stderr; answers the exit code."""
    if os.environ.get("HOLDFAST_DEBUG") and not isinstance(error, typer.Abort):
        traceback.print_exception(error)
    if isinstance(error, ImportError) and (missing := explain_import(error)) is not None:
        complain(str(missing))
        return USAGE
    match error:
        case Unauthenticated():
            complain(f"{error} (give --token, or set HOLDFAST_TOKEN)")
            return REFUSED
        case HoldfastError():
            complain(str(error))
            return exit_code(error)
        case Usage():
            complain(str(error))
            return USAGE
        case typer.Abort():
            complain("stopped: nothing was changed")
            return BROKEN
        case BrokenPipeError():
            _silence_stdout()
            return NOBODY_READS
        case OSError():
            what = f"{error.filename}: " if error.filename is not None else ""
            complain(f"{what}{error.strerror or error}")
            return REFUSED
        case _ if isinstance(error, _ClickError):
            return _tell_usage(error)
        case _:
            complain(
                f"a bug in Holdfast: {type(error).__name__}: {error} (HOLDFAST_DEBUG=1 shows where; please report it)"
            )
            return BROKEN


def _tell_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    hint = f" (see: {context.command_path} --help)" if context is not None else ""
    said = str(getattr(error, "format_message", error.__str__)())
    complain(f"{said.rstrip('.')}{hint}")
    return int(getattr(error, "exit_code", USAGE))


def complain(text: str) -> None:
    """One line, whatever the text brings along: scripts read it, and a terminal obeys what is in it."""
    typer.echo(f"holdfast: {' '.join(printable(text).split())}", err=True)


def printable(text: str) -> str:
    """Without what moves a terminal's cursor or changes its colours: names and errors come from anywhere."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _silence_stdout() -> None:
    """Whoever read it has left: the interpreter's own flush at the end would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
