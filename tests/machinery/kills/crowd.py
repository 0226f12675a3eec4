"""A handle on the process with all the clients, for the test that kills their servers."""

import select
import subprocess
import sys
from pathlib import Path

from tests.machinery.kills.children import PATIENCE_S
from tests.machinery.kills.load import MAX_BACKLOG

# Every message of the backlog is claimed and acked, on machines that have other work as well.
_DRAIN_S = 4 * PATIENCE_S


class Crowd:
    """Clients of these servers, at work from the start. That they end by themselves is a fault."""

    def __init__(
        self,
        urls: list[str],
        history: Path,
        seed: int,
        errors: Path,
        *,
        retries: int = 0,
        lease_factor: int = 1,
        max_backlog: int = MAX_BACKLOG,
        patience_s: int = 0,
    ) -> None:
        self._errors = errors
        arguments = [",".join(urls), history, seed, retries, lease_factor, max_backlog, patience_s]
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.machinery.kills.clients", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def wait_until_working(self) -> None:
        self._wait_for(b"working\n")

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"the clients ended by themselves: {self._told()}")

    def drain(self) -> None:
        """Let them stop, and take what is left in the queues. Every server is up."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait_for(b"drained\n", _DRAIN_S)
        if self._process.wait(PATIENCE_S):
            raise AssertionError(f"the clients failed: {self._told()}")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _wait_for(self, word: bytes, patience_s: float = PATIENCE_S) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience_s)
        said = self._process.stdout.readline() if ready else b""
        if said != word:
            raise AssertionError(f"the clients did not come to {word!r} but to {said!r}: {self._told()}")

    def _told(self) -> str:
        return self._errors.read_text(errors="replace")[-4_000:]
