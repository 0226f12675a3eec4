"""Refresh limits and weights that other servers of a shared store have changed.

The configuration of all tenants is read every few seconds. The policies of queues are read tenant by tenant over
several passes, to spread the load of many queues.
"""

import math

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.runtime import Runtime
from holdfast.service.directory import PolicyCache

REFRESH_MS = 5_000
# The number of passes after which the policies of all queues have been read.
_PASSES = 6


class Refresher:
    """A background part that keeps a `PolicyCache` up to date."""

    def __init__(self, directory: PolicyCache, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._timer: Timer | None = None
        # The tenants whose queues have still to be read in this round.
        self._round: list[str] = []
        self._per_pass = 0
        self._backoff = Backoff("refresh")
        self._is_closed = False

    def start(self, pause_ms: int = REFRESH_MS) -> None:
        """Set the timer of the next pass; each pass then sets the timer of the one after it."""
        at_ms = self._runtime.clock.now_ms() + pause_ms
        self._timer = self._runtime.call_at(at_ms, lambda: self._runtime.spawn(self._refresh()))

    def close(self) -> None:
        """Stop refreshing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def refresh_once(self) -> int:
        """Run one pass, and return the number of tenants whose queues were read."""
        tenants = await self._directory.load_tenants()
        if not self._round:
            self._round = tenants
            self._per_pass = math.ceil(len(tenants) / _PASSES)
        due, self._round = self._round[: self._per_pass], self._round[self._per_pass :]
        for tenant in due:
            await self._directory.load_queues(tenant)
        return len(due)

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
