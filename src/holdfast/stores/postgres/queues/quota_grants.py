"""Quotas of a tenant whose queues may be on several databases (SPEC 8.9).

The tenant's home grants each shard a part of the quota. The parts never add up to more than the quota, and no shard
stores more than its part. A shard that needs more asks the home. Unused grants are taken back before a call is refused,
so a refusal is exact unless others enqueue at the same time.

To raise a part, the home notes it first, then the shard learns it; to lower one, the other way round. Each grant has a
version, and a shard ignores a grant older than the one it has. So no crash and no delay leaves a shard with more than
the home has noted.

Messages that move from shard to shard within a tenant take their part along without asking. The target's part is raised
in the transaction that announces the messages, where they count at once; the source's part is lowered in the
transaction that removes them. In between they count twice, and other calls may be refused early. If announced messages
do not arrive, the part is lowered again with them.
"""

import asyncio
import logging
from typing import Any, NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.model.policy import Quotas
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.queues.queue_info import QueueInfo, decode_config
from holdfast.stores.postgres.schema.statements import SQL

_log = logging.getLogger("holdfast")

# Granted beyond the current need while the quota has plenty left.
_SPARE_MESSAGES, _SPARE_BYTES = 1_000, 4 << 20


class QuotaAmount(NamedTuple):
    """A number of messages and bytes."""

    messages: int
    bytes: int

    def plus(self, other: "QuotaAmount") -> "QuotaAmount":
        """Return the sum."""
        return QuotaAmount(self.messages + other.messages, self.bytes + other.bytes)

    def or_more(self, other: "QuotaAmount") -> "QuotaAmount":
        """Return the larger number of messages and the larger number of bytes."""
        return QuotaAmount(max(self.messages, other.messages), max(self.bytes, other.bytes))

    def is_within(self, quotas: Quotas) -> bool:
        """Return whether the amount is within the quotas."""
        return (quotas.max_messages is None or self.messages <= quotas.max_messages) and (
            quotas.max_bytes is None or self.bytes <= quotas.max_bytes
        )


_NONE = QuotaAmount(0, 0)


class QuotaShortage(Exception):
    """A shard has not been granted enough of its tenant's quota for the messages it would store."""

    def __init__(self, tenant: str, shard: PostgresDatabase, used: QuotaAmount, sizes: list[int]) -> None:
        super().__init__(tenant)
        self.tenant = tenant
        self.shard = shard
        self.used = used
        self.sizes = sizes

    @property
    def needed(self) -> QuotaAmount:
        """The amount that the shard would store."""
        return self.used.plus(QuotaAmount(len(self.sizes), sum(self.sizes)))


class QuotaGranted(NamedTuple):
    """A part that the home has noted for a shard, and its version."""

    part: QuotaAmount
    version: int


