"""Tenants and queues in memory, with what each tenant keeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.contract import QueueChange, QueueRow, TenantRow
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue
from holdfast.stores.unit import Sized


@dataclass(slots=True)
class _Tenant:
    row: TenantRow
    next_queue_id: int = 1
    messages: int = 0
    bytes: int = 0
    queues: set[QueueRef] = field(default_factory=set)


class MemoryDirectory:
    """`QueueDirectory`, and the queues' entries for the rest of the store."""

    def __init__(self, changed: Callable[[MemoryQueue, QueueChange, int], None]) -> None:
        """`changed` is called in the step that has changed a queue's row, with the time."""
        self._changed = changed
        self._tenants: dict[str, _Tenant] = {}
        self._shelves: dict[QueueRef, MemoryQueue] = {}
        self.is_closed = False

    def check_open(self) -> None:
        if self.is_closed:
            raise StoreUnavailable("this queue was closed: open it again")

    # --- Tenants ---------------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        self.check_open()
        found = self._tenants.get(tenant)
        return None if found is None else found.row

    async def list_tenants(self) -> list[TenantRow]:
        self.check_open()
        return [self._tenants[name].row for name in sorted(self._tenants)]

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        self.check_open()
        known = self._ensure(tenant)
        known.row = replace(known.row, config=config)
        return known.row

    def config(self, tenant: str) -> TenantConfig:
        self.check_open()
        known = self._tenants.get(tenant)
        return TenantConfig() if known is None else known.row.config

    def _ensure(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(TenantRow(tenant=name, tenant_id=len(self._tenants) + 1))
        return tenant

    # --- Queues ----------------------------------------------------------------------------------------------

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        shelf = self.find(ref)
        return None if shelf is None else shelf.row

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return [shelf.row for shelf in self.shelves_of(tenant)]

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        return self.create(ref).row

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        shelf = self.require(ref)
        shelf.row = replace(shelf.row, **change.fields())
        self._changed(shelf, change, now_ms)
        return shelf.row

    def find(self, ref: QueueRef) -> MemoryQueue | None:
        # Every step on messages begins here, and none suspends: the functions that it calls later need not check.
        self.check_open()
        return self._shelves.get(ref)

    def require(self, ref: QueueRef) -> MemoryQueue:
        shelf = self.find(ref)
        if shelf is None:
            raise no_such_queue(ref)
        return shelf

    def require_open(self, ref: QueueRef) -> MemoryQueue:
        shelf = self.require(ref)
        if shelf.row.drain_until is not None:
            raise being_deleted(ref)
        return shelf

    def shelves_of(self, tenant: str) -> list[MemoryQueue]:
        self.check_open()
        known = self._tenants.get(tenant)
        return [self._shelves[ref] for ref in sorted(known.queues)] if known else []

    def create(self, ref: QueueRef) -> MemoryQueue:
        if (shelf := self.find(ref)) is not None:
            return shelf
        check_room_for_queue(ref.tenant, self.config(ref.tenant).quotas, len(self.shelves_of(ref.tenant)))
        tenant = self._ensure(ref.tenant)
        row = QueueRow(ref=ref, tenant_id=tenant.row.tenant_id, queue_id=tenant.next_queue_id)
        tenant.next_queue_id += 1
        tenant.queues.add(ref)
        shelf = self._shelves[ref] = MemoryQueue(row)
        return shelf

    def remove(self, ref: QueueRef) -> None:
        del self._shelves[ref]
        self._tenants[ref.tenant].queues.discard(ref)

    # --- What tenants keep -----------------------------------------------------------------------------------

    def check_quotas(self, tenant: str, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        """Refuse the messages `added` if they would take the tenant past a quota, once those in `freed` are gone."""
        known = self._tenants.get(tenant)
        if known is not None and (quotas := known.row.config.quotas).limits_messages:
            messages, size = known.messages - len(freed), known.bytes - sum(each.bytes for each in freed)
            check_quotas(tenant, quotas, messages, size, [each.bytes for each in added])

    def default_ttl_ms(self, shelf: MemoryQueue) -> int | None:
        row = shelf.row
        return default_ttl_ms(row.policy, self._tenants[row.ref.tenant].row.config.quotas)

    def put(self, shelf: MemoryQueue, entry: MemoryMessage) -> None:
        tenant = self._tenants[shelf.row.ref.tenant]
        tenant.messages += 1
        tenant.bytes += entry.bytes
        shelf.put(entry)

    def drop(self, shelf: MemoryQueue, entry: MemoryMessage) -> None:
        tenant = self._tenants[shelf.row.ref.tenant]
        tenant.messages -= 1
        tenant.bytes -= entry.bytes
        shelf.drop(entry)
