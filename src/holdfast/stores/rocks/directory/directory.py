"""The directory of one shard: reads tenants and queues from the catalog, and changes them, each in a commit."""

from msgspec.structs import replace

from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.schedules import Schedules
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.publisher import Publisher
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan
from holdfast.stores.values import QueueChange, QueueRow, TenantRow


class RocksDirectory:
    """The `LimitedQueueDirectory` of one shard. `stores/contract.py` documents the methods."""

    def __init__(
        self, engine: Engine, publisher: Publisher, catalog: QueueCatalog, schedules: Schedules, sweep_plan: SweepPlan
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._catalog = catalog
        self._schedules = schedules
        self._sweep_plan = sweep_plan

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return self._catalog.tenants.get(tenant)

    async def list_tenants(self) -> list[TenantRow]:
        return self._catalog.tenants.all()

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        self._engine.begin()
        row = self._catalog.tenants.put(tenant, config)
        await self._engine.committed()
        return row

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        queue = self._catalog.find(ref)
        return None if queue is None else queue.row

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        row = self._catalog.row(ref)
        return None if row is None else QueueNumbers(row.tenant_id, row.queue_id)

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return self._catalog.rows(tenant)

    async def list_limited(self) -> list[QueueRow]:
        catalog = self._catalog
        refs = [catalog.find_name(p) for p in catalog.indexes.prefixes(keys.LIMITED)]
        rows = [catalog.row(ref) for ref in refs if ref is not None]
        return [row for row in rows if row is not None]

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        self._engine.check()
        if (queue := self._catalog.find(ref)) is None:
            self._catalog.tenants.check_room_for_queue(ref.tenant)
            self._engine.begin()
            queue = self._catalog.create(ref)
        # Wait even if the queue exists, because another call may have created it in the open commit.
        await self._engine.committed()
        return queue.row

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        queue = self._catalog.require(ref)
        self._engine.begin()
        if change.drain_until is not None:
            self._schedules.drop_all(queue)
        self._catalog.change(queue, replace(queue.row, **change.fields()))
        self._publisher.notify_after_commit(queue)
        self._sweep_plan.note_after_commit(queue, now_ms)
        await self._engine.committed()
        return queue.row
