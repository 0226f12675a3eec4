"""Tenants and queues in memory, and the usage of each tenant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue
from holdfast.stores.unit import Sized
from holdfast.stores.values import QueueChange, QueueRow, TenantRow


@dataclass(slots=True)
class _Tenant:
    row: TenantRow
    next_queue_id: int = 1
    messages: int = 0
    bytes: int = 0
    queues: set[QueueRef] = field(default_factory=set)


class MemoryDirectory:
    """`QueueDirectory`, and access to the queues for the rest of the store."""

    def __init__(self, changed: Callable[[MemoryQueue, QueueChange, int], None]) -> None:
        """`changed` is called in the step that has changed a queue's row, with the time."""
        self._changed = changed
        self._tenants: dict[str, _Tenant] = {}
        self._queues: dict[QueueRef, MemoryQueue] = {}
        self.is_closed = False

    def check_open(self) -> None:
        """Raise `StoreUnavailable` if the store is closed."""
        if self.is_closed:
            raise StoreUnavailable("this store was closed; open it again")

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
        """Return the tenant's configuration; the defaults for an unknown tenant."""
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
        queue = self.find(ref)
        return None if queue is None else queue.row

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        queue = self._queues.get(ref)
        return None if queue is None else QueueNumbers(queue.row.tenant_id, queue.row.queue_id)

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return [queue.row for queue in self.queues_of(tenant)]

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        return self.create(ref).row

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        queue = self.require(ref)
        queue.row = replace(queue.row, **change.fields())
        self._changed(queue, change, now_ms)
        return queue.row

    def find(self, ref: QueueRef) -> MemoryQueue | None:
        """Return the queue, or None."""
        # Every step on messages begins here and none suspends, so the functions that it calls later need no check.
        self.check_open()
        return self._queues.get(ref)

    def require(self, ref: QueueRef) -> MemoryQueue:
        """Return the queue, or raise `QueueNotFound`."""
        queue = self.find(ref)
        if queue is None:
            raise no_such_queue(ref)
        return queue

    def require_open(self, ref: QueueRef) -> MemoryQueue:
        """Return the queue; raise `QueueNotFound`, or `Draining` if it is being deleted."""
        queue = self.require(ref)
        if queue.row.drain_until is not None:
            raise being_deleted(ref)
        return queue

    def queues_of(self, tenant: str) -> list[MemoryQueue]:
        """Return the tenant's queues by name."""
        self.check_open()
        known = self._tenants.get(tenant)
        return [self._queues[ref] for ref in sorted(known.queues)] if known else []

    def create(self, ref: QueueRef) -> MemoryQueue:
        """Return the queue, and create it if it does not exist. Raise `OverQuota` if the tenant may not have
        another."""
        if (queue := self.find(ref)) is not None:
            return queue
        check_room_for_queue(ref.tenant, self.config(ref.tenant).quotas, len(self.queues_of(ref.tenant)))
        tenant = self._ensure(ref.tenant)
        row = QueueRow(ref=ref, tenant_id=tenant.row.tenant_id, queue_id=tenant.next_queue_id)
        tenant.next_queue_id += 1
        tenant.queues.add(ref)
        queue = self._queues[ref] = MemoryQueue(row)
        return queue

    def remove(self, ref: QueueRef) -> None:
        """Remove an empty queue."""
        del self._queues[ref]
        self._tenants[ref.tenant].queues.discard(ref)

    # --- Usage of tenants -----------------------------------------------------------------------------------

    def check_quotas(self, tenant: str, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        """Raise `OverQuota` if the messages `added` would exceed a quota of the tenant once those in `freed`
        are gone."""
        known = self._tenants.get(tenant)
        if known is not None and (quotas := known.row.config.quotas).limits_messages:
            messages, size = known.messages - len(freed), known.bytes - sum(each.bytes for each in freed)
            check_quotas(tenant, quotas, messages, size, [each.bytes for each in added])

    def default_ttl_ms(self, queue: MemoryQueue) -> int | None:
        row = queue.row
        return default_ttl_ms(row.policy, self._tenants[row.ref.tenant].row.config.quotas)

    def put(self, queue: MemoryQueue, entry: MemoryMessage) -> None:
        """Add a message to its queue, and to its tenant's usage."""
        tenant = self._tenants[queue.row.ref.tenant]
        tenant.messages += 1
        tenant.bytes += entry.bytes
        queue.put(entry)

    def drop(self, queue: MemoryQueue, entry: MemoryMessage) -> None:
        """Remove a message from its queue, and from its tenant's usage."""
        tenant = self._tenants[queue.row.ref.tenant]
        tenant.messages -= 1
        tenant.bytes -= entry.bytes
        queue.drop(entry)
