"""Sweeps: return expired leases, end TTLs, remove old keys and events, and finish the deletion of queues."""

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.runtime import Runtime
from holdfast.stores.contract import Store

# The maximum number of changes per sweep, so that no caller waits long for one.
SWEEP_LIMIT = 1_000
# The minimum time between two sweeps. Under load many deadlines are close together, and one sweep serves them all.
# Claims do not depend on it: a claim returns the expired leases of its own queue.
_PAUSE_MS = 100


class Sweeper:
    """A background part that sweeps a store. It sleeps until the next deadline."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._timer: Timer | None = None
        self._wakes_at: int | None = None
        self._not_before = 0
        self._backoff = Backoff("sweep")
        self._is_closed = False

    def deadline(self, at_ms: int) -> None:
        """Take note of a deadline at `at_ms`. The store calls it."""
        at_ms = max(at_ms, self._not_before)
        if self._is_closed or (self._wakes_at is not None and self._wakes_at <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at_ms
        self._timer = self._runtime.call_at(at_ms, self._wake)

    def close(self) -> None:
        """Stop sweeping."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def sweep_once(self) -> int:
        """Run one sweep of at most `SWEEP_LIMIT` changes, and return their number."""
        now_ms = self._runtime.clock.now_ms()
        self._not_before = now_ms + _PAUSE_MS
        swept = await self._store.sweep(SWEEP_LIMIT, now_ms)
        if swept.changed >= SWEEP_LIMIT:
            self._not_before = now_ms
        if swept.next_at is not None:
            self.deadline(swept.next_at)
        return swept.changed

    def _wake(self) -> None:
        self._timer = self._wakes_at = None
        if not self._is_closed:
            self._runtime.spawn(self._sweep())

    async def _sweep(self) -> None:
        if self._is_closed:
            return
        try:
            await self.sweep_once()
        except Exception as error:
            self._try_again(error)
        else:
            self._backoff.succeeded()

    def _try_again(self, error: Exception) -> None:
        if self._is_closed:
            return  # the store was closed during the sweep; the next start sweeps again
        # Deadlines that are reported meanwhile must not end the pause.
        self._not_before = self._runtime.clock.now_ms() + self._backoff.failed(error)
        self.deadline(self._not_before)
