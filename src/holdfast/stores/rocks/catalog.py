"""Tenants and queues on disk, loaded at the start and kept in memory."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.answers import being_deleted, no_such_queue
from holdfast.stores.contract import QueueRow, TenantRow
from holdfast.stores.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.counters import Counters, Totals, decode_counters
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.shelf import Shelf

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode
_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode


class Catalog:
    def __init__(self, engine: Engine, make_shelf: Callable[[QueueRow, Counters, Totals], Shelf]) -> None:
        self._engine = engine
        self._make_shelf = make_shelf
        self._tenants: dict[str, TenantRow] = {}
        self._totals: dict[str, Totals] = {}
        # Tenants that may not keep as much as they like.
        self._limited: set[str] = set()
        self._shelves: dict[QueueRef, Shelf] = {}
        # The dictionary's own method: every operation begins with it.
        self.find: Callable[[QueueRef], Shelf | None] = self._shelves.get
        self._queues_of: dict[str, set[QueueRef]] = {}
        self._names: dict[bytes, QueueRef] = {}
        # The highest queue_id given in each tenant, to queues that are gone too.
        self._highest: dict[int, int] = {}

    def load(self) -> None:
        for _, raw in self._items(keys.TENANTS):
            self._add_tenant(_decode_tenant(raw))
        for key, raw in self._items(keys.QUEUE_NAMES):
            p = key[len(keys.QUEUE_NAMES) :]
            self._names[p] = _decode_ref(raw)
            tenant_id, queue_id = keys.parse_prefix(p)
            self._highest[tenant_id] = max(self._highest.get(tenant_id, 0), queue_id)
        counters = {key[len(keys.COUNTERS) :]: decode_counters(raw) for key, raw in self._items(keys.COUNTERS)}
        for _, raw in self._items(keys.QUEUES):
            row = _decode_queue(raw)
            self._add_queue(row, counters.get(keys.prefix(row.tenant_id, row.queue_id), Counters()))

    def latest_at(self) -> int:
        """The latest time at which a queue was changed; 0 without any."""
        return max((shelf.counters.counted_at for shelf in self._shelves.values()), default=0)

    def _items(self, space: bytes) -> list[tuple[bytes, bytes]]:
        return list(self._engine.database.items(keys.DIRECTORY, space, keys.after(space)))

    # --- Tenants -----------------------------------------------------------------------------------------------

    def tenant(self, name: str) -> TenantRow | None:
        return self._tenants.get(name)

    def tenants(self) -> list[TenantRow]:
        return [self._tenants[name] for name in sorted(self._tenants)]

    def config(self, tenant: str) -> TenantConfig:
        row = self._tenants.get(tenant)
        return TenantConfig() if row is None else row.config

    def put_tenant(self, name: str, config: TenantConfig) -> TenantRow:
        row = self._tenants.get(name)
        if row is None:
            row = TenantRow(tenant=name, tenant_id=len(self._tenants) + 1, config=config)
            self._add_tenant(row)
        else:
            row = self._tenants[name] = replace(row, config=config)
            self._note_quotas(row)
        self._engine.put(keys.TENANTS + name.encode(), _encode(row), keys.DIRECTORY)
        return row

    def _note_quotas(self, row: TenantRow) -> None:
        quotas = row.config.quotas
        if quotas.max_messages is quotas.max_bytes is quotas.max_message_bytes is None:
            self._limited.discard(row.tenant)
        else:
            self._limited.add(row.tenant)

    def _add_tenant(self, row: TenantRow) -> None:
        self._tenants[row.tenant] = row
        self._note_quotas(row)
        self._totals[row.tenant] = Totals()
        self._queues_of[row.tenant] = set()

    # --- Queues ------------------------------------------------------------------------------------------------

    def require(self, ref: QueueRef) -> Shelf:
        shelf = self._shelves.get(ref)
        if shelf is None:
            raise no_such_queue(ref)
        return shelf

    def require_open(self, ref: QueueRef) -> Shelf:
        shelf = self.require(ref)
        if shelf.row.drain_until is not None:
            raise being_deleted(ref)
        return shelf

    def of_prefix(self, p: bytes) -> Shelf | None:
        ref = self._names.get(p)
        shelf = None if ref is None else self._shelves.get(ref)
        return shelf if shelf is not None and shelf.p == p else None

    def shelves(self) -> list[Shelf]:
        return list(self._shelves.values())

    def shelves_of(self, tenant: str) -> list[Shelf]:
        return [self._shelves[ref] for ref in sorted(self._queues_of.get(tenant, ()))]

    def name_of(self, p: bytes) -> QueueRef:
        return self._names[p]

    def check_room_for_queue(self, tenant: str) -> None:
        check_room_for_queue(tenant, self.config(tenant).quotas, len(self._queues_of.get(tenant, ())))

    def create(self, ref: QueueRef) -> Shelf:
        tenant = self._tenants.get(ref.tenant) or self.put_tenant(ref.tenant, TenantConfig())
        queue_id = self._highest.get(tenant.tenant_id, 0) + 1
        self._highest[tenant.tenant_id] = queue_id
        row = QueueRow(ref=ref, tenant_id=tenant.tenant_id, queue_id=queue_id)
        shelf = self._add_queue(row, Counters())
        self._names[shelf.p] = ref
        self._engine.put(keys.QUEUE_NAMES + shelf.p, _encode(ref), keys.DIRECTORY)
        self.write_row(shelf)
        return shelf

    def write_row(self, shelf: Shelf) -> None:
        row = shelf.row
        self._engine.put(_queue_key(row), _encode(row), keys.DIRECTORY)

    def remove(self, shelf: Shelf) -> None:
        """Forget an empty queue; its number stays taken."""
        row = shelf.row
        self._engine.delete(_queue_key(row), keys.DIRECTORY)
        self._engine.delete(keys.COUNTERS + shelf.p, keys.DIRECTORY)
        del self._shelves[row.ref]
        self._queues_of[row.ref.tenant].discard(row.ref)

    def _add_queue(self, row: QueueRow, counters: Counters) -> Shelf:
        totals = self._totals[row.ref.tenant]
        totals.messages += counters.messages
        totals.bytes += counters.bytes
        shelf = self._shelves[row.ref] = self._make_shelf(row, counters, totals)
        self._queues_of[row.ref.tenant].add(row.ref)
        return shelf

    # --- What tenants keep -------------------------------------------------------------------------------------

    def has_quotas(self, tenant: str) -> bool:
        return tenant in self._limited

    def check_quotas(
        self, tenant: str, sizes: list[int], on_their_way: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """Refuse messages of these sizes if they, after those on their way and without those that are freed, would take
        the tenant past a quota."""
        totals = self._totals.get(tenant) or Totals()
        messages = totals.messages + len(on_their_way) - len(freed)
        size = totals.bytes + sum(on_their_way) - sum(freed)
        check_quotas(tenant, self.config(tenant).quotas, messages, size, sizes)

    def default_ttl_ms(self, shelf: Shelf) -> int | None:
        row = shelf.row
        return default_ttl_ms(row.policy, self._tenants[row.ref.tenant].config.quotas)


def _queue_key(row: QueueRow) -> bytes:
    return keys.QUEUES + row.tenant_id.to_bytes(4, "big") + row.ref.queue.encode()
