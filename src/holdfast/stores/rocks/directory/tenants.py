"""Tenants, and what each of them keeps in all its queues, whatever shards these are in.

The rows of tenants lie in the first shard. All of them are in memory; what a tenant keeps is counted when it is first
asked for, and kept up from then on.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.contract import TenantRow
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue, default_ttl_ms
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals
from holdfast.stores.rocks.engine.engine import Engine

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode


class ShardQueues(Protocol):
    """The queues of one shard."""

    def counters(self, tenant: TenantRow) -> Iterator[tuple[bytes, Counters]]:
        """Yield the counters of the tenant's queues, by their prefix. Queues that never had a message are left out."""

    def count(self, tenant: TenantRow) -> int:
        """Return the number of the tenant's queues."""

    def highest_id(self, tenant: TenantRow) -> int:
        """Return the highest queue_id of the tenant's queues, those that are gone included; 0 if there are none."""


class Tenants:
    def __init__(self, engine: Engine) -> None:
        """`engine`: that of the first shard."""
        self._engine = engine
        # The queues of each shard.
        self.shards: list[ShardQueues] = []
        self._rows: dict[str, TenantRow] = {}
        # Tenants that may not keep as much as they like.
        self._limited: set[str] = set()
        # New tenants whose rows may not be on disk yet. No other shard may have a queue of theirs before.
        self._fresh: set[str] = set()
        # The messages of each tenant; before they are counted, only the changes since the store was opened.
        self._totals: dict[str, Totals] = {}
        self._counted: set[str] = set()
        # The number of queues of each tenant.
        self._queues: dict[str, int] = {}
        # The highest queue_id given in each tenant, to queues that are gone too.
        self._highest: dict[int, int] = {}
        # The queue_ids set aside for queues that do not exist yet, and how many uploads each is set aside for.
        self._set_aside: dict[QueueRef, tuple[int, int]] = {}

    def load(self) -> None:
        for _, raw in self._engine.database.items(keys.DIRECTORY, keys.TENANTS, keys.after(keys.TENANTS)):
            self._add(_decode_tenant(raw))

    # --- Rows --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> TenantRow | None:
        return self._rows.get(name)

    def all(self) -> list[TenantRow]:
        return [self._rows[name] for name in sorted(self._rows)]

    def config(self, name: str) -> TenantConfig:
        row = self._rows.get(name)
        return TenantConfig() if row is None else row.config

    def put(self, name: str, config: TenantConfig) -> TenantRow:
        """Add a tenant, or change its config. Must be part of a step of the first shard."""
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
        """Return once the tenant's row is on disk; add the tenant if there is none. For a queue in another shard."""
        if name not in self._rows:
            self._engine.begin()
            self.put(name, TenantConfig())
            await self._engine.committed()
        elif name not in self._fresh:
            return
        # Also where calls are answered earlier: a queue whose tenant a power cut took would be nobody's.
        await self._engine.synced()
        self._fresh.discard(name)

    # --- Queues ------------------------------------------------------------------------------------------------

    def next_queue_id(self, ref: QueueRef) -> int:
        """Return the queue_id that a queue would get if it were made now."""
        tenant = self._rows[ref.tenant]
        if ref in self._set_aside:
            return self._set_aside[ref][0]
        highest = self._highest.get(tenant.tenant_id)
        if highest is None:
            highest = max(shard.highest_id(tenant) for shard in self.shards)
            self._highest[tenant.tenant_id] = highest
        return highest + 1

    def take_queue_id(self, ref: QueueRef) -> int:
        """Return the queue_id of a queue that is being made."""
        queue_id = self.next_queue_id(ref)
        self._set_aside.pop(ref, None)
        tenant_id = self._rows[ref.tenant].tenant_id
        self._highest[tenant_id] = max(self._highest[tenant_id], queue_id)
        if ref.tenant in self._queues:
            self._queues[ref.tenant] += 1
        return queue_id

    def set_queue_id_aside(self, ref: QueueRef) -> int:
        """Return the queue_id that a queue gets once it is made, whatever other queues are made before."""
        queue_id = self.next_queue_id(ref)
        _, uploads = self._set_aside.get(ref, (queue_id, 0))
        self._set_aside[ref] = queue_id, uploads + 1
        tenant_id = self._rows[ref.tenant].tenant_id
        self._highest[tenant_id] = max(self._highest[tenant_id], queue_id)
        return queue_id

    def release_queue_id(self, ref: QueueRef) -> None:
        """Take back `set_queue_id_aside` for a queue that was not made since."""
        if ref in self._set_aside:
            queue_id, uploads = self._set_aside.pop(ref)
            if uploads > 1:
                self._set_aside[ref] = queue_id, uploads - 1

    def note_queue_removed(self, tenant: str) -> None:
        if tenant in self._queues:
            self._queues[tenant] -= 1

    def check_room_for_queue(self, tenant: str) -> None:
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

    # --- What they keep ----------------------------------------------------------------------------------------

    def totals(self, tenant: str) -> Totals:
        """Return the totals that the tenant's queues keep up."""
        totals = self._totals.get(tenant)
        if totals is None:
            totals = self._totals[tenant] = Totals()
        return totals

    def has_quotas(self, tenant: str) -> bool:
        return tenant in self._limited

    def check_quotas(
        self, tenant: str, sizes: list[int], on_their_way: Iterable[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """Refuse messages of these sizes if they, after those on their way and without those that are freed, would take
        the tenant past a quota."""
        quotas = self.config(tenant).quotas
        totals = self._count_messages(tenant) if quotas.limits_totals else Totals()
        waiting = list(on_their_way)
        messages = totals.messages + len(waiting) - len(freed)
        size = totals.bytes + sum(waiting) - sum(freed)
        check_quotas(tenant, quotas, messages, size, sizes)

    def _count_messages(self, tenant: str) -> Totals:
        """Return the number and size of the tenant's messages. They are counted once; from then on, the queues keep
        them up. A queue that is loaded later was counted with the others."""
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
        return default_ttl_ms(policy, self._rows[tenant].config.quotas)
