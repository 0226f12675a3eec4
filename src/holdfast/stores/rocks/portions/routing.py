"""The directory and the schedules of a portion."""

from functools import partial
from typing import TYPE_CHECKING

from holdfast.model.answers import Enqueued
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.model.schedules import Schedule, Tick
from holdfast.stores.rocks.directory.part_shortage import with_quota
from holdfast.stores.rocks.portions.calls import CreateAnywhere, FindAnywhere, PutTenant
from holdfast.stores.rocks.routing import RoutedDirectory, RoutedSchedules, Router
from holdfast.stores.values import QueueChange, QueueRow, TenantRow

if TYPE_CHECKING:
    from holdfast.stores.rocks.portions.store import PortionStore


class PortionDirectory(RoutedDirectory):
    """The directory of a portion. It finds and creates queues of any portion, and lists those of its own."""

    def __init__(self, router: Router, store: "PortionStore") -> None:
        super().__init__(router)
        self._store = store

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        row: TenantRow = await self._store.coordinator.ask(PutTenant(tenant, config))
        return row

    async def put_tenant_here(self, tenant: str, config: TenantConfig) -> TenantRow:
        """Write the row of a tenant, and return it once it is on disk. Only in the portion with the rows."""
        row = await super().put_tenant(tenant, config)
        await self._router.shards[0].engine.synced()
        return row

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        row = await super().find_queue(ref)
        if row is None:
            row = await self._store.coordinator.ask(FindAnywhere(ref))
        return row

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        self._store.check_owner(ref)
        return await super().change_queue(ref, change, now_ms)

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        if self._router.find(ref) is not None or self._store.tenants.is_assigned(ref):
            return await self.create_here(ref, now_ms)
        row: QueueRow = await self._store.coordinator.ask(CreateAnywhere(ref, now_ms))
        return row

    async def create_here(self, ref: QueueRef, now_ms: int) -> QueueRow:
        """Return the row of a queue of this portion; create one that was assigned here."""
        is_new = self._router.find(ref) is None
        row = await super().create_queue(ref, now_ms)
        if is_new:
            await self._store.note_created(ref)
        return row


class PortionSchedules(RoutedSchedules):
    """The schedules of a portion."""

    def __init__(self, router: Router, store: "PortionStore") -> None:
        super().__init__(router)
        self._store = store

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        self._store.check_owner(ref)
        return await super().find(ref, name)

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        return await with_quota(partial(super().fire, ref, schedule, tick, now_ms))
