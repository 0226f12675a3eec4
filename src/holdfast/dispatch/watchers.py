"""Watchers of a queue: callbacks that run when it may have messages to claim."""

import logging
from collections.abc import Callable

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.model.errors import Refused
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import Runtime
from holdfast.stores.contract import Store
from holdfast.stores.values import Claims

_log = logging.getLogger("holdfast")

Callback = Callable[[], None]

# A claim of no messages. Its result has the instant of the next message that comes due.
_PROBE = ClaimRequest(limit=0)
# The instant of a timer that fires as soon as possible.
_SOON = 0


class _Watched:
    """A queue with watchers."""

    __slots__ = ("backoff", "callbacks", "is_looking", "next_look", "ref", "timer", "wakes_at")

    def __init__(self, ref: QueueRef) -> None:
        self.ref = ref
        self.callbacks: dict[object, Callback] = {}
        self.timer: Timer | None = None
        self.wakes_at: int | None = None
        self.is_looking = False
        self.backoff = Backoff("watchers", queue=ref)
        self.next_look: Timer | None = None


class Watchers:
    """The watchers of all queues.

    The watchers of a queue are called when the store notifies that messages may be ready, and when the next delayed
    message comes due. Several notifications before a call lead to one call. While a ready message is unclaimed, other
    messages that come due lead to no further call.

    The result of a claim that got messages does not say when the next delayed message comes due. After such a claim on
    a watched queue the store is therefore asked once more. Otherwise a watch needs no calls of the store.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._watched: dict[QueueRef, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def __contains__(self, ref: QueueRef) -> bool:
        return ref in self._watched

    def watch(self, ref: QueueRef, callback: Callback) -> Callback:
        """Begin a watch, and return a function that ends it. Messages that are ready already lead to no call."""
        watched = self._watched.get(ref)
        if watched is None:
            watched = self._watched[ref] = _Watched(ref)
        watched.callbacks[key := object()] = callback
        self._look(watched)

        def unwatch() -> None:
            if watched.callbacks.pop(key, None) is not None and not watched.callbacks:
                self._drop(watched)

        return unwatch

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """Take note that messages may be ready from `at_ms` on. The callbacks run after the step of the store."""
        watched = self._watched.get(ref)
        if watched is not None:
            self._arm(watched, at_ms)

    def wake_all(self) -> None:
        """Call all watchers soon."""
        for watched in self._watched.values():
            self._arm(watched, _SOON)

    def claimed(self, ref: QueueRef, claims: Claims) -> None:
        """Take note of the result of a claim. The store does not notify of claims."""
        watched = self._watched.get(ref)
        if watched is None:
            return
        if any(claims.per_ask):
            self._look(watched)
        elif claims.next_at is not None and claims.next_at > self._runtime.clock.now_ms():
            self._arm(watched, claims.next_at)

    def close(self) -> None:
        """End all watches."""
        for watched in list(self._watched.values()):
            watched.callbacks.clear()
            self._drop(watched)

    def _arm(self, watched: _Watched, at_ms: int) -> None:
        if at_ms <= self._runtime.clock.now_ms():
            at_ms = _SOON
        if watched.wakes_at is not None and watched.wakes_at <= at_ms:
            return
        if watched.timer is not None:
            watched.timer.cancel()
        watched.wakes_at = at_ms
        watched.timer = self._runtime.call_at(at_ms, lambda: self._notify(watched))

    def _notify(self, watched: _Watched) -> None:
        watched.timer = watched.wakes_at = None
        for callback in list(watched.callbacks.values()):
            try:
                callback()
            except Exception:  # the other watchers must still be called
                _log.exception("watch_callback_failed")
        if watched.callbacks:
            self._look(watched)

    def _look(self, watched: _Watched) -> None:
        if not watched.is_looking:
            watched.is_looking = True
            self._runtime.spawn(self._look_once(watched))

    async def _look_once(self, watched: _Watched) -> None:
        """Ask the store when the next delayed message comes due, and set a timer for it."""
        # Cleared before the store is asked, so that a change meanwhile leads to another look.
        watched.is_looking = False
        now_ms = self._runtime.clock.now_ms()
        try:
            next_at = (await self._store.claim(watched.ref, [_PROBE], now_ms)).next_at
        except Refused:
            return  # the queue is being deleted, so no message comes due
        except Exception as error:
            self._look_again(watched, error)
            return
        watched.backoff.succeeded()
        if watched.callbacks and next_at is not None and next_at > now_ms:
            self._arm(watched, next_at)

    def _look_again(self, watched: _Watched, error: Exception) -> None:
        if watched.callbacks:
            again_at = self._runtime.clock.now_ms() + watched.backoff.failed(error)
            if watched.next_look is not None:
                watched.next_look.cancel()
            watched.next_look = self._runtime.call_at(again_at, lambda: self._look(watched))

    def _drop(self, watched: _Watched) -> None:
        if watched.next_look is not None:
            watched.next_look.cancel()
        if watched.timer is not None:
            watched.timer.cancel()
        watched.timer = watched.wakes_at = None
        if self._watched.get(watched.ref) is watched:
            del self._watched[watched.ref]
