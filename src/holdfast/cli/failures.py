"""Exit codes, and the single line on stderr that a failed command prints."""

import os
import re
import sys
import traceback

import typer

from holdfast.model.errors import HoldfastError, MessageNotFound, QueueNotFound, Refused, StaleLease, Unauthenticated
from holdfast.model.extras import explain_import

FAILURE = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
STALE_LEASE = 5
TRY_AGAIN = 75
# The code that a shell reports for a program ended by SIGPIPE.
BROKEN_PIPE = 141

# typer has a private copy of click. These are its exception classes, reached through a public subclass.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Usage(Exception):
    """A mistake in the command line: exit code 2."""


def exit_code(error: HoldfastError) -> int:
    """Return the exit code for an error of the library: not found, stale lease, refused, or try again later."""
    match error:
        case StaleLease():
            return STALE_LEASE
        case QueueNotFound() | MessageNotFound():
            return NOT_FOUND
        case Refused():
            return REFUSED
        case _:
            return TRY_AGAIN


def report_failure(error: BaseException) -> int:
    """Print an error on stderr, and return the exit code."""
    if os.environ.get("HOLDFAST_DEBUG") and not isinstance(error, typer.Abort):
        traceback.print_exception(error)
    if isinstance(error, ImportError) and (missing := explain_import(error)) is not None:
        print_error(str(missing))
        return USAGE
    match error:
        case Unauthenticated():
            print_error(f"{error} (give --token, or set HOLDFAST_TOKEN)")
            return REFUSED
        case HoldfastError():
            print_error(str(error))
            return exit_code(error)
        case Usage():
            print_error(str(error))
            return USAGE
        case typer.Abort():
            print_error("stopped: nothing was changed")
            return FAILURE
        case BrokenPipeError():
            _silence_stdout()
            return BROKEN_PIPE
        case OSError():
            file = f"{error.filename}: " if error.filename is not None else ""
            print_error(f"{file}{error.strerror or error}")
            return REFUSED
        case _ if isinstance(error, _ClickError):
            return _report_click_error(error)
        case _:
            print_error(
                f"a bug in Holdfast: {type(error).__name__}: {error} "
                "(set HOLDFAST_DEBUG=1 for the traceback, and please report it)"
            )
            return FAILURE


def _report_click_error(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    hint = f" (see: {context.command_path} --help)" if context is not None else ""
    text = str(getattr(error, "format_message", error.__str__)())
    print_error(f"{text.rstrip('.')}{hint}")
    return int(getattr(error, "exit_code", USAGE))


def print_error(text: str) -> None:
    """Print one line on stderr. Line breaks and control characters in `text` are replaced."""
    typer.echo(f"holdfast: {' '.join(printable(text).split())}", err=True)


def printable(text: str) -> str:
    """Escape characters that move a terminal's cursor or change its colours: names and errors come from anywhere."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _silence_stdout() -> None:
    """Send stdout to /dev/null: its reader has gone, and the interpreter's flush at exit would print an error."""
    null_file = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_file, sys.stdout.fileno())
    os.close(null_file)
