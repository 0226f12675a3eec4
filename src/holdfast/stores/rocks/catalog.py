"""Tenants and queues on disk. All tenants are in memory; a queue is read when it is first asked for.

Reads of the directory do not write the open commit first, as other reads do. Its rows and names are in the active
layer at once, and the counters that only a write adds belong to queues that are in memory.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.answers import being_deleted, no_such_queue
from holdfast.stores.contract import QueueRow, TenantRow
from holdfast.stores.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.counters import Counters, Totals, decode_counters
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.queue_indexes import QueueIndexes, decode_row
from holdfast.stores.rocks.shelf import Shelf

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode

# Shared by all queues that have it, which are most.
_DEFAULT_POLICY = QueuePolicy()


class LoadedQueues(dict[QueueRef, Shelf]):
    """The queues that are in memory. Looking one up loads it; None if there is no such queue."""

    def __init__(self, load: Callable[[QueueRef], Shelf | None]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, ref: QueueRef) -> Shelf | None:
        # Nothing remembers a queue that does not exist: to look for it again costs 2 us, and names are endless.
        return self._load(ref)


class Catalog:
    def __init__(self, engine: Engine, make_shelf: Callable[[QueueRow, Counters, Totals], Shelf]) -> None:
        self._engine = engine
        self._make_shelf = make_shelf
        self.indexes = QueueIndexes(engine)
        self._tenants: dict[str, TenantRow] = {}
        # Tenants that may not keep as much as they like.
        self._limited: set[str] = set()
        self._shelves = LoadedQueues(self._load_queue)
        # The dictionary's own method: every operation begins with it.
        self.find: Callable[[QueueRef], Shelf | None] = self._shelves.__getitem__
        # By prefix, names that were asked for.
        self._names: dict[bytes, QueueRef] = {}
        # The following are read when they are first needed, and kept up from then on.
        # The messages of each tenant; before they are counted, only the changes since the store was opened.
        self._totals: dict[str, Totals] = {}
        self._counted: set[str] = set()
        # The number of queues of each tenant.
        self._queues: dict[str, int] = {}
        # The highest queue_id given in each tenant, to queues that are gone too.
        self._highest: dict[int, int] = {}

    def load(self) -> None:
        """Read the tenants. Must be part of a commit, which a store without indexes of its queues gets them with."""
        for _, raw in self._items(keys.TENANTS):
            self._add_tenant(_decode_tenant(raw))
        self.indexes.fill_once()

    def _items(self, space: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._engine.database.items(keys.DIRECTORY, space, keys.after(space))

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

    # --- Finding queues ----------------------------------------------------------------------------------------

    def require(self, ref: QueueRef) -> Shelf:
        shelf = self.find(ref)
        if shelf is None:
            raise no_such_queue(ref)
        return shelf

    def require_open(self, ref: QueueRef) -> Shelf:
        shelf = self.require(ref)
        if shelf.row.drain_until is not None:
            raise being_deleted(ref)
        return shelf

    def of_prefix(self, p: bytes) -> Shelf | None:
        ref = self.find_name(p)
        shelf = None if ref is None else self.find(ref)
        return shelf if shelf is not None and shelf.p == p else None

    def find_name(self, p: bytes) -> QueueRef | None:
        """Return the name of a queue that exists or existed; None if no queue ever had this prefix."""
        ref = self._names.get(p)
        if ref is None and (raw := self._engine.database.get(keys.DIRECTORY, keys.QUEUE_NAMES + p)) is not None:
            ref = self._names[p] = _decode_ref(raw)
        return ref

    def name_of(self, p: bytes) -> QueueRef:
        """Return the same as `find_name`. Raise `StoreUnavailable` instead of returning None."""
        ref = self.find_name(p)
        if ref is None:
            raise StoreUnavailable(f"queue number {p.hex()} has no name: run `holdfast verify` on a copy")
        return ref

    def row(self, ref: QueueRef) -> QueueRow | None:
        """Return the queue's row, and leave the queue on disk if it is not in memory."""
        shelf = self._shelves.get(ref)
        return self._read_row(ref) if shelf is None else shelf.row

    def rows(self, tenant: str) -> list[QueueRow]:
        """Return the rows of the tenant's queues, sorted by name: keys sort as the names do."""
        row = self._tenants.get(tenant)
        return [] if row is None else [decode_row(raw) for _, raw in self._items(_queues_of(row))]

    def counters(self, tenant: str) -> Iterator[tuple[bytes, Counters]]:
        """Yield the counters of the tenant's queues, by their prefix. Queues that never had a message are left out."""
        row = self._tenants.get(tenant)
        if row is None:
            return
        # The counters of changed queues come with the write.
        self._engine.write()
        for key, raw in self._items(keys.COUNTERS + row.tenant_id.to_bytes(4, "big")):
            yield key[len(keys.COUNTERS) :], decode_counters(raw)

    def _read_row(self, ref: QueueRef) -> QueueRow | None:
        tenant = self._tenants.get(ref.tenant)
        if tenant is None:
            return None
        raw = self._engine.database.get(keys.DIRECTORY, _queues_of(tenant) + ref.queue.encode())
        return None if raw is None else decode_row(raw)

    def _load_queue(self, ref: QueueRef) -> Shelf | None:
        row = self._read_row(ref)
        if row is None:
            return None
        raw = self._engine.database.get(keys.DIRECTORY, keys.COUNTERS + keys.prefix(row.tenant_id, row.queue_id))
        # One name of the tenant for all its queues.
        name = QueueRef(self._tenants[ref.tenant].tenant, row.ref.queue)
        policy = _DEFAULT_POLICY if row.policy == _DEFAULT_POLICY else row.policy
        return self._add_queue(
            replace(row, ref=name, policy=policy), Counters() if raw is None else decode_counters(raw)
        )

    def _add_queue(self, row: QueueRow, counters: Counters) -> Shelf:
        tenant = row.ref.tenant
        totals = self._totals.get(tenant)
        if totals is None:
            totals = self._totals[tenant] = Totals()
        shelf = self._shelves[row.ref] = self._make_shelf(row, counters, totals)
        return shelf

    # --- Changing queues ---------------------------------------------------------------------------------------

    def create(self, ref: QueueRef) -> Shelf:
        tenant = self._tenants.get(ref.tenant) or self.put_tenant(ref.tenant, TenantConfig())
        queue_id = self._highest_id(tenant) + 1
        self._highest[tenant.tenant_id] = queue_id
        row = QueueRow(ref=ref, tenant_id=tenant.tenant_id, queue_id=queue_id, policy=_DEFAULT_POLICY)
        shelf = self._add_queue(row, Counters())
        if ref.tenant in self._queues:
            self._queues[ref.tenant] += 1
        self._engine.put(keys.QUEUE_NAMES + shelf.p, _encode(ref), keys.DIRECTORY)
        self._write_row(tenant, row)
        return shelf

    def change(self, shelf: Shelf, row: QueueRow) -> None:
        """Give a queue another row."""
        was, shelf.row = shelf.row, row
        self.indexes.change(was, row)
        self._write_row(self._tenants[row.ref.tenant], row)

    def remove(self, shelf: Shelf) -> None:
        """Forget an empty queue; its number stays taken."""
        row = shelf.row
        tenant = row.ref.tenant
        self._engine.delete(_queues_of(self._tenants[tenant]) + row.ref.queue.encode(), keys.DIRECTORY)
        self._engine.delete(keys.COUNTERS + shelf.p, keys.DIRECTORY)
        self.indexes.change(row, None)
        del self._shelves[row.ref]
        if tenant in self._queues:
            self._queues[tenant] -= 1

    def _write_row(self, tenant: TenantRow, row: QueueRow) -> None:
        self._engine.put(_queues_of(tenant) + row.ref.queue.encode(), _encode(row), keys.DIRECTORY)

    def _highest_id(self, tenant: TenantRow) -> int:
        highest = self._highest.get(tenant.tenant_id)
        if highest is not None:
            return highest
        space = keys.QUEUE_NAMES + tenant.tenant_id.to_bytes(4, "big")
        last = self._engine.database.floor(keys.DIRECTORY, space + b"\xff" * 4)
        if last is None or not last.startswith(space):
            return 0
        return keys.parse_prefix(last[len(keys.QUEUE_NAMES) :])[1]

    # --- What tenants keep -------------------------------------------------------------------------------------

    def check_room_for_queue(self, tenant: str) -> None:
        quotas = self.config(tenant).quotas
        if quotas.max_queues is not None:
            check_room_for_queue(tenant, quotas, self._count_queues(tenant))

    def _count_queues(self, tenant: str) -> int:
        number, row = self._queues.get(tenant), self._tenants.get(tenant)
        if row is None:
            return 0
        if number is None:
            space = _queues_of(row)
            scanned = self._engine.database.scan(keys.DIRECTORY, space, keys.after(space))
            number = self._queues[tenant] = sum(1 for _ in scanned)
        return number

    def has_quotas(self, tenant: str) -> bool:
        return tenant in self._limited

    def check_quotas(
        self, tenant: str, sizes: list[int], on_their_way: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """Refuse messages of these sizes if they, after those on their way and without those that are freed, would take
        the tenant past a quota."""
        quotas = self.config(tenant).quotas
        totals = self._count_messages(tenant) if quotas.are_counted else Totals()
        messages = totals.messages + len(on_their_way) - len(freed)
        size = totals.bytes + sum(on_their_way) - sum(freed)
        check_quotas(tenant, quotas, messages, size, sizes)

    def _count_messages(self, tenant: str) -> Totals:
        """Return the number and size of the tenant's messages. They are counted once; from then on, the queues keep
        them up. A queue that is loaded later was counted with the others."""
        totals = self._totals.get(tenant)
        if totals is None:
            totals = self._totals[tenant] = Totals()
        if tenant not in self._counted:
            totals.messages = totals.bytes = 0
            for _, counters in self.counters(tenant):
                totals.messages += counters.messages
                totals.bytes += counters.bytes
            self._counted.add(tenant)
        return totals

    def default_ttl_ms(self, shelf: Shelf) -> int | None:
        row = shelf.row
        return default_ttl_ms(row.policy, self._tenants[row.ref.tenant].config.quotas)


def _queues_of(tenant: TenantRow) -> bytes:
    """Return the part that the keys of the tenant's queues begin with."""
    return keys.QUEUES + tenant.tenant_id.to_bytes(4, "big")
