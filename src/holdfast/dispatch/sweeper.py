"""Returns what expired: leases, TTLs, old keys and events, queues being deleted."""

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.runtime import Runtime
from holdfast.stores.contract import Store

# Work per sweep, so that no caller waits long behind one.
SWEEP_LIMIT = 1_000
# Deadlines fall close together under load; one sweep serves all within this time. Claims do not wait for it: a claim
# returns its own queue's expired leases.
_PAUSE_MS = 100


class Sweeper:
    """Sleeps until the store's next deadline; the store says when there is an earlier one."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._timer: Timer | None = None
        self._wakes_at: int | None = None
        self._not_before = 0
        self._backoff = Backoff("sweep")
        self._is_closed = False

    def deadline(self, at_ms: int) -> None:
        at_ms = max(at_ms, self._not_before)
        if self._is_closed or (self._wakes_at is not None and self._wakes_at <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at_ms
        self._timer = self._runtime.call_at(at_ms, self._wake)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def sweep_once(self) -> int:
        """One bounded pass; answers how much it changed."""
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
            return  # the store was closed during the sweep: the next start sweeps
        # Deadlines that callers report meanwhile must not end the pause.
        self._not_before = self._runtime.clock.now_ms() + self._backoff.failed(error)
        self.deadline(self._not_before)
