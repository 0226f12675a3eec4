"""The tenants of a store, and the numbers of their queues, messages and bytes in all shards.

The rows of tenants are stored in the first shard, and all of them are in memory. A tenant's messages are counted when
the number is first needed, and the count is updated with every change from then on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.values import TenantRow

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode


class ShardQueues(Protocol):
    """The part of a shard's `QueueCatalog` that counts its queues."""

    def counters(self, tenant: TenantRow) -> Iterator[tuple[bytes, Counters]]:
        """Yield the prefix and the counters of each of the tenant's queues, except those that never had a message."""

    def count(self, tenant: TenantRow) -> int:
        """Return the number of the tenant's queues."""

    def highest_id(self, tenant: TenantRow) -> int:
        """Return the highest queue_id of the tenant's queues, including deleted ones; 0 if there were none."""


class Tenants:
    """The tenants of a store: their rows, quotas and totals, and the queue_ids of their queues."""

    def __init__(self, engine: Engine) -> None:
        """`engine` is the engine of the first shard."""
        self._engine = engine
        # The queues of each shard.
        self.shards: list[ShardQueues] = []
        self._rows: dict[str, TenantRow] = {}
        # Tenants with a quota on messages or bytes.
        self._limited: set[str] = set()
        # New tenants whose rows may not be on disk yet. Until they are, no other shard may create a queue for them.
        self._fresh: set[str] = set()
        # The messages of each tenant. Until a tenant is in `_counted`, these are only the changes since the store was
        # opened.
        self._totals: dict[str, Totals] = {}
        self._counted: set[str] = set()
        # Messages outside of the shards that count towards a tenant's quotas.
        self.outside: Callable[[str], Totals] = lambda tenant: Totals()
        # The number of queues of each tenant.
        self._queues: dict[str, int] = {}
        # The highest queue_id given in each tenant, including deleted queues.
        self._highest: dict[int, int] = {}
        # The queue_ids reserved for queues that do not exist yet, and the number of uploads to each such queue.
        self._reserved_ids: dict[QueueRef, tuple[int, int]] = {}

    def load(self) -> None:
        """Read the rows of all tenants."""
        for _, raw in self._engine.database.items(keys.DIRECTORY, keys.TENANTS, keys.after(keys.TENANTS)):
            self._add(_decode_tenant(raw))

    # --- Rows --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> TenantRow | None:
        """Return the tenant's row, or None if there is no such tenant."""
        return self._rows.get(name)

    def all(self) -> list[TenantRow]:
        """Return the rows of all tenants, sorted by name."""
        return [self._rows[name] for name in sorted(self._rows)]

    def config(self, name: str) -> TenantConfig:
        """Return the tenant's configuration, or the default for an unknown tenant."""
        row = self._rows.get(name)
        return TenantConfig() if row is None else row.config

    def oldest_event_at(self, name: str | None, now_ms: int) -> int:
        """Return the instant from which on a reader gets events: of the tenant, or, with None, of all tenants."""
        retention_ms = None if name is None else self.config(name).journal_retention_ms
        return 0 if retention_ms is None else now_ms - retention_ms

    def put(self, name: str, config: TenantConfig) -> TenantRow:
        """Add a tenant, or replace its configuration. Must be part of a commit of the first shard."""
        row = self._rows.get(name)
        if row is None:
            row = TenantRow(tenant=name, tenant_id=len(self._rows) + 1, config=config)
            if len(self.shards) > 1:
                self._fresh.add(name)
        else:
            row = replace(row, config=config)
        self._add(row)
        self._engine.put(keys.TENANTS + name.encode(), _encode(row), keys.DIRECTORY)
        return row

    def _add(self, row: TenantRow) -> None:
        self._rows[row.tenant] = row
        if row.config.quotas.limits_messages:
            self._limited.add(row.tenant)
        else:
            self._limited.discard(row.tenant)

    async def require_on_disk(self, name: str) -> None:
        """Return once the tenant's row is on disk, adding the tenant if there is none. Call before creating a queue in
        another shard."""
        if name not in self._rows:
            self._engine.begin()
            self.put(name, TenantConfig())
            await self._engine.committed()
        elif name not in self._fresh:
            return
        # Wait for the sync even with the durability `os`, where other calls return before it. A power cut could
        # otherwise lose the tenant's row and keep the row of its queue in the other shard.
        await self._engine.synced()
        self._fresh.discard(name)

    # --- Queues ------------------------------------------------------------------------------------------------

    def next_queue_id(self, ref: QueueRef) -> int:
        """Return the queue_id that the queue would get if it were created now."""
        tenant = self._rows[ref.tenant]
        if ref in self._reserved_ids:
            return self._reserved_ids[ref][0]
        highest = self._highest.get(tenant.tenant_id)
        if highest is None:
            highest = max(shard.highest_id(tenant) for shard in self.shards)
            self._highest[tenant.tenant_id] = highest
        return highest + 1

    def take_queue_id(self, ref: QueueRef) -> int:
        """Return the queue_id for a queue that the caller creates, and count the queue."""
        queue_id = self.next_queue_id(ref)
        self._reserved_ids.pop(ref, None)
        tenant_id = self._rows[ref.tenant].tenant_id
        self._highest[tenant_id] = max(self._highest[tenant_id], queue_id)
        if ref.tenant in self._queues:
            self._queues[ref.tenant] += 1
        return queue_id

    def reserve_queue_id(self, ref: QueueRef) -> int:
        """Reserve a queue_id for an upload to a missing queue. The queue gets it even if others are created before."""
        queue_id = self.next_queue_id(ref)
        _, uploads = self._reserved_ids.get(ref, (queue_id, 0))
        self._reserved_ids[ref] = queue_id, uploads + 1
        tenant_id = self._rows[ref.tenant].tenant_id
        self._highest[tenant_id] = max(self._highest[tenant_id], queue_id)
        return queue_id

    def release_queue_id(self, ref: QueueRef) -> None:
        """Undo one `reserve_queue_id`. Does nothing if the queue has been created."""
        if ref in self._reserved_ids:
            queue_id, uploads = self._reserved_ids.pop(ref)
            if uploads > 1:
                self._reserved_ids[ref] = queue_id, uploads - 1

    def note_queue_removed(self, tenant: str) -> None:
        """Subtract a deleted queue from the tenant's number of queues."""
        if tenant in self._queues:
            self._queues[tenant] -= 1

    def check_room_for_queue(self, tenant: str) -> None:
        """Raise `OverQuota` if another queue would exceed the tenant's max_queues."""
        row = self._rows.get(tenant)
        quotas = self.config(tenant).quotas
        if quotas.max_queues is None:
            return
        number = self._queues.get(tenant)
        if number is None:
            number = 0 if row is None else sum(shard.count(row) for shard in self.shards)
            if row is not None:
                self._queues[tenant] = number
        check_room_for_queue(tenant, quotas, number)

    # --- Totals and quotas -------------------------------------------------------------------------------------

    def totals(self, tenant: str) -> Totals:
        """Return the object in which the tenant's queues count their messages and bytes."""
        totals = self._totals.get(tenant)
        if totals is None:
            totals = self._totals[tenant] = Totals()
        return totals

    def has_quotas(self, tenant: str) -> bool:
        """Return whether the tenant has a quota on messages or bytes."""
        return tenant in self._limited

    def check_quotas(
        self, tenant: str, sizes: list[int], uploading: Iterable[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """Raise `OverQuota` or `PayloadTooLarge` if new messages of these sizes would exceed a quota of the tenant.

        `uploading` has the sizes of unfinished uploads, which count as messages too, and `freed` the sizes of messages
        that are removed in the same step.
        """
        quotas = self.config(tenant).quotas
        limits = quotas.limits_totals
        totals, outside = (self._count_messages(tenant), self.outside(tenant)) if limits else (Totals(), Totals())
        waiting = list(uploading)
        messages = totals.messages + outside.messages + len(waiting) - len(freed)
        size = totals.bytes + outside.bytes + sum(waiting) - sum(freed)
        check_quotas(tenant, quotas, messages, size, sizes)

    def _count_messages(self, tenant: str) -> Totals:
        """Return the tenant's totals. The first call counts the messages of all queues from their stored counters; from
        then on the queues update the totals."""
        totals, row = self.totals(tenant), self._rows.get(tenant)
        if tenant not in self._counted and row is not None:
            totals.messages = totals.bytes = 0
            for shard in self.shards:
                for _, counters in shard.counters(row):
                    totals.messages += counters.messages
                    totals.bytes += counters.bytes
            self._counted.add(tenant)
        return totals

    def default_ttl_ms(self, tenant: str, policy: QueuePolicy) -> int | None:
        """Return the TTL of messages without one of their own: the policy's, or else the tenant's."""
        return default_ttl_ms(policy, self._rows[tenant].config.quotas)
