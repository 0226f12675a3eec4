"""The queues of one shard. A queue is loaded from disk when it is first used.

Unlike other reads, reads of the directory do not write the open commit first. Rows and names are in the active layer as
soon as they are changed. Counters are added only by the write, but those of changed queues are in memory.

How to change this format: `QueueRow`, `TenantRow` and `QueueRef` are stored as MessagePack maps by field name. A new
field needs a default, which rows without the field decode to; never rename a field or change its type. The same holds
for the structs inside them, `QueuePolicy` and `TenantConfig`. Those forbid unknown fields, so an older version reports
a row with a new one as damaged: raise the format of the store (`recovery/marker.py`) with it.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals, decode_counters
from holdfast.stores.rocks.directory.queue_indexes import QueueIndexes, decode_row
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.values import QueueRow, TenantRow

_encode = msgspec.msgpack.Encoder().encode
_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode

# One object for all queues with the default policy, which most have, to save memory.
_DEFAULT_POLICY = QueuePolicy()


class LoadedQueues(dict[QueueRef, QueueState]):
    """The queues in memory. Looking up another queue loads it; a missing queue gives None."""

    def __init__(self, load: Callable[[QueueRef], QueueState | None]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, ref: QueueRef) -> QueueState | None:
        # Missing queues are not cached: another look-up costs 2 µs, and the number of possible names is unbounded.
        return self._load(ref)


class QueueCatalog:
    """The queues of one shard, on disk and in memory."""

    def __init__(
        self,
        engine: Engine,
        tenants: Tenants,
        make_queue_state: Callable[[QueueRow, Counters, Totals], QueueState],
        owns: Callable[[bytes], bool],
    ) -> None:
        """`owns` returns whether the queue with a given prefix belongs to this shard."""
        self._engine = engine
        self._owns = owns
        self.tenants = tenants
        self._make_queue_state = make_queue_state
        self.indexes = QueueIndexes(engine)
        self._loaded = LoadedQueues(self._load_queue)
        # Return the queue, or None if it does not exist. This is the dictionary's own method, because every operation
        # begins with it.
        self.find: Callable[[QueueRef], QueueState | None] = self._loaded.__getitem__
        # The names that were looked up, by prefix.
        self._names: dict[bytes, QueueRef] = {}
        # Queues that are not removed even if they are empty, because more messages are coming.
        self.retained: set[QueueRef] = set()

    def load(self) -> None:
        """Fill the indexes of queues in a store that has none yet. Must be part of a commit."""
        self.indexes.fill_once()

    def _items(self, space: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._engine.database.items(keys.DIRECTORY, space, keys.after(space))

    # --- Finding queues ----------------------------------------------------------------------------------------

    def require(self, ref: QueueRef) -> QueueState:
        """Return the queue. Raise `QueueNotFound`."""
        queue = self.find(ref)
        if queue is None:
            raise no_such_queue(ref)
        return queue

    def require_open(self, ref: QueueRef) -> QueueState:
        """Return the queue. Raise `QueueNotFound`, or `Draining` if it is being deleted."""
        queue = self.require(ref)
        if queue.row.drain_until is not None:
            raise being_deleted(ref)
        return queue

    def find_by_prefix(self, p: bytes) -> QueueState | None:
        """Return the queue with this prefix, or None if it has been deleted or never existed."""
        ref = self.find_name(p)
        queue = None if ref is None else self.find(ref)
        return queue if queue is not None and queue.p == p else None

    def find_name(self, p: bytes) -> QueueRef | None:
        """Return the name of an existing or deleted queue, or None if no queue ever had this prefix."""
        ref = self._names.get(p)
        if ref is None and (raw := self._engine.database.get(keys.DIRECTORY, keys.QUEUE_NAMES + p)) is not None:
            ref = self._names[p] = _decode_ref(raw)
        return ref

    def name_of(self, p: bytes) -> QueueRef:
        """Return the name of an existing or deleted queue. Raise `StoreUnavailable` if no queue ever had this
        prefix."""
        ref = self.find_name(p)
        if ref is None:
            raise StoreUnavailable(f"queue number {p.hex()} has no name: run `holdfast verify` on a copy")
        return ref

    def row(self, ref: QueueRef) -> QueueRow | None:
        """Return the queue's row without loading the queue, or None if there is no such queue."""
        queue = self._loaded.get(ref)
        return self._read_row(ref) if queue is None else queue.row

    def rows(self, tenant: str) -> list[QueueRow]:
        """Return the rows of the tenant's queues, sorted by name, which is the order of their keys."""
        row = self.tenants.get(tenant)
        return [] if row is None else [decode_row(raw) for _, raw in self._items(_queues_of(row))]

    def counters(self, tenant: TenantRow) -> Iterator[tuple[bytes, Counters]]:
        """Yield the prefix and the counters of each of the tenant's queues, except those that never had a message."""
        # The write adds the counters of changed queues.
        self._engine.write()
        for key, raw in self._items(keys.COUNTERS + tenant.tenant_id.to_bytes(4, "big")):
            yield key[len(keys.COUNTERS) :], decode_counters(raw)

    def count(self, tenant: TenantRow) -> int:
        """Return the number of the tenant's queues."""
        space = _queues_of(tenant)
        return sum(1 for _ in self._engine.database.scan(keys.DIRECTORY, space, keys.after(space)))

    def highest_id(self, tenant: TenantRow) -> int:
        """Return the highest queue_id of the tenant's queues, including deleted ones; 0 if there were none."""
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
        # Share one string with the tenant's name among all its queues.
        name = QueueRef(tenant.tenant, row.ref.queue)
        policy = _DEFAULT_POLICY if row.policy == _DEFAULT_POLICY else row.policy
        return self._add_queue(
            replace(row, ref=name, policy=policy), Counters() if raw is None else decode_counters(raw)
        )

    def _add_queue(self, row: QueueRow, counters: Counters) -> QueueState:
        queue = self._loaded[row.ref] = self._make_queue_state(row, counters, self.tenants.totals(row.ref.tenant))
        return queue

    # --- Changing queues ---------------------------------------------------------------------------------------

    def create(self, ref: QueueRef) -> QueueState:
        """Create a queue. In the first shard this also creates a new tenant; for any other shard the tenant must
        already be on disk."""
        tenant = self.tenants.get(ref.tenant) or self.tenants.put(ref.tenant, TenantConfig())
        queue_id = self.tenants.take_queue_id(ref)
        if not self._owns(keys.prefix(tenant.tenant_id, queue_id)):
            raise RuntimeError(f"queue {queue_id} of {ref.tenant} does not belong to this shard")
        row = QueueRow(ref=ref, tenant_id=tenant.tenant_id, queue_id=queue_id, policy=_DEFAULT_POLICY)
        queue = self._add_queue(row, Counters())
        self._engine.put(keys.QUEUE_NAMES + queue.p, _encode(ref), keys.DIRECTORY)
        self._write_row(row)
        return queue

    def change(self, queue: QueueState, row: QueueRow) -> None:
        """Replace the row of a queue."""
        was, queue.row = queue.row, row
        self.indexes.change(was, row)
        self._write_row(row)

    def remove(self, queue: QueueState) -> None:
        """Delete an empty queue. Its queue_id is not reused."""
        row = queue.row
        self._engine.delete(_row_key(row), keys.DIRECTORY)
        self._engine.delete(keys.COUNTERS + queue.p, keys.DIRECTORY)
        self.indexes.change(row, None)
        del self._loaded[row.ref]
        self.tenants.note_queue_removed(row.ref.tenant)

    def _write_row(self, row: QueueRow) -> None:
        self._engine.put(_row_key(row), _encode(row), keys.DIRECTORY)

    def default_ttl_ms(self, queue: QueueState) -> int | None:
        """Return the TTL of messages without one of their own: the queue's, or else the tenant's."""
        row = queue.row
        return self.tenants.default_ttl_ms(row.ref.tenant, row.policy)


def _queues_of(tenant: TenantRow) -> bytes:
    """Return the prefix of the keys of the tenant's queues."""
    return keys.QUEUES + tenant.tenant_id.to_bytes(4, "big")


def _row_key(row: QueueRow) -> bytes:
    return keys.QUEUES + row.tenant_id.to_bytes(4, "big") + row.ref.queue.encode()
