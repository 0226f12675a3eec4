"""Threads that a program's end need not wait for: a handler that never returns must not keep the worker alive."""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """As many as are busy at once, each used again. Whoever submits keeps to a bound."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"holdfast-{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        self._jobs.put(job)

    def close(self) -> None:
        """Those that are idle end; those at work, when they are done."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1
