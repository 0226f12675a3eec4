"""The two ways in which a client runs its calls: on an event loop, or in the calling threads.

The code of a call is the same for both. It waits only in the methods of this module and of its connection. In a thread
these block, so the coroutine never suspends and `run_inline` runs it to its end.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from holdfast.client.remote.coalesce import Coalescer, LoopCoalescer, ThreadCoalescer
from holdfast.model.errors import HoldfastError
from holdfast.runtime import run_inline

_log = logging.getLogger("holdfast")

In = TypeVar("In")
Out = TypeVar("Out")

Work = Coroutine[Any, Any, None]
Send = Callable[[list[In]], Awaitable[list[Out]]]


class WakeFlag(Protocol):
    """An event that can be set and cleared repeatedly."""

    def set(self) -> None: ...

    def clear(self) -> None:
        """Clear the flag."""

    async def wait(self, at_most_s: float | None) -> None:
        """Wait until the flag is set, but at most `at_most_s` seconds; None waits for ever."""


class Tasks(Protocol):
    """Sleeps, background work and shared requests of a client."""

    # A forked child can start again at once. With an event loop it cannot, because the loop belongs to the parent.
    survives_fork: bool

    async def sleep(self, seconds: float) -> None:
        """Wait. In threads, return early if the client is closed."""

    def spawn(self, work: Work) -> None:
        """Run work in the background. The cancellation of a caller does not reach it, and `close` waits for it."""

    async def spawn_and_wait(self, work: Work, at_most_s: float) -> None:
        """Spawn work, and wait for its end for at most `at_most_s` seconds."""

    async def join(self) -> None:
        """Wait until all spawned work has ended."""

    def wake_sleepers(self) -> None:
        """End the sleeps of callers, because the client is closed."""

    def coalescer(self, send: Send[In, Out], size_of: Callable[[In], int]) -> Coalescer[In, Out]:
        """Return a coalescer for calls that may share a request. `size_of` returns an item's size in bytes."""

    def event(self) -> WakeFlag:
        """Return a flag that one caller waits for."""


class LoopTasks:
    """The tasks of a client on the running event loop."""

    survives_fork = False

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sleep = asyncio.sleep

    def spawn(self, work: Work) -> None:
        self._start(work)

    async def spawn_and_wait(self, work: Work, at_most_s: float) -> None:
        await asyncio.wait({self._start(work)}, timeout=at_most_s)

    async def join(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def wake_sleepers(self) -> None:
        pass  # on a loop, a sleeping caller can be cancelled

    def coalescer(self, send: Send[In, Out], size_of: Callable[[In], int]) -> Coalescer[In, Out]:
        return LoopCoalescer(send, size_of, self.spawn)

    def event(self) -> WakeFlag:
        return _LoopWakeFlag()

    def _start(self, work: Work) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log_failure(error)


class ThreadTasks:
    """The tasks of a client in the calling threads. Only background work gets a thread of its own."""

    survives_fork = True

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._is_closed = threading.Event()

    async def sleep(self, seconds: float) -> None:
        self._is_closed.wait(seconds)

    def spawn(self, work: Work) -> None:
        self._start(work)

    async def spawn_and_wait(self, work: Work, at_most_s: float) -> None:
        if (thread := self._start(work)) is not None:
            thread.join(at_most_s)

    async def join(self) -> None:
        while self._threads:
            for thread in list(self._threads):
                thread.join()

    def wake_sleepers(self) -> None:
        self._is_closed.set()

    def coalescer(self, send: Send[In, Out], size_of: Callable[[In], int]) -> Coalescer[In, Out]:
        return ThreadCoalescer(send, size_of)

    def event(self) -> WakeFlag:
        return _ThreadWakeFlag()

    def _start(self, work: Work) -> threading.Thread | None:
        thread = threading.Thread(target=lambda: self._run(work), name="holdfast-client", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or the system has no more threads
            self._threads.discard(thread)
            work.close()
            return None
        return thread

    def _run(self, work: Work) -> None:
        try:
            run_inline(work)
        except Exception as error:
            _log_failure(error)
        finally:
            self._threads.discard(threading.current_thread())


class _LoopWakeFlag:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set, self.clear = self._event.set, self._event.clear

    async def wait(self, at_most_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._event.wait()


class _ThreadWakeFlag:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.set, self.clear = self._event.set, self._event.clear

    async def wait(self, at_most_s: float | None) -> None:
        self._event.wait(at_most_s)


def _log_failure(error: BaseException) -> None:
    if isinstance(error, HoldfastError):
        _log.warning("give_back_failed error=%s: the messages return when their leases expire", error.message)
    else:
        _log.error("background_work_failed", exc_info=error)
