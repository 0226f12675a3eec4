"""Drivers (driver.py) side by side, each given one job after the other."""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.machinery.disk.driver import Done, Job
from tests.machinery.disk.shim import build_shim

# Stores made for a moment lie in memory where there is room for them: the shim says what a disk would have kept.
_MEMORY = Path("/dev/shm")
_ROOM = 256 << 20
_DRIVER = "from tests.machinery.disk.driver import main; main()"


def make_place(prefix: str = "holdfast-disk-") -> tempfile.TemporaryDirectory[str]:
    memory = str(_MEMORY) if _has_room(_MEMORY) else None
    return tempfile.TemporaryDirectory(prefix=prefix, dir=memory, ignore_cleanup_errors=True)


def _has_room(path: Path) -> bool:
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= _ROOM and os.access(path, os.W_OK)


class Workers:
    def __init__(self, processes: int = 1) -> None:
        self._stack = ExitStack()
        environment = {**os.environ, "LD_PRELOAD": str(build_shim())}
        self._started: list[subprocess.Popen[bytes]] = []
        for _ in range(processes):
            started = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._started.append(started)
            self._stack.callback(_end, started)

    def run(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """Run jobs, and yield their results in the order in which they end."""
        waiting = iter(jobs)
        with selectors.DefaultSelector() as selector:
            for worker in self._started:
                self._give(worker, waiting, selector)
            while selector.get_map():
                for key, _ in selector.select():
                    worker = key.data
                    done = _answer(worker)
                    selector.unregister(worker.stdout)
                    self._give(worker, waiting, selector)
                    yield done

    def call(self, task: str, **arguments: object) -> Done:
        [done] = self.run([Job(number=0, task=task, arguments=arguments)])
        return done

    def _give(self, worker: subprocess.Popen[bytes], waiting: Iterator[Job], selector: selectors.BaseSelector) -> None:
        job = next(waiting, None)
        if job is None:
            return
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(msgspec.json.encode(job) + b"\n")
        worker.stdin.flush()
        selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def _answer(worker: subprocess.Popen[bytes]) -> Done:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a driver ended before it answered, with status {worker.wait(5)}")
    return msgspec.json.decode(line, type=Done)


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    try:
        worker.wait(5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()
