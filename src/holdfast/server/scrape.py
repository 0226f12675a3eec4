"""The source of the metrics that are read at each scrape."""

from collections.abc import AsyncIterator, Mapping

from holdfast.clock import Clock
from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.errors import QueueNotFound
from holdfast.model.events import Event
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.service.views import stats_of
from holdfast.stores.contract import Store
from holdfast.telemetry.figures import Figures
from holdfast.telemetry.metrics import ScrapedQueue


class CoreSource:
    """Queues and figures of a core, for `telemetry.metrics.Metrics`."""

    def __init__(self, store: Store, dispatcher: Dispatcher, clock: Clock) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._now_ms = clock.now_ms

    async def queues(self) -> AsyncIterator[ScrapedQueue]:
        """Yield every queue, tenant by tenant. A queue that is deleted meanwhile is left out."""
        for tenant in await self._store.directory.list_tenants():
            for row in await self._store.directory.list_queues(tenant.tenant):
                now_ms = self._now_ms()
                try:
                    counts = await self._store.counts(*row.ref, now_ms)
                except QueueNotFound:
                    continue
                stats = stats_of(counts, now_ms, waiters=self._dispatcher.count_waiters(row.ref), row=row)
                yield ScrapedQueue(row.ref, QueueNumbers(row.tenant_id, row.queue_id), stats)

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return await self._store.take_tallies()

    async def figures(self) -> Figures:
        return await self._store.figures()
