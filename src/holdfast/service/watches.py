"""Watches: who wants to know that a queue has something, without claiming it."""

from typing import Protocol

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime, Ticket


class NewsStream(Protocol):
    """A watch, as a door uses it. The one who opened it calls `close`, however it ends."""

    @property
    def is_closed(self) -> bool: ...

    async def next(self, wait_ms: int) -> bool:
        """Return true once there may be something new to claim; false after `wait_ms` without news, or when closed."""

    def close(self) -> None: ...


class Watches:
    def __init__(self, dispatcher: Dispatcher, runtime: Runtime) -> None:
        self._dispatcher = dispatcher
        self._runtime = runtime
        # A dict for its order: they are closed in the order in which they came.
        self._open: dict[Watch, None] = {}
        self._is_closed = False

    def open(self, ref: QueueRef) -> "Watch":
        if self._is_closed:
            raise StoreUnavailable("this server is closing: watch again later")
        watch = Watch(self._dispatcher, self._runtime, self._open, ref)
        self._open[watch] = None
        return watch

    def close(self) -> None:
        self._is_closed = True
        for watch in list(self._open):
            watch.close()


class Watch:
    """One watcher's news of one queue. News that come while nobody waits for them are one piece of news."""

    def __init__(self, dispatcher: Dispatcher, runtime: Runtime, every: "dict[Watch, None]", ref: QueueRef) -> None:
        self._runtime = runtime
        self._every = every
        self._has_news = False
        self._ticket: Ticket[None] | None = None
        self._unwatch = dispatcher.watch(ref, self._tell)
        self.is_closed = False

    async def next(self, wait_ms: int) -> bool:
        if not self._has_news and not self.is_closed:
            ticket = self._ticket = self._runtime.ticket()
            timer = self._runtime.call_at(self._runtime.clock.now_ms() + wait_ms, self._wake)
            try:
                await ticket
            finally:
                timer.cancel()
                self._ticket = None
        had_news, self._has_news = self._has_news, False
        return had_news

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._every.pop(self, None)
            self._unwatch()
            self._wake()

    def _tell(self) -> None:
        self._has_news = True
        self._wake()

    def _wake(self) -> None:
        if self._ticket is not None and not self._ticket.done():
            self._ticket.set_result(None)
