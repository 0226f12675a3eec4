"""Limits and weights that another server set: where a store is shared, they are read again now and then.

What a tenant may do is looked at every few seconds; the policies of queues tenant by tenant, in turn, so that a store
with many of them is not asked for all at once.
"""

import math

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.runtime import Runtime
from holdfast.service.directory import PolicyCache

REFRESH_MS = 5_000
# After so many passes every queue was looked at.
_PASSES = 6


class Refresher:
    def __init__(self, directory: PolicyCache, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._timer: Timer | None = None
        # Tenants whose queues are to be looked at yet in this round.
        self._round: list[str] = []
        self._per_pass = 0
        self._backoff = Backoff("refresh")
        self._is_closed = False

    def start(self, pause_ms: int = REFRESH_MS) -> None:
        at_ms = self._runtime.clock.now_ms() + pause_ms
        self._timer = self._runtime.call_at(at_ms, lambda: self._runtime.spawn(self._refresh()))

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def refresh_once(self) -> int:
        """One pass; answers of how many tenants it looked at the queues."""
        tenants = await self._directory.load_tenants()
        if not self._round:
            self._round = tenants
            self._per_pass = math.ceil(len(tenants) / _PASSES)
        looked_at, self._round = self._round[: self._per_pass], self._round[self._per_pass :]
        for tenant in looked_at:
            await self._directory.load_queues(tenant)
        return len(looked_at)

    async def _refresh(self) -> None:
        pause_ms = REFRESH_MS
        try:
            await self.refresh_once()
        except Exception as error:
            if not self._is_closed:
                pause_ms = self._backoff.failed(error)
        else:
            self._backoff.succeeded()
        if not self._is_closed:
            self.start(pause_ms)
