"""`holdfast run`: a worker that runs a program for each message."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from holdfast.cli.failures import TRY_AGAIN, Usage
from holdfast.cli.messages.shell_variables import new_payload_file, variables_of
from holdfast.cli.messages.worker import print_log
from holdfast.cli.output import duration as duration_text
from holdfast.cli.output import echo_json
from holdfast.cli.session import CommandSession, QueueName, duration
from holdfast.client.message import Message
from holdfast.clock import SystemClock
from holdfast.model.errors import QueueNotFound, StoreUnavailable, Throttled, Unavailable
from holdfast.worker.outcomes import Defer, Outcome, OutcomeKind, Retry

# A program that does not end within this time after SIGTERM is killed.
_KILL_AFTER_S = 2.0
# The end of stderr that becomes the error: lines, and characters per line. All of stderr is passed on.
_ERROR_LINES, _ERROR_LINE_LENGTH = 20, 500
# How long to read stderr after the program has ended: a grandchild may keep it open much longer.
_STDERR_GRACE_S = 0.5
_PLACEHOLDER = "{}"


def run(
    cli: CommandSession,
    queue: QueueName,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND [ARG]...",
            help="Program to run. An argument {} is replaced by the path of the payload's file.",
        ),
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=1_000, help="Maximum number of programs at once.")
    ] = 1,
    lease: Annotated[
        str,
        typer.Option(
            "--lease",
            "--visibility",
            "-l",
            metavar="DURATION",
            help="Lease of each message, renewed while the program runs.",
        ),
    ] = "30s",
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="End a program that runs longer than this; 0: never.")
    ] = "5m",
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for running programs when stopping.")
    ] = "30s",
    later: Annotated[
        str, typer.Option(metavar="DURATION", help="Delay of a message whose program exits with 75.")
    ] = "30s",
    retries: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of retries. [default: the queue's]")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Name of the holder, shown by `list` and `inspect`.")] = None,
    stateful: Annotated[
        bool, typer.Option("--stateful", help="Pass each message's state document and its ETag to the program.")
    ] = False,
) -> None:
    """Run a program for each message until SIGTERM or Ctrl-C.

    The program reads the payload from standard input or from a file, and has the same HOLDFAST_QUEUE_* variables as
    `dequeue` sets. Exit code 0 acks the message. Exit code 75 returns it for later without using up a retry. Any other
    exit code nacks it, with the last lines of stderr as the error. The lease is renewed while the program runs; if the
    lease is lost, the program is ended.

    ```console
    holdfast run thumbnails --concurrency 4 -- ./resize.sh {}
    ```
    """
    import holdfast

    if shutil.which(command[0]) is None:
        raise Usage(f"{command[0]!r} is not an executable program: give one after --")
    ref = cli.ref(queue)
    target = cli.target
    _check_access(cli, queue)
    worker = holdfast.Worker(target.url, owner=owner, grace=duration(grace) or 0, **target.open_settings())
    limit = duration(timeout)
    with tempfile.TemporaryDirectory(prefix="holdfast-run-") as directory:
        program = Program(
            command,
            directory,
            {"HOLDFAST_URL": target.url} if target.is_remote else {},
            later=duration(later) or 0,
            with_state=stateful,
        )
        worker.handler(
            ref.queue,
            tenant=ref.tenant,
            concurrency=concurrency,
            lease=duration(lease) or 0,
            timeout=None if limit in (0, None, "0s") else limit,
            retries=retries,
            state=stateful,
            stream=True,
        )(program.handle)
        worker.after(lambda message, outcome: _report(cli, message, outcome))
        print_log(is_quiet=cli.output.is_quiet, shows_messages=False)
        cli.output.note(f"running {command[0]} for each message of {ref}; stop with Ctrl-C")
        worker.run()


def _check_access(cli: CommandSession, queue: str) -> None:
    """Raise errors that would never go away. A server that cannot be reached is no error: the worker waits for it."""
    if not cli.target.is_remote:
        if cli.target.is_directory and not Path(cli.target.url).exists():
            raise QueueNotFound(f"there is no store at {cli.target.url}: check the path")
        return
    with suppress(QueueNotFound, Unavailable, Throttled):
        cli.queue(queue).stats()


class Program:
    """A command line that is run for each message."""

    def __init__(
        self, command: list[str], directory: str, environment: dict[str, str], *, later: "str | float", with_state: bool
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = environment
        self._later = later
        self._with_state = with_state

    async def handle(self, message: Message) -> None:
        """Run the program. Raise Defer or Retry unless it exits with 0."""
        try:
            code, error = await self._run(message)
        except OSError as cause:
            # The program was removed, or the disk is full: no failure of the message.
            raise Defer(self._later, f"{self._command[0]} could not be run: {cause.strerror or cause}") from None
        except StoreUnavailable as cause:
            raise Defer(self._later, f"the payload could not be read: {cause.message}") from None
        if code == TRY_AGAIN:
            raise Defer(self._later, error or None)
        if code:
            raise Retry(f"{_describe_exit(code)}{': ' if error else ''}{error}")

    async def _run(self, message: Message) -> tuple[int, str]:
        with self._payload_file(message) as (file, path):
            await message.write_to(file)
            file.flush()
            with _open(path) as payload:
                return await self._run_on(message, path, payload)

    async def _run_on(self, message: Message, path: str, payload: BinaryIO) -> tuple[int, str]:
        variables = variables_of(message, path, with_state=self._with_state)
        child = await asyncio.create_subprocess_exec(
            *(path if each == _PLACEHOLDER else each for each in self._command),
            stdin=payload,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment, **variables},
            # In a session of its own: a terminal's Ctrl-C reaches only this process, and ending the group ends the
            # program's own children too.
            start_new_session=True,
        )
        return await self._wait_for(child)

    @contextmanager
    def _payload_file(self, message: Message) -> Iterator[tuple[BinaryIO, str]]:
        handle, path = new_payload_file(message, self._directory)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file, path
        finally:
            Path(path).unlink(missing_ok=True)

    async def _wait_for(self, child: asyncio.subprocess.Process) -> tuple[int, str]:
        error_lines: deque[str] = deque(maxlen=_ERROR_LINES)
        reading = asyncio.create_task(_pass_on_stderr(child, error_lines))
        try:
            code = await child.wait()
            await asyncio.wait({reading}, timeout=_STDERR_GRACE_S)
        except asyncio.CancelledError:
            await _end(child)
            raise
        finally:
            reading.cancel()
        return code, "\n".join(error_lines)


def _open(path: str) -> BinaryIO:
    return open(path, "rb")


async def _pass_on_stderr(child: asyncio.subprocess.Process, error_lines: deque[str]) -> None:
    """Copy the program's stderr to ours line by line, and keep the last lines."""
    assert child.stderr is not None
    while True:
        try:
            line = await child.stderr.readline()
        except ValueError:  # the line is longer than the reader's buffer, and is dropped
            continue
        if not line:
            return
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        if text := line.decode("utf-8", "replace").strip():
            error_lines.append(text[:_ERROR_LINE_LENGTH])


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the program and its children: SIGTERM, then SIGKILL after 2 s, or at once if this task is cancelled again."""
    try:
        _signal(child, signal.SIGTERM)
        async with asyncio.timeout(_KILL_AFTER_S):
            await child.wait()
    except TimeoutError:
        pass
    finally:
        _signal(child, signal.SIGKILL)


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


# --- Reports -------------------------------------------------------------------------------------------------------


def _report(cli: CommandSession, message: Message, outcome: Outcome) -> None:
    row: dict[str, Any] = {
        "id": str(message.id),
        "outcome": str(outcome.kind),
        "attempt": message.attempt,
        "seconds": round(outcome.seconds, 3),
        "retry_at": outcome.retry_at,
        "error": outcome.error,
        "correlation_id": message.correlation_id,
    }
    if cli.output.is_json:
        echo_json(row)
        sys.stdout.flush()
        return
    at = _clock_text(SystemClock().now_ms())
    is_retried = outcome.retry_at is not None and outcome.kind in (OutcomeKind.RETRIED, OutcomeKind.DEFERRED)
    again = f", again at {_clock_text(outcome.retry_at or 0)}" if is_retried else ""
    why = f": {' | '.join(outcome.error.splitlines())[:200]}" if outcome.error else ""
    took = duration_text(round(outcome.seconds * 1_000))
    cli.output.note(f"{at} {outcome.kind} {message.id} attempt {message.attempt} after {took}{again}{why}")


def _clock_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().strftime("%H:%M:%S")
