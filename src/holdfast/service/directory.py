"""Which queues and tenants there are, who brings one into being, and what each may do."""

from typing import cast

from holdfast.clock import Clock
from holdfast.model.limits import has_rates, is_limited
from holdfast.model.names import QueueRef
from holdfast.model.policy import Limits, QueuePolicy
from holdfast.stores.contract import LimitedQueueDirectory, QueueRow, Store, TenantRow
from holdfast.stores.logic.results import no_such_queue


class PolicyCache:
    """Keeps what every call is admitted by, so that nobody has to ask the store for it: loaded at the start, noted at
    each change. Only what departs from the defaults is kept."""

    def __init__(self, store: Store, clock: Clock, *, auto_create: bool) -> None:
        self._store = store
        self._clock = clock
        self.auto_create = auto_create
        # Of tenants that are not here it is the default.
        self._weights: dict[str, int] = {}
        # Tenants with rates, queues with rates or caps. Read by admission on every call; changed in place.
        self.tenant_limits: dict[str, Limits] = {}
        self.queue_limits: dict[QueueRef, QueuePolicy] = {}

    async def load(self) -> None:
        tenants = await self.load_tenants()
        if self._store.capabilities.lists_limited_queues:
            await self._load_limited()
            return
        for tenant in tenants:
            await self.load_queues(tenant)

    async def load_tenants(self) -> list[str]:
        """Their names."""
        tenants = await self._store.directory.list_tenants()
        for tenant in tenants:
            self.note(tenant)
        return [tenant.tenant for tenant in tenants]

    async def load_queues(self, tenant: str) -> None:
        for queue in await self._store.directory.list_queues(tenant):
            self.note_queue(queue)

    async def _load_limited(self) -> None:
        """Note the queues with limits, and none of the others: a store may hold very many."""
        queues = await cast(LimitedQueueDirectory, self._store.directory).list_limited()
        # A store that was reopened may have lost the change that set a limit.
        for ref in self.queue_limits.keys() - {queue.ref for queue in queues}:
            del self.queue_limits[ref]
        for queue in queues:
            self.note_queue(queue)

    def note(self, tenant: TenantRow) -> None:
        name, config = tenant.tenant, tenant.config
        if config.weight != 1:
            self._weights[name] = config.weight
        else:
            self._weights.pop(name, None)
        if has_rates(config.limits):
            self.tenant_limits[name] = config.limits
        else:
            self.tenant_limits.pop(name, None)

    def note_queue(self, queue: QueueRow) -> None:
        # One being deleted is refused by the store; what comes after it under the same name starts afresh.
        if is_limited(queue.policy) and queue.drain_until is None:
            self.queue_limits[queue.ref] = queue.policy
        else:
            self.queue_limits.pop(queue.ref, None)

    def weight_of(self, tenant: str) -> int:
        return self._weights.get(tenant, 1)

    async def require(self, ref: QueueRef) -> QueueRow:
        row = await self._store.directory.find_queue(ref)
        if row is None:
            raise no_such_queue(ref)
        return row

    async def require_or_create(self, ref: QueueRef) -> QueueRow:
        if self.auto_create:
            return await self._store.directory.create_queue(ref, self._clock.now_ms())
        return await self.require(ref)
