"""Where the calls of a client run: on an event loop, or in the threads that make them.

The code of a call is the same for both. It waits for nothing but what is here and in its connection, so in a thread it
never suspends: `run_inline` carries it from its first line to its last.
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
    """Something to wait for, again and again."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    async def wait(self, at_most_s: float | None) -> None: ...


class Tasks(Protocol):
    # In a forked child it can begin anew at once. An event loop cannot: it is the parent's.
    survives_fork: bool

    async def sleep(self, seconds: float) -> None:
        """Wait; less long if the client is closed meanwhile, where that can be noticed."""

    def spawn(self, work: Work) -> None:
        """Run work that no caller's leaving ends; closing waits for it."""

    async def see_off(self, work: Work, at_most_s: float) -> None:
        """Spawn, and wait for the end of the work, but not longer than that."""

    async def idle(self) -> None:
        """Wait until all that was spawned has ended."""

    def end_sleeps(self) -> None:
        """The client is closed: let those who sleep find out."""

    def coalescer(self, send: Send[In, Out], size_of: Callable[[In], int]) -> Coalescer[In, Out]: ...

    def event(self) -> WakeFlag: ...


class LoopTasks:
    """On the running loop."""

    survives_fork = False

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sleep = asyncio.sleep

    def spawn(self, work: Work) -> None:
        self._start(work)

    async def see_off(self, work: Work, at_most_s: float) -> None:
        await asyncio.wait({self._start(work)}, timeout=at_most_s)

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def end_sleeps(self) -> None:
        pass  # a caller that sleeps can be cancelled

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
            _log_left(error)


class ThreadTasks:
    """In the calling threads. A thread is started only for work that outlives its caller."""

    survives_fork = True

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._is_closed = threading.Event()

    async def sleep(self, seconds: float) -> None:
        self._is_closed.wait(seconds)

    def spawn(self, work: Work) -> None:
        self._start(work)

    async def see_off(self, work: Work, at_most_s: float) -> None:
        if (thread := self._start(work)) is not None:
            thread.join(at_most_s)

    async def idle(self) -> None:
        while self._threads:
            for thread in list(self._threads):
                thread.join()

    def end_sleeps(self) -> None:
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
        except RuntimeError:  # the interpreter is on its way out, or the system has no more threads
            self._threads.discard(thread)
            work.close()
            return None
        return thread

    def _run(self, work: Work) -> None:
        try:
            run_inline(work)
        except Exception as error:
            _log_left(error)
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


def _log_left(error: BaseException) -> None:
    if isinstance(error, HoldfastError):
        _log.warning("what a caller left behind could not be given back: %s", error.message)
    else:
        _log.error("background work failed", exc_info=error)
