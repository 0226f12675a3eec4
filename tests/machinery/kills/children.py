"""Processes to be killed, forked from one that has imported everything: a start takes no time worth the name."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# A process that says nothing for so long hangs.
PATIENCE_S = 60.0


class Children:
    """Processes of one module, one at a time. Only what was begun here is ever killed."""

    def __init__(self, module: str, errors: Path) -> None:
        self._module = module
        self._errors = errors
        self._pid: int | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._mother = subprocess.Popen(
                [sys.executable, "-m", "tests.machinery.kills.mother", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
        self._input.close()
        try:
            self._mother.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._mother.kill()
            self._mother.wait(PATIENCE_S)
        self._output.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self._mother.stdin is not None
        return self._mother.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._mother.stdout is not None
        return self._mother.stdout

    def begin(self, *arguments: object) -> None:
        assert self._pid is None, "one is running"
        self._input.write(json.dumps([str(each) for each in arguments]).encode() + b"\n")
        self._input.flush()
        self._pid = int(self.wait_for("pid ").split()[1])

    def wait_for(self, words: str) -> str:
        """The first line with these words in it; others may come before."""
        line = self._line(words, PATIENCE_S)
        if line is None:
            raise AssertionError(f"the process did not come to {words!r} in {PATIENCE_S:.0f} s: {self._said()}")
        return line

    def comes_to(self, words: str) -> bool:
        """Wait for words, and return False if the process ends before it prints them."""
        try:
            self.wait_for(words)
        except AssertionError:
            if self._pid is not None:
                raise
            return False
        return True

    def check_alive(self) -> None:
        line = self._line("ended ", 0.0)
        if line is not None:
            self._pid = None
            raise AssertionError(f"the process ended by itself ({line}): {self._said()}")

    def kill_after(self, seconds: float, *, may_have_ended: bool = False) -> None:
        """SIGKILL after so long; that it ends before by itself is a fault, unless it may."""
        line = self._line("ended ", seconds)
        if line is not None:
            self._pid = None
            if may_have_ended:
                return
            raise AssertionError(f"the process ended by itself ({line}): {self._said()}")
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        self.wait_for("ended ")
        self._pid = None

    def finish(self) -> None:
        """Until it has ended by itself, in order."""
        line = self.wait_for("ended ")
        self._pid = None
        if line != "ended 0":
            raise AssertionError(f"the process failed ({line}): {self._said()}")

    def _line(self, words: str, seconds: float) -> str | None:
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                text = line.decode("utf-8", "replace")
                if words in text:
                    return text
                if text.startswith("ended "):
                    self._pid = None
                    raise AssertionError(f"the process ended ({text}) before {words!r}: {self._said()}")
                continue
            ready, _, _ = select.select([self._output], [], [], seconds)
            piece = os.read(self._output.fileno(), 1 << 16) if ready else b""
            if not ready:
                return None
            if not piece:
                self._pid = None
                raise AssertionError(f"the mother of the processes ended before {words!r}: {self._said()}")
            self._unread += piece

    def _said(self) -> str:
        return self._errors.read_text(errors="replace")[-4_000:]
