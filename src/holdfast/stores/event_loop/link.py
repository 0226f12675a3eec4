"""The bridge from the core's coroutines, which wait for tickets only, to a driver's, which need an event loop.

On a `LoopRuntime` the driver shares the runtime's loop. On any other runtime it has a loop in a thread of its own, and
its results come back as steps of the runtime. In both cases a call is the store's own work, which a caller's
cancellation does not reach.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from holdfast.background import Backoff
from holdfast.forking import disconnect_loop, listen_for_forks
from holdfast.runtime import Runtime, Ticket

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

# How long a closing store waits for calls in progress.
_LAST_CALLS_S = 5.0

# The link whose work the current task does. The loop is not enough to tell: on a `LoopRuntime` callers share it.
_current: ContextVar["LoopBridge | None"] = ContextVar("holdfast_link", default=None)


class LoopBridge:
    """The bridge between a runtime and a driver's event loop."""

    def __init__(self, runtime: Runtime, name: str = "holdfast-postgres") -> None:
        """`name` is the name of the thread, if the driver needs one."""
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        # Calls in progress, and the future that `close` waits for.
        self._calls = 0
        self._all_ended: asyncio.Future[None] | None = None
        if runtime.has_turns:
            self._loop = asyncio.get_running_loop()
        else:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
            self._thread.start()
        listen_for_forks(self)

    def forked(self) -> None:
        """In a forked child, cut the connections of the driver's own loop: they are the parent's. A shared loop is its
        owner's concern."""
        if self._thread is not None and not self._loop.is_closed():
            disconnect_loop(self._loop)

    @property
    def is_inside(self) -> bool:
        """Return whether the current task is the driver's own work, which may await its coroutines directly."""
        return _current.get() is self

    async def call(self, work: Work[T], then: Callable[[T], None] | None = None) -> T:
        """Run `work` on the driver's loop, and return its result. `then` is called with the result in a step of the
        runtime, even if the caller has left."""
        ticket: Ticket[T] = self._runtime.ticket()
        if self._thread is None:
            self._runtime.spawn(self._work(work, ticket, then))
        else:
            self._loop.call_soon_threadsafe(self._start, self._work(work, ticket, then), self._tasks)
        return await ticket

    def background(self, work: Work[None]) -> None:
        """Run `work` on the driver's loop until `close`, which cancels it."""
        if self._thread is None:
            self._start(work, self._background)
        else:
            self._loop.call_soon_threadsafe(self._start, work, self._background)

    def post(self, callback: Callable[[], None]) -> None:
        """From a step of the runtime: call back on the driver's loop, soon."""
        if self._thread is None:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    def enter(self, callback: Callable[[], None]) -> None:
        """From the driver's loop: call back in a step of the runtime."""
        # The step, and the tasks that it starts, count as callers of the store again.
        before = _current.set(None)
        try:
            if self._thread is None:
                callback()
            else:
                self._runtime.call_from_thread(callback)
        finally:
            _current.reset(before)

    async def close(self, last: Work[None]) -> None:
        """Cancel background work, wait at most 5 s for calls in progress, run `last`, and end the loop if it is the
        driver's own."""

        async def end() -> None:
            for task in self._background:
                task.cancel()
            if self._background:
                await asyncio.wait(self._background)
            if self._calls > 1:  # this one is still in progress
                self._all_ended = self._loop.create_future()
                await asyncio.wait([self._all_ended], timeout=_LAST_CALLS_S)
            await last

        await self.call(end())
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _start(self, work: Work[None], among: set[asyncio.Task[None]]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            among.discard(task)
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                # Loops survive their errors. This is single work without a waiting call, and it is not retried.
                Backoff("store", work=task.get_coro()).failed(error)

        context = copy_context()
        context.run(_current.set, self)
        task = self._loop.create_task(work, context=context)
        among.add(task)
        task.add_done_callback(ended)

    async def _work(self, work: Work[T], ticket: Ticket[T], then: Callable[[T], None] | None) -> None:
        """Run a call, and settle its ticket in a step of the runtime."""
        error: BaseException | None = None
        _current.set(self)  # of this task alone
        self._calls += 1
        try:
            value = await work
        except BaseException as raised:  # the ticket's owner raises it
            error = raised
        self._calls -= 1
        if self._calls == 1 and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

        def settle() -> None:
            failure = error
            if failure is None and then is not None:
                try:
                    then(value)
                except Exception as raised:
                    failure = raised
            if ticket.done():
                return  # the caller left
            if failure is not None:
                ticket.set_exception(failure)
            else:
                ticket.set_result(value)

        self.enter(settle)
