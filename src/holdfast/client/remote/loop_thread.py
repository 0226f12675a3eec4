"""The blocking API over a protocol that needs an event loop: the loop runs in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.forking import cut_off, listen_for_forks
from holdfast.model.errors import StoreUnavailable

T = TypeVar("T")

# For a call that was interrupted, or cut off by closing, to come to its end.
_INTERRUPTED_S = 2.0


class Renewable(Transport, Protocol):
    def begin(self) -> None:
        """Use the running loop from now on, over connections that are still to be made."""


def open_in_thread(inner: AsyncHoldfast) -> Holdfast:
    """Return the blocking client over an async one that connects to a server."""

    def begin() -> None:
        if inner._transport is not None:
            cast("Renewable", inner._transport).begin()

    thread = LoopThread(begin)
    return Holdfast(inner, BlockingDriver(thread.run, thread.close, lambda: thread.is_inherited))


class LoopThread:
    """An event loop in a thread of its own, to which blocking calls hand their coroutines.

    In a forked child the first call starts another loop and thread; `begin` then runs on that loop, to connect anew.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self.is_inherited = False
        # The parent's loops, kept in a child: freed, each would warn that it is open.
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
        # Another thread of the parent may have held the old one.
        self._starting = threading.Lock()
        self._inherited.append(self._loop)
        cut_off(self._loop)

    def _start_anew(self) -> None:
        with self._starting:
            if not self.is_inherited:
                return  # another thread was first
            self._start()
            asyncio.run_coroutine_threadsafe(_call(self._begin), self._loop).result()
            self.is_inherited = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_inherited:
            self._start_anew()
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise StoreUnavailable(self._refusal())
        is_over = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_until_over(work, is_over), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # Ctrl-C: the call gives back what it may hold, then the interruption goes on
                future.cancel()
                is_over.wait(_INTERRUPTED_S)
            raise

    def close(self) -> None:
        """Calls of other threads that are still under way come to their end first."""
        if self.is_inherited or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_all_over(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _refusal(self) -> str:
        if self._loop.is_closed():
            return "this client is closed: open another"
        return "the blocking API was called from within its own event loop: use holdfast.open_async there"


async def _call(function: Callable[[], None]) -> None:
    function()


async def _until_over(work: Coroutine[Any, Any, T], is_over: threading.Event) -> T:
    try:
        return await work
    finally:
        is_over.set()


async def _all_over() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=_INTERRUPTED_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
