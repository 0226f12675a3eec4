"""Watches: callers that wait until a queue may have messages, without claiming them."""

from typing import Protocol

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime, Ticket


class NewsStream(Protocol):
    """A watch, as a door uses it. The one who opened it calls `close`, however it ends."""

    @property
    def is_closed(self) -> bool:
        """Return whether the watch has ended, so that `next` would return at once."""

    async def next(self, wait_ms: int) -> bool:
        """Return true once there may be something new to claim; false after `wait_ms` without news, or when closed."""

    def close(self) -> None: ...


class Watches:
    """The open watches of one server."""

    def __init__(self, dispatcher: Dispatcher, runtime: Runtime) -> None:
        self._dispatcher = dispatcher
        self._runtime = runtime
        # A dict, used as an ordered set: watches are closed in the order in which they were opened.
        self._open: dict[Watch, None] = {}
        self._is_closed = False

    def open(self, ref: QueueRef) -> "Watch":
        """Open a watch of a queue. Raise `StoreUnavailable` if the server is closing."""
        if self._is_closed:
            raise StoreUnavailable("this server is shutting down; watch again later")
        watch = Watch(self._dispatcher, self._runtime, self._open, ref)
        self._open[watch] = None
        return watch

    def close(self) -> None:
        """Close all watches, and refuse new ones."""
        self._is_closed = True
        for watch in list(self._open):
            watch.close()


class Watch:
    """The watch of one queue for one caller. Several notifications between two calls of `next` count as one."""

    def __init__(
        self, dispatcher: Dispatcher, runtime: Runtime, open_watches: "dict[Watch, None]", ref: QueueRef
    ) -> None:
        self._runtime = runtime
        self._open = open_watches
        self._is_notified = False
        self._ticket: Ticket[None] | None = None
        self._unwatch = dispatcher.watch(ref, self._notify)
        self.is_closed = False

    async def next(self, wait_ms: int) -> bool:
        """Wait until there may be new messages to claim.

        Return True if there may be; False after `wait_ms` without a notification, or if the watch is closed.
        """
        if not self._is_notified and not self.is_closed:
            ticket = self._ticket = self._runtime.ticket()
            timer = self._runtime.call_at(self._runtime.clock.now_ms() + wait_ms, self._wake)
            try:
                await ticket
            finally:
                timer.cancel()
                self._ticket = None
        was_notified, self._is_notified = self._is_notified, False
        return was_notified

    def close(self) -> None:
        """End the watch; a waiting `next` returns False."""
        if not self.is_closed:
            self.is_closed = True
            self._open.pop(self, None)
            self._unwatch()
            self._wake()

    def _notify(self) -> None:
        self._is_notified = True
        self._wake()

    def _wake(self) -> None:
        if self._ticket is not None and not self._ticket.done():
            self._ticket.set_result(None)
