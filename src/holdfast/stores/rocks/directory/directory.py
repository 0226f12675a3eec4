"""The directory part of the store: tenants and queues, changed with a commit."""

from msgspec.structs import replace

from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.contract import QueueChange, QueueRow, TenantRow
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.schedules import Schedules
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.publisher import Publisher
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan


class RocksDirectory:
    """`LimitedQueueDirectory`."""

    def __init__(
        self, engine: Engine, board: Publisher, catalog: QueueCatalog, schedules: Schedules, upkeep: SweepPlan
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._schedules = schedules
        self._upkeep = upkeep

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
        shelf = self._catalog.find(ref)
        return None if shelf is None else shelf.row

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return self._catalog.rows(tenant)

    async def list_limited(self) -> list[QueueRow]:
        catalog = self._catalog
        refs = [catalog.find_name(p) for p in catalog.indexes.prefixes(keys.LIMITED)]
        rows = [catalog.row(ref) for ref in refs if ref is not None]
        return [row for row in rows if row is not None]

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        self._engine.check()
        if (shelf := self._catalog.find(ref)) is None:
            self._catalog.tenants.check_room_for_queue(ref.tenant)
            self._engine.begin()
            shelf = self._catalog.create(ref)
        # Also for a queue that is there: another call may have made it just now.
        await self._engine.committed()
        return shelf.row

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        shelf = self._catalog.require(ref)
        self._engine.begin()
        if change.drain_until is not None:
            self._schedules.drop_all(shelf)
        self._catalog.change(shelf, replace(shelf.row, **change.fields()))
        self._board.notify_after_commit(shelf)
        self._upkeep.note_after_commit(shelf, now_ms)
        await self._engine.committed()
        return shelf.row
