"""The runtime on an asyncio event loop."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from holdfast.clock import Alarm, Clock, Timer, seconds_until
from holdfast.runtime.contract import T, Ticket, Work
from holdfast.runtime.executors import ThreadExecutors

_log = logging.getLogger("holdfast")


class LoopRuntime:
    """Runs the core on the event loop in which it was made."""

    has_turns = may_block_at_turn_end = True
    callers_have_threads = may_run_unlocked = False

    def __init__(self, clock: Clock, alarm: Alarm | None = None) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._alarm = alarm
        self._tasks: set[asyncio.Task[None]] = set()
        self._executors, self._long_executors = (
            ThreadExecutors("holdfast-offload"),
            ThreadExecutors("holdfast-offload-long"),
        )

    def ticket(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def spawn(self, work: Work[None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        if self._alarm is not None and at_ms > self.clock.now_ms():
            return self._alarm.call_at(at_ms, callback)
        return _LoopTimer(self._loop, self.clock, at_ms, callback)

    def offload(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        return self._loop.run_in_executor(self._executors[thread], function)

    def run_unlocked(self, function: Callable[[], T]) -> T:
        raise RuntimeError("a step on an event loop has no thread of its own")

    def offload_long(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        return self._loop.run_in_executor(self._long_executors[thread], function)

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    async def idle(self) -> None:
        """Wait until all background work has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Wait until all background work has ended, and end the threads."""
        await self.idle()
        self._executors.shutdown()
        self._long_executors.shutdown()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_work_failed", exc_info=error)


class _LoopTimer:
    """A timer that reads the clock when the loop calls it, and waits again if it is too early.

    A single wait of the loop is limited, and the loop's time may differ from that of the clock.
    """

    __slots__ = ("_at_ms", "_callback", "_clock", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, at_ms: int, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._at_ms = at_ms
        self._callback = callback
        self._handle = loop.call_later(seconds_until(at_ms, clock), self._check)

    def cancel(self) -> None:
        self._handle.cancel()

    def _check(self) -> None:
        if self._clock.now_ms() < self._at_ms:
            self._handle = self._loop.call_later(seconds_until(self._at_ms, self._clock), self._check)
        else:
            self._callback()