class QuotaGrants:
    """The quotas of all tenants with more than one database."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        # One at a time for each tenant: otherwise they would take back what was just granted.
        self._locks: dict[str, asyncio.Lock] = {}

    async def check(self, connection: Any, info: QueueInfo, sizes: list[int], freed: QuotaAmount = _NONE) -> None:
        """Check the quotas in the transaction that adds messages of these sizes; `freed` is removed in the same step.
        Raise `OverQuota` or `PayloadTooLarge`, or `QuotaShortage` if the shard's part is too small to decide."""
        quotas, tenant = info.config.quotas, info.ref.tenant
        check_quotas(tenant, Quotas(max_message_bytes=quotas.max_message_bytes), 0, 0, sizes)
        if info.has_quotas and sizes:
            await self._check(connection, info, sizes, freed)

    async def _check(self, connection: Any, info: QueueInfo, sizes: list[int], freed: QuotaAmount = _NONE) -> None:
        quotas, tenant = info.config.quotas, info.ref.tenant
        # Transactions that add messages for this tenant wait here for one another, so each counts the messages of the
        # one before.
        row = await connection.fetchrow(SQL["tenant_locked"], tenant)
        counted = await connection.fetchrow(SQL["usage"], tenant)
        used = QuotaAmount(counted["messages"] - freed.messages, counted["bytes"] - freed.bytes)
        if len(self._cluster.shards) == 1:
            check_quotas(tenant, quotas, used.messages, used.bytes, sizes)
            return
        short = QuotaShortage(tenant, info.shard, used, sizes)
        if not short.needed.is_within(_as_quotas(quotas, row["granted_messages"], row["granted_bytes"])):
            raise short

    async def grant_more(self, short: QuotaShortage) -> None:
        """Grant the shard the amount that it is short of. Raise `OverQuota` if the quota is used up."""
        async with self._locks.setdefault(short.tenant, asyncio.Lock()):
            await self._grant_more(short)

    async def _grant_more(self, short: QuotaShortage) -> None:
        if await self._grant(short):
            return
        for shard in self._cluster.shards:
            if shard is not short.shard:
                await self.take_back(short.tenant, shard)
        if await self._grant(short):
            return
        # The part noted for this shard may also be more than it uses, because messages have moved from it to another.
        await self.take_back(short.tenant, short.shard)
        if not await self._grant(short):
            quotas, others, _ = await self._home_of(short.tenant).step(lambda each: self._parts(each, short))
            before = short.used.plus(others)
            check_quotas(short.tenant, quotas, before.messages, before.bytes, short.sizes)

    async def _grant(self, short: QuotaShortage) -> bool:
        async def work(connection: Any) -> tuple[QuotaAmount, int] | None:
            quotas, others, mine = await self._parts(connection, short)
            added = QuotaAmount(len(short.sizes), sum(short.sizes))
            # Never less than before, because the shard may have used it since. With spare room if there is plenty; else
            # with room for others that were short meanwhile; else exactly what is needed.
            least = mine.or_more(short.needed)
            spare = least.plus(QuotaAmount(_SPARE_MESSAGES, _SPARE_BYTES))
            if others.plus(spare).plus(spare).is_within(quotas):
                part = spare
            elif others.plus(least.or_more(mine.plus(added))).is_within(quotas):
                part = least.or_more(mine.plus(added))
            elif others.plus(least).is_within(quotas):
                part = least
            else:
                return None
            version = await connection.fetchval(SQL["put_grant"], short.tenant, short.shard.number, *part)
            return part, version

        granted = await self._home_of(short.tenant).step(work)
        if granted is None:
            return False
        part, version = granted
        await short.shard.fetch(SQL["take_grant"], short.tenant, *part, version)
        return True

    async def _parts(self, connection: Any, short: QuotaShortage) -> tuple[Quotas, QuotaAmount, QuotaAmount]:
        """Return the tenant's quotas, the parts of all other shards together, and the part of the short shard."""
        row = await connection.fetchrow(SQL["tenant_locked"], short.tenant)
        others = mine = _NONE
        for grant in await connection.fetch(SQL["grants"], short.tenant):
            part = QuotaAmount(grant["messages"], grant["bytes"])
            if grant["shard"] == short.shard.number:
                mine = part
            else:
                others = others.plus(part)
        return decode_config(row["config"]).quotas, others, mine

    # --- When messages or queues go to another database --------------------------------------------------------------

    async def check_moved(
        self, connection: Any, info: QueueInfo, sizes: list[int], granted: "QuotaGranted | None"
    ) -> None:
        """Check quotas for messages that the tenant already has on another shard.

        Raise `QuotaShortage` until the amount that `grant_for_move` noted for them is granted here. The grant is used
        in the transaction that adds them, or not at all.
        """
        if not info.has_quotas:
            return
        if granted is not None:
            await connection.execute(SQL["take_grant"], info.ref.tenant, *granted.part, granted.version)
        await self._check(connection, info, sizes)

    async def grant_for_move(self, short: QuotaShortage) -> "QuotaGranted":
        """Note at the home the part that a shard needs for messages arriving from another shard, even beyond
        the quota."""

        async def work(connection: Any) -> QuotaGranted:
            _, _, mine = await self._parts(connection, short)
            part = mine.or_more(short.needed)
            version: int = await connection.fetchval(SQL["put_grant"], short.tenant, short.shard.number, *part)
            return QuotaGranted(part, version)

        return await self._home_of(short.tenant).step(work)

    async def lower_part(self, connection: Any, key: int, part: QuotaAmount) -> None:
        """Lower the part of this shard, in this transaction, by messages that leave it or will not arrive."""
        if part != _NONE and len(self._cluster.shards) > 1:
            await connection.execute(SQL["lower_granted"], key, *part)

    async def note_all(self, tenant: str) -> None:
        """Call `note_used` for all shards that are up."""
        for shard in self._cluster.shards if len(self._cluster.shards) > 1 else ():
            try:
                await self.note_used(tenant, shard)
            except StoreUnavailable as error:
                _log.debug("usage_not_noted tenant=%s error=%s", tenant, error.message)

    async def note_used(self, tenant: str, shard: PostgresDatabase) -> None:
        """Grant a shard its current usage, for messages that came without asking: from another shard, or before there
        was a quota."""
        used = await shard.fetch(SQL["usage"], tenant)
        part = QuotaAmount(used[0]["messages"], used[0]["bytes"])

        async def work(connection: Any) -> tuple[QuotaAmount, int]:
            await connection.fetchrow(SQL["tenant_locked"], tenant)
            mine = part
            for grant in await connection.fetch(SQL["grants"], tenant):
                if grant["shard"] == shard.number:
                    mine = part.or_more(QuotaAmount(grant["messages"], grant["bytes"]))
            version: int = await connection.fetchval(SQL["put_grant"], tenant, shard.number, *mine)
            return mine, version

        granted, version = await self._home_of(tenant).step(work)
        await shard.fetch(SQL["take_grant"], tenant, *granted, version)

    async def lower_in(self, connection: Any, tenant: str, key: int) -> None:
        """Delete the counts of a queue, and lower the part of the quota that they used, in one transaction."""
        await connection.fetchrow(SQL["tenant_locked"], tenant)
        # In this order: lines that are summed up meanwhile are then found in the sums.
        await connection.execute("DELETE FROM count_lines WHERE queue_key = $1", key)
        await connection.execute("DELETE FROM counts WHERE queue_key = $1", key)
        used = await connection.fetchrow(SQL["usage"], tenant)
        await connection.execute(
            "UPDATE tenants SET granted_messages = least(granted_messages, $2), "
            "granted_bytes = least(granted_bytes, $3) WHERE tenant = $1",
            tenant,
            used["messages"],
            used["bytes"],
        )

    async def take_back(self, tenant: str, shard: PostgresDatabase) -> None:
        """Lower a shard's part to its current usage."""

        async def number(connection: Any) -> int | None:
            await connection.fetchrow(SQL["tenant_locked"], tenant)
            for grant in await connection.fetch(SQL["grants"], tenant):
                if grant["shard"] == shard.number:
                    part = grant["messages"], grant["bytes"]
                    version: int = await connection.fetchval(SQL["put_grant"], tenant, shard.number, *part)
                    return version
            return None

        async def lower(connection: Any) -> QuotaAmount:
            await connection.fetchrow(SQL["tenant_locked"], tenant)
            used = await connection.fetchrow(SQL["usage"], tenant)
            part = QuotaAmount(used["messages"], used["bytes"])
            status = await connection.execute(SQL["take_grant"], tenant, *part, version)
            return part if status == "UPDATE 1" else QuotaAmount(-1, -1)

        home = self._home_of(tenant)
        version = await home.step(number)
        if version is None:
            return
        part = await shard.step(lower)
        if part.messages >= 0:
            await home.fetch(SQL["lower_grant"], tenant, shard.number, version, *part)

    def _home_of(self, tenant: str) -> PostgresDatabase:
        return self._cluster.home_of(tenant)


def _as_quotas(quotas: Quotas, messages: int, size: int) -> Quotas:
    """Return the quotas limited to the shard's part."""
    return Quotas(
        max_messages=None if quotas.max_messages is None else messages,
        max_bytes=None if quotas.max_bytes is None else size,
    )
