"""A process of a server, as the process that started it knows it.

They talk by its standard input and output:

    in      its task (a pickled struct, behind 8 bytes of length), then a line "drain" when it is to end
    out     one line of JSON (`ProcessState`): that it serves, or why it cannot

The end of its input means that the process that started it is gone.
"""

import asyncio
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.server.ending import OVERTIME, leave
from holdfast.wire.errors import error_document, error_of

_LENGTH_BYTES: Final = 8
_DRAIN: Final = b"drain\n"
# A process loads its modules, and may recover a log or fetch keys, before it serves.
_START_S = 60.0


class ProcessState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The line that a process writes once its start is decided."""

    is_serving: bool
    # The error's document.
    error: dict[str, Any] | None = None


class ChildProcess:
    """One place among the processes of a server, and the process that fills it."""

    def __init__(self, program: str, title: str) -> None:
        """`program` is the module to run, and `title` names the process in errors."""
        self._program = program
        self._title = title
        self._process: Process | None = None

    async def start(self, task: object, *, descriptors: tuple[int, ...] = (), within_s: float = _START_S) -> None:
        """Start the process with its task, and wait until it serves. Raise its error if it cannot.

        `descriptors` are open files that it gets under the same numbers.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._program),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=descriptors,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        body = pickle.dumps(task)
        with suppress(ConnectionError):  # it has ended: its state says so, or is missing
            process.stdin.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
            await process.stdin.drain()
        try:
            async with asyncio.timeout(within_s):
                line = await process.stdout.readline()
        except TimeoutError:
            await self.end_within(0)
            raise Unavailable(f"{self._title} did not start within {within_s:g} s") from None
        if not line:
            raise Unavailable(f"{self._title} ended as it started: the log above says why")
        state = msgspec.json.decode(line, type=ProcessState)
        if not state.is_serving:
            raise error_of(state.error)

    async def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def drain(self) -> None:
        """Let the process end in order."""
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(_DRAIN)

    async def end_within(self, seconds: float) -> int:
        """Wait for the end of the process, and kill it after so long. Return its exit code."""
        process = self._process
        if process is None:
            return 0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await process.wait()
        self.kill()
        return await process.wait()


# --- In the process itself -------------------------------------------------------------------------------------------


async def open_control() -> asyncio.StreamReader:
    """Return the standard input of this process."""
    control = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(control), sys.stdin)
    return control


async def read_task(control: asyncio.StreamReader) -> Any:
    """Return the task of this process."""
    length = int.from_bytes(await control.readexactly(_LENGTH_BYTES), "big")
    # From the process that started this one, by a pipe that no other has.
    return pickle.loads(await control.readexactly(length))


async def obey(control: asyncio.StreamReader, stop: Callable[[], None]) -> None:
    """Call `stop` when this process is to end. Exit at once if the process that started it is gone."""
    while line := await control.readline():
        if line == _DRAIN:
            stop()
    leave(OVERTIME)


def report_serving() -> None:
    """Say that this process serves."""
    _report_state(ProcessState(True))


def report_error(error: HoldfastError) -> None:
    """Say why this process cannot serve."""
    _report_state(ProcessState(False, error_document(error)))


def _report_state(state: ProcessState) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
    sys.stdout.flush()
