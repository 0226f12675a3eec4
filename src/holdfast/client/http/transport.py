"""The transport to a server, and how it is opened."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from holdfast.client.blocking import Driver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.http.admin import HttpAdmin
from holdfast.client.http.calls import Calls
from holdfast.client.http.messages import HttpMessages
from holdfast.client.http.settings import HttpSettings, parse_http_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import StoreUnavailable

T = TypeVar("T")

# For a call that was interrupted, or cut off by closing, to come to its end.
_INTERRUPTED_S = 2.0


class HttpTransport:
    def __init__(self, settings: HttpSettings) -> None:
        self._calls = Calls(settings)
        self.messages = HttpMessages(self._calls, settings.wait_round_ms)
        self.admin = HttpAdmin(self._calls)

    async def close(self) -> None:
        await self._calls.close()


def open_http_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """No call is made yet: the server may come up later."""
    parsed = parse_http_settings(url, settings)

    async def connect() -> Transport:
        return HttpTransport(parsed)

    return AsyncHoldfast(connect)


def open_http(url: str, settings: Mapping[str, Any]) -> Holdfast:
    inner = open_http_on_loop(url, settings)
    thread = LoopThread()
    return Holdfast(inner, Driver(thread.run, thread.close))


class LoopThread:
    """An event loop in a thread of its own, to which blocking calls hand their coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._process != os.getpid() or self._loop.is_closed() or threading.current_thread() is self._thread:
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
        if self._process != os.getpid() or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_all_over(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _refusal(self) -> str:
        if self._process != os.getpid():
            return "this client was opened before the process forked, and its thread stayed behind: open another here"
        if self._loop.is_closed():
            return "this client is closed: open another"
        return "the blocking API was called from within its own event loop: use holdfast.open_async there"


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
