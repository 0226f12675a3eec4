"""`holdfast run`: a program for each message, with a worker around it."""

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
from holdfast.cli.messages.worker import say_log
from holdfast.cli.output import duration as duration_text
from holdfast.cli.output import echo_json
from holdfast.cli.session import CommandSession, QueueName, duration
from holdfast.client.message import Message
from holdfast.clock import SystemClock
from holdfast.model.errors import QueueNotFound, StoreUnavailable, Throttled, Unavailable
from holdfast.worker.outcomes import Defer, Outcome, OutcomeKind, Retry

# A child that is told to end and does not is killed after so long.
_KILL_AFTER_S = 2.0
# What is kept of stderr for the error; the rest has gone past.
_LINES, _LINE = 20, 500
# A grandchild may keep stderr open long after the child has ended.
_LAST_WORDS_S = 0.5
_PLACEHOLDER = "{}"


def run(
    cli: CommandSession,
    queue: QueueName,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND [ARG]...", help="{} among its arguments is the payload's file."),
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=1_000, help="So many at once.")] = 1,
    lease: Annotated[
        str, typer.Option("--lease", "--visibility", "-l", metavar="DURATION", help="Renewed while the program runs.")
    ] = "30s",
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="A program that runs longer is ended; 0: never.")
    ] = "5m",
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Told to stop, wait so long for the programs that run.")
    ] = "30s",
    later: Annotated[
        str, typer.Option(metavar="DURATION", help="After exit code 75 the message comes back so much later.")
    ] = "30s",
    retries: Annotated[int | None, typer.Option(min=0, help="Instead of the queue's.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who has the messages, for whoever looks.")] = None,
    stateful: Annotated[bool, typer.Option("--stateful", help="With the ETag of the message's state.")] = False,
) -> None:
    """Run a program for each message, until SIGTERM or Ctrl-C.

    The payload is its standard input, and a file; the HOLDFAST_QUEUE_* variables are those of `dequeue`. Exit code 0
    acks the message. 75 means later: it comes back and uses up no retry. Any other code nacks it, with the last lines
    of stderr as the error. The lease is renewed meanwhile; a program whose lease is lost is ended.

    ```console
    holdfast run thumbnails --concurrency 4 -- ./resize.sh {}
    ```
    """
    import holdfast

    if shutil.which(command[0]) is None:
        raise Usage(f"{command[0]!r} is not a program here: give one that can be run, after --")
    ref = cli.ref(queue)
    place = cli.place
    _check_welcome(cli, queue)
    settings = {"token": place.token} if place.is_remote else dict(place.store)
    worker = holdfast.Worker(place.url, owner=owner, grace=duration(grace) or 0, **settings)
    limit = duration(timeout)
    with tempfile.TemporaryDirectory(prefix="holdfast-run-") as directory:
        program = Program(
            command,
            directory,
            {"HOLDFAST_URL": place.url} if place.is_remote else {},
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
        worker.after(lambda message, outcome: _tell(cli, message, outcome))
        say_log(is_quiet=cli.output.is_quiet, tells_messages=False)
        cli.output.note(f"running {command[0]} for each message of {ref}; Ctrl-C ends it")
        worker.run()


def _check_welcome(cli: CommandSession, queue: str) -> None:
    """What can never succeed is said now. A server that is away comes back: the worker waits for it."""
    if not cli.place.is_remote:
        if cli.place.is_directory and not Path(cli.place.url).exists():
            raise QueueNotFound(f"there is no store at {cli.place.url}: check the path")
        return
    with suppress(QueueNotFound, Unavailable, Throttled):
        cli.queue(queue).stats()


class Program:
    def __init__(
        self,
        command: list[str],
        directory: str,
        environment: dict[str, str],
        *,
        later: "str | float",
        with_state: bool,
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = environment
        self._later = later
        self._with_state = with_state

    async def handle(self, message: Message) -> None:
        try:
            code, error = await self._run(message)
        except OSError as cause:
            # The program is gone, or the disk full: not the message's fault.
            raise Defer(self._later, f"{self._command[0]} could not be run: {cause.strerror or cause}") from None
        except StoreUnavailable as cause:
            raise Defer(self._later, f"the payload could not be read: {cause.message}") from None
        if code == TRY_AGAIN:
            raise Defer(self._later, error or None)
        if code:
            raise Retry(f"{_ending(code)}{': ' if error else ''}{error}")

    async def _run(self, message: Message) -> tuple[int, str]:
        with self._file_of(message) as (file, path):
            await message.write_to(file)
            file.flush()
            with _opened(path) as payload:
                return await self._run_on(message, path, payload)

    async def _run_on(self, message: Message, path: str, payload: BinaryIO) -> tuple[int, str]:
        variables = variables_of(message, path, with_state=self._with_state)
        child = await asyncio.create_subprocess_exec(
            *(path if each == _PLACEHOLDER else each for each in self._command),
            stdin=payload,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment, **variables},
            # A group of its own: a terminal's Ctrl-C is for us to judge, and ending it ends what it has started.
            start_new_session=True,
        )
        return await self._attend(child)

    @contextmanager
    def _file_of(self, message: Message) -> Iterator[tuple[BinaryIO, str]]:
        handle, path = new_payload_file(message, self._directory)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file, path
        finally:
            Path(path).unlink(missing_ok=True)

    async def _attend(self, child: asyncio.subprocess.Process) -> tuple[int, str]:
        said: deque[str] = deque(maxlen=_LINES)
        listening = asyncio.create_task(_listen(child, said))
        try:
            code = await child.wait()
            await asyncio.wait({listening}, timeout=_LAST_WORDS_S)
        except asyncio.CancelledError:
            await _end(child)
            raise
        finally:
            listening.cancel()
        return code, "\n".join(said)


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")


async def _listen(child: asyncio.subprocess.Process, said: deque[str]) -> None:
    """Pass stderr on as it comes, and keep its end."""
    assert child.stderr is not None
    while True:
        try:
            line = await child.stderr.readline()
        except ValueError:  # a line longer than the reader's buffer, which is dropped
            continue
        if not line:
            return
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        if text := line.decode("utf-8", "replace").strip():
            said.append(text[:_LINE])


async def _end(child: asyncio.subprocess.Process) -> None:
    """With everything it started. Told twice to end, it is not waited for."""
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


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


# --- Telling of it -------------------------------------------------------------------------------------------------


def _tell(cli: CommandSession, message: Message, outcome: Outcome) -> None:
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
    comes_back = outcome.retry_at is not None and outcome.kind in (OutcomeKind.RETRIED, OutcomeKind.DEFERRED)
    again = f", again at {_clock_text(outcome.retry_at or 0)}" if comes_back else ""
    why = f": {' | '.join(outcome.error.splitlines())[:200]}" if outcome.error else ""
    took = duration_text(round(outcome.seconds * 1_000))
    cli.output.note(f"{at} {outcome.kind} {message.id} attempt {message.attempt} after {took}{again}{why}")


def _clock_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().strftime("%H:%M:%S")
