"""Client processes, as the benchmark sees them: started with a task, ready, finished, and in any case ended."""

import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from bench.peers.load import Task
from bench.peers.processes import interrupts_held

_ROOT = Path(__file__).parents[2]
# Until clients are ready, until what is waited for has come about, and until they have ended.
_PATIENCE_S = 120.0
_POLL_S = 0.002


class Clients:
    """Processes that are ready once the `with` block is entered, and gone once it is left."""

    def __init__(self, tasks: list[Task], log: Path) -> None:
        self._tasks = tasks
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for task in self._tasks:
                with interrupts_held():
                    self._start(task)
            for process in self._processes:
                self._read_line(process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Poll until something is so that the clients bring about."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise RuntimeError(self._failure())
            time.sleep(_POLL_S)

    def finish(self) -> list[float]:
        """Return the delays that all clients saw; they must have been told to stop."""
        lines = [self._read_line(process) for process in self._processes]
        return [delay_ms for line in lines for delay_ms in msgspec.json.decode(line, type=list[float])]

    def _start(self, task: Task) -> None:
        with self._log.open("ab") as log:
            # In a session of its own: after Ctrl-C the benchmark ends it.
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.peers.load"],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        task_input = cast("IO[bytes]", process.stdin)
        task_input.write(msgspec.json.encode(task) + b"\n")
        task_input.flush()

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        output = cast("IO[bytes]", process.stdout)
        # A client prints two lines, the second after it was told to stop: none lies unseen in the buffer.
        readable, _, _ = select.select([output], [], [], _PATIENCE_S)
        line = output.readline() if readable else b""
        if not line:
            raise RuntimeError(self._failure())
        return line

    def _failure(self) -> str:
        return f"a client failed, or did nothing for {_PATIENCE_S:.0f} s: {self._log.read_text()[-600:]}"

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
