"""From the core's coroutines, which wait for tickets alone, to the driver's, which need an event loop.

On a `LoopRuntime` the driver shares the loop. On any other runtime it has a loop in a thread of its own, and what it
did comes back as a step of the runtime. Either way a call is the store's own work: no caller's cancellation reaches it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from holdfast.background import Backoff
from holdfast.forking import cut_off, listen_for_forks
from holdfast.runtime import Runtime, Ticket

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

# How long a closing store waits for calls that are under way.
_LAST_CALLS_S = 5.0

# The link whose work the current task does. The loop alone does not tell: on a `LoopRuntime` callers share it.
_current: ContextVar["LoopBridge | None"] = ContextVar("holdfast_link", default=None)


class LoopBridge:
    def __init__(self, runtime: Runtime, name: str = "holdfast-postgres") -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        # Calls that have not ended, and who waits for that.
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
        """A loop of our own loses its connections, which are the parent's. One that we share is its owner's."""
        if self._thread is not None and not self._loop.is_closed():
            cut_off(self._loop)

    @property
    def is_inside(self) -> bool:
        """Return whether the current task is the driver's own work, which may await its coroutines directly."""
        return _current.get() is self

    async def call(self, work: Work[T], then: Callable[[T], None] | None = None) -> T:
        """The result of `work`, done on the driver's loop. `then` is called with it in a step of the runtime, even if
        the caller has left."""
        ticket: Ticket[T] = self._runtime.ticket()
        if self._thread is None:
            self._runtime.spawn(self._work(work, ticket, then))
        else:
            self._loop.call_soon_threadsafe(self._start, self._work(work, ticket, then), self._tasks)
        return await ticket

    def background(self, work: Work[None]) -> None:
        """On the driver's loop until `close`, which cancels it."""
        if self._thread is None:
            self._start(work, self._background)
        else:
            self._loop.call_soon_threadsafe(self._start, work, self._background)

    def post(self, callback: Callable[[], None]) -> None:
        """From a step of the runtime: on the driver's loop, soon."""
        if self._thread is None:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    def enter(self, callback: Callable[[], None]) -> None:
        """From the driver's loop: a step of the runtime."""
        # The step, and the tasks that it starts, are callers of the store again.
        before = _current.set(None)
        try:
            if self._thread is None:
                callback()
            else:
                self._runtime.enter(callback)
        finally:
            _current.reset(before)

    async def close(self, last: Work[None]) -> None:
        """Cancel what runs in the background, let calls end that are under way, do `last`, and end."""

        async def end() -> None:
            for task in self._background:
                task.cancel()
            if self._background:
                await asyncio.wait(self._background)
            if self._calls > 1:  # but for this one
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
                # Loops survive their errors; this is work that nobody waits for and that is not tried again.
                Backoff("store", work=task.get_coro()).failed(error)

        context = copy_context()
        context.run(_current.set, self)
        task = self._loop.create_task(work, context=context)
        among.add(task)
        task.add_done_callback(ended)

    async def _work(self, work: Work[T], ticket: Ticket[T], then: Callable[[T], None] | None) -> None:
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
