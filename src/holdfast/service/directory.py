"""Which queues and tenants there are, and who brings one into being."""

from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.stores.answers import no_such_queue
from holdfast.stores.contract import QueueRow, Store, TenantRow


class Directory:
    def __init__(self, store: Store, clock: Clock, *, auto_create: bool) -> None:
        self._store = store
        self._clock = clock
        self.auto_create = auto_create
        # Of tenants that are not here it is the default.
        self._weights: dict[str, int] = {}

    async def load(self) -> None:
        for tenant in await self._store.list_tenants():
            self.note(tenant)

    def note(self, tenant: TenantRow) -> None:
        self._weights[tenant.tenant] = tenant.config.weight

    def weight_of(self, tenant: str) -> int:
        return self._weights.get(tenant, 1)

    async def require(self, ref: QueueRef) -> QueueRow:
        row = await self._store.find_queue(ref)
        if row is None:
            raise no_such_queue(ref)
        return row

    async def require_or_create(self, ref: QueueRef) -> QueueRow:
        if self.auto_create:
            return await self._store.create_queue(ref, self._clock.now_ms())
        return await self.require(ref)
