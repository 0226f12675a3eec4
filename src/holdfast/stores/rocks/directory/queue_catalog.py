"""The queues of one shard on disk. A queue is read when it is first asked for.

Reads of the directory do not write the open commit first, as other reads do. Its rows and names are in the active
layer at once, and the counters that only a write adds belong to queues that are in memory.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.contract import QueueRow, TenantRow
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals, decode_counters
from holdfast.stores.rocks.directory.queue_indexes import QueueIndexes, decode_row
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState

_encode = msgspec.msgpack.Encoder().encode
_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode

# Shared by all queues that have it, which are most.
_DEFAULT_POLICY = QueuePolicy()


class LoadedQueues(dict[QueueRef, QueueState]):
    """The queues that are in memory. Looking one up loads it; None if there is no such queue."""

    def __init__(self, load: Callable[[QueueRef], QueueState | None]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, ref: QueueRef) -> QueueState | None:
        # Nothing remembers a queue that does not exist: to look for it again costs 2 us, and names are endless.
        return self._load(ref)


class QueueCatalog:
    def __init__(
        self,
        engine: Engine,
        tenants: Tenants,
        make_shelf: Callable[[QueueRow, Counters, Totals], QueueState],
        owns: Callable[[bytes], bool],
    ) -> None:
        """`owns`: whether the queue with this prefix belongs to this shard."""
        self._engine = engine
        self._owns = owns
        self.tenants = tenants
        self._make_shelf = make_shelf
        self.indexes = QueueIndexes(engine)
        self._shelves = LoadedQueues(self._load_queue)
        # The dictionary's own method: every operation begins with it.
        self.find: Callable[[QueueRef], QueueState | None] = self._shelves.__getitem__
        # By prefix, names that were asked for.
        self._names: dict[bytes, QueueRef] = {}

    def load(self) -> None:
        """Must be part of a commit, which a store without indexes of its queues gets them with."""
        self.indexes.fill_once()

    def _items(self, space: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._engine.database.items(keys.DIRECTORY, space, keys.after(space))

    # --- Finding queues ----------------------------------------------------------------------------------------

    def require(self, ref: QueueRef) -> QueueState:
        shelf = self.find(ref)
        if shelf is None:
            raise no_such_queue(ref)
        return shelf

    def require_open(self, ref: QueueRef) -> QueueState:
        shelf = self.require(ref)
        if shelf.row.drain_until is not None:
            raise being_deleted(ref)
        return shelf

    def of_prefix(self, p: bytes) -> QueueState | None:
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
        row = self.tenants.get(tenant)
        return [] if row is None else [decode_row(raw) for _, raw in self._items(_queues_of(row))]

    def counters(self, tenant: TenantRow) -> Iterator[tuple[bytes, Counters]]:
        """Yield the counters of the tenant's queues, by their prefix. Queues that never had a message are left out."""
        # The counters of changed queues come with the write.
        self._engine.write()
        for key, raw in self._items(keys.COUNTERS + tenant.tenant_id.to_bytes(4, "big")):
            yield key[len(keys.COUNTERS) :], decode_counters(raw)

    def count(self, tenant: TenantRow) -> int:
        """Return the number of the tenant's queues."""
        space = _queues_of(tenant)
        return sum(1 for _ in self._engine.database.scan(keys.DIRECTORY, space, keys.after(space)))

    def highest_id(self, tenant: TenantRow) -> int:
        """Return the highest queue_id of the tenant's queues, those that are gone included; 0 if there are none."""
        space = keys.QUEUE_NAMES + tenant.tenant_id.to_bytes(4, "big")
        last = self._engine.database.floor(keys.DIRECTORY, space + b"\xff" * 4)
        if last is None or not last.startswith(space):
            return 0
        return keys.parse_prefix(last[len(keys.QUEUE_NAMES) :])[1]

    def _read_row(self, ref: QueueRef) -> QueueRow | None:
        tenant = self.tenants.get(ref.tenant)
        if tenant is None:
            return None
        raw = self._engine.database.get(keys.DIRECTORY, _queues_of(tenant) + ref.queue.encode())
        return None if raw is None else decode_row(raw)

    def _load_queue(self, ref: QueueRef) -> QueueState | None:
        row, tenant = self._read_row(ref), self.tenants.get(ref.tenant)
        if row is None or tenant is None:
            return None
        raw = self._engine.database.get(keys.DIRECTORY, keys.COUNTERS + keys.prefix(row.tenant_id, row.queue_id))
        # One name of the tenant for all its queues.
        name = QueueRef(tenant.tenant, row.ref.queue)
        policy = _DEFAULT_POLICY if row.policy == _DEFAULT_POLICY else row.policy
        return self._add_queue(
            replace(row, ref=name, policy=policy), Counters() if raw is None else decode_counters(raw)
        )

    def _add_queue(self, row: QueueRow, counters: Counters) -> QueueState:
        shelf = self._shelves[row.ref] = self._make_shelf(row, counters, self.tenants.totals(row.ref.tenant))
        return shelf

    # --- Changing queues ---------------------------------------------------------------------------------------

    def create(self, ref: QueueRef) -> QueueState:
        """Make a queue, and in the first shard its tenant, if it is new; any other shard's must be on disk already."""
        tenant = self.tenants.get(ref.tenant) or self.tenants.put(ref.tenant, TenantConfig())
        queue_id = self.tenants.take_queue_id(ref)
        if not self._owns(keys.prefix(tenant.tenant_id, queue_id)):
            raise RuntimeError(f"queue {queue_id} of {ref.tenant} does not belong to this shard")
        row = QueueRow(ref=ref, tenant_id=tenant.tenant_id, queue_id=queue_id, policy=_DEFAULT_POLICY)
        shelf = self._add_queue(row, Counters())
        self._engine.put(keys.QUEUE_NAMES + shelf.p, _encode(ref), keys.DIRECTORY)
        self._write_row(row)
        return shelf

    def change(self, shelf: QueueState, row: QueueRow) -> None:
        """Give a queue another row."""
        was, shelf.row = shelf.row, row
        self.indexes.change(was, row)
        self._write_row(row)

    def remove(self, shelf: QueueState) -> None:
        """Forget an empty queue; its number stays taken."""
        row = shelf.row
        self._engine.delete(_row_key(row), keys.DIRECTORY)
        self._engine.delete(keys.COUNTERS + shelf.p, keys.DIRECTORY)
        self.indexes.change(row, None)
        del self._shelves[row.ref]
        self.tenants.note_queue_removed(row.ref.tenant)

    def _write_row(self, row: QueueRow) -> None:
        self._engine.put(_row_key(row), _encode(row), keys.DIRECTORY)

    def default_ttl_ms(self, shelf: QueueState) -> int | None:
        row = shelf.row
        return self.tenants.default_ttl_ms(row.ref.tenant, row.policy)


def _queues_of(tenant: TenantRow) -> bytes:
    """Return the part that the keys of the tenant's queues begin with."""
    return keys.QUEUES + tenant.tenant_id.to_bytes(4, "big")


def _row_key(row: QueueRow) -> bytes:
    return keys.QUEUES + row.tenant_id.to_bytes(4, "big") + row.ref.queue.encode()
