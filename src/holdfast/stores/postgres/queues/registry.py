"""Queues and their rows, and this server's cache of them."""

from collections import defaultdict
from typing import Any, NamedTuple

from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, Quotas, TenantConfig
from holdfast.stores.logic.quotas import check_room_for_queue
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.queues.queue_info import (
    QueueInfo,
    decode_config,
    decode_queue_info,
    encode_config,
    encode_policy,
)
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.queues.tenant_copies import TenantCopies
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import TenantRow

# Maximum number of cached queues; beyond it, those cached first are dropped.
_REMEMBERED = 50_000


class Numbered(NamedTuple):
    """A queue's id, with its tenant as the home database has it, and the tenant's revision there."""

    tenant: TenantRow
    revision: int
    queue_id: int


class QueueRegistry:
    """The queues, for the rest of the store; `PostgresDirectory` is the part of the contract."""

    def __init__(self, cluster: PostgresCluster, grants: QuotaGrants) -> None:
        self._cluster = cluster
        self._grants = grants
        self._known: dict[QueueRef, QueueInfo] = {}
        self.copies = TenantCopies(cluster, grants)

    async def known(self, ref: QueueRef) -> QueueInfo | None:
        """Return the queue as this server last saw it, which every statement checks. Return None only if there is no
        such queue now."""
        return self._known.get(ref) or await self.load(ref)

    def remembered(self, ref: QueueRef) -> QueueInfo | None:
        """Return the queue if this server has seen it."""
        return self._known.get(ref)

    async def load(self, ref: QueueRef) -> QueueInfo | None:
        """Read the queue from the database that owns it; None if it does not exist. Raise `QueueMoved` while it is
        moving."""
        while True:
            shard = self._cluster.shard_of(ref)
            rows = await shard.fetch(SQL["queue"], ref.tenant, ref.queue, None)
            if rows and rows[0]["moving_to"] is None:
                return self.remember(decode_queue_info(rows[0], shard))
            self.forget(ref)
            if not rows and await self._cluster.owns(shard, ref):
                return None
            await self._follow(ref, shard)

    async def _follow(self, ref: QueueRef, shard: PostgresDatabase) -> None:
        """Refresh the slot table because the queue is no longer on this database. Raise `QueueMoved` while it is
        moving."""
        await self._cluster.refresh()
        if self._cluster.shard_of(ref) is shard:
            raise QueueMoved(ref)

    async def require(self, ref: QueueRef) -> QueueInfo:
        """Return the queue, or raise `QueueNotFound`."""
        info = await self.load(ref)
        if info is None:
            raise no_such_queue(ref)
        return info

    async def require_open(self, ref: QueueRef) -> QueueInfo:
        """Return the queue; raise `QueueNotFound`, or `Draining` if it is being deleted."""
        info = await self.require(ref)
        if info.row.drain_until is not None:
            raise being_deleted(ref)
        return info

    def remember(self, info: QueueInfo) -> QueueInfo:
        """Add a queue to the cache."""
        if len(self._known) >= _REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[info.ref] = info
        return info

    def forget(self, ref: QueueRef) -> None:
        """Remove a queue from the cache."""
        self._known.pop(ref, None)

    def forget_tenant(self, tenant: str) -> None:
        """Remove a tenant's queues from the cache."""
        for ref in [ref for ref in self._known if ref.tenant == tenant]:
            self.forget(ref)

    async def follow(self, ref: QueueRef) -> bool:
        """Find the owner of a queue that has moved, and return whether it is another database."""
        known = self.remembered(ref)
        self.forget(ref)
        await self._cluster.refresh()
        return known is not None and self._cluster.shard_of(ref) is not known.shard

    async def keys_of(self, tenant: str) -> dict[int, list[int]]:
        """Return the keys of the tenant's queues by the number of their database."""
        keys: dict[str, tuple[int, int]] = {}
        for number, shard in enumerate(self._cluster.shards):
            for row in await shard.fetch(SQL["queues_of"], tenant):
                if row["moving_to"] is None or row["queue"] not in keys:
                    keys[row["queue"]] = number, row["key"]
        by_shard: defaultdict[int, list[int]] = defaultdict(list)
        for number, key in keys.values():
            by_shard[number].append(key)
        return by_shard

    async def create(self, ref: QueueRef) -> QueueInfo:
        """Create the queue if it does not exist, and return it."""
        number = await self.take_number(ref)

        async def make(connection: Any) -> QueueInfo:
            return await self.make_in(connection, ref, number)

        return self.remember(await self._cluster.shard_of(ref).step(make))

    async def take_number(self, ref: QueueRef) -> Numbered | None:
        """Take the queue's number on its tenant's home. Return None if that is the queue's own database: the number is
        then taken with the rest."""
        home = self._cluster.home_of(ref.tenant)
        if home is self._cluster.shard_of(ref):
            return None

        async def take(connection: Any) -> Numbered:
            return await self._take_number(connection, ref, home.number)

        return await home.step(take)

    async def make_in(self, connection: Any, ref: QueueRef, number: Numbered | None) -> QueueInfo:
        """Return the queue in a transaction of its database; create it if it does not exist."""
        shard = self._cluster.shard_of(ref)
        row = await connection.fetchrow(SQL["queue"], ref.tenant, ref.queue, None)
        if row is not None and row["moving_to"] is not None:
            raise QueueMoved(ref)
        if row is None:
            await self.check_owner(connection, ref)
            if number is None:
                number = await self._take_number(connection, ref, shard.number)
            tenant, revision, queue_id = number
            raw = encode_config(tenant.config)
            if self._cluster.home_of(ref.tenant) is not shard:
                await connection.execute(SQL["copy_tenant"], ref.tenant, tenant.tenant_id, raw, revision)
            await connection.execute(
                SQL["make_queue"],
                ref.tenant,
                ref.queue,
                tenant.tenant_id,
                queue_id,
                *encode_policy_columns(QueuePolicy()),
            )
            row = await connection.fetchrow(SQL["queue"], ref.tenant, ref.queue, None)
        return decode_queue_info(row, shard)

    async def check_owner(self, connection: Any, ref: QueueRef) -> None:
        """Raise `QueueMoved` unless this transaction's database, which has no such queue, is its owner."""
        if self._cluster.uses_slots:
            owner = await connection.fetchrow(SQL["slot_owner"], slot_of(ref.tenant, ref.queue))
            if owner["shard"] != self._cluster.number_of(ref) or owner["is_moving"]:
                raise QueueMoved(ref)

    async def _take_number(self, connection: Any, ref: QueueRef, shard: int) -> Numbered:
        found = await connection.fetchrow(SQL["tenant"], ref.tenant)
        quotas = Quotas() if found is None else decode_config(found["config"]).quotas
        if found is None:
            check_room_for_queue(ref.tenant, quotas, 0)
            await connection.execute(SQL["make_tenant"], ref.tenant, None, shard, encode_config(TenantConfig()))
        row = await connection.fetchrow(SQL["tenant_locked"], ref.tenant)
        known = await connection.fetchval(SQL["directory_find"], ref.tenant, ref.queue)
        if known is None:
            count = await connection.fetchval(SQL["directory_count"], ref.tenant)
            check_room_for_queue(ref.tenant, decode_config(row["config"]).quotas, count)
            known = await connection.fetchval(SQL["directory_put"], ref.tenant, ref.queue)
        return Numbered(decode_tenant_row(row), row["revision"], known)


def encode_policy_columns(policy: QueuePolicy) -> tuple[bytes, int, int, bool]:
    """Return the columns of `queues` for a policy."""
    return encode_policy(policy), policy.lease_ms, policy.max_lease_ms, policy.keep_succeeded_ms > 0


def decode_tenant_row(row: Any) -> TenantRow:
    """Return the contract's view of a row of `tenants`."""
    return TenantRow(tenant=row["tenant"], tenant_id=row["tenant_id"], config=decode_config(row["config"]))
