"""The blocking API over a protocol that needs an event loop, which runs in its own thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.forking import disconnect_loop, listen_for_forks
from holdfast.model.errors import StoreUnavailable

T = TypeVar("T")

# How long a call may take to end after it was interrupted, or cancelled because the client is closed.
_INTERRUPTED_S = 2.0


class Renewable(Transport, Protocol):
    """A transport that can start again on another event loop."""

    def begin(self) -> None:
        """Start on the running loop. Connections are made later, when they are needed."""


def open_in_thread(inner: AsyncHoldfast) -> Holdfast:
    """Return the blocking client over an async one that connects to a server."""

    def begin() -> None:
        if inner._transport is not None:
            cast("Renewable", inner._transport).begin()

    thread = LoopThread(begin)
    return Holdfast(inner, BlockingDriver(thread.run, thread.close, lambda: thread.is_inherited))


class LoopThread:
    """An event loop in its own thread, on which blocking calls run their coroutines.

    In a forked child the first call starts another loop and thread. `begin` then runs on that loop and connects again.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self.is_inherited = False
        # References to the parent's loops, because freeing an open one logs a warning.
        self._inherited: list[asyncio.AbstractEventLoop] = []
        self._starting = threading.Lock()
        self._start()
        listen_for_forks(self)

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        if self._loop.is_closed():
            return
        self.is_inherited = True
        # A thread of the parent may have held the previous lock.
        self._starting = threading.Lock()
        self._inherited.append(self._loop)
        disconnect_loop(self._loop)

    def _restart(self) -> None:
        with self._starting:
            if not self.is_inherited:
                return  # another thread has already started it
            self._start()
            asyncio.run_coroutine_threadsafe(_call(self._begin), self._loop).result()
            self.is_inherited = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. Raise `StoreUnavailable` once the client is closed."""
        if self.is_inherited:
            self._restart()
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise StoreUnavailable(self._refusal())
        is_over = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_run_until_over(work, is_over), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # after Ctrl-C, the call gives back what it holds before the error is raised
                future.cancel()
                is_over.wait(_INTERRUPTED_S)
            raise

    def close(self) -> None:
        """Wait for open calls of other threads to end, and stop the loop."""
        if self.is_inherited or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_end_calls(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _refusal(self) -> str:
        if self._loop.is_closed():
            return "this client is closed; open another one"
        return "the blocking API was called on its own event loop; use holdfast.open_async there"


async def _call(function: Callable[[], None]) -> None:
    function()


async def _run_until_over(work: Coroutine[Any, Any, T], is_over: threading.Event) -> T:
    try:
        return await work
    finally:
        is_over.set()


async def _end_calls() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=_INTERRUPTED_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
