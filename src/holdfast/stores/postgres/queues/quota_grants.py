"""Quotas of a tenant whose queues may lie on several databases (SPEC 8.9).

The tenant's home grants each shard a part; the parts together are never more than the quota, and no shard keeps more
than its part. A shard that needs more asks its home. What is granted and not used is taken back before anybody is
refused: so a refusal is exact, unless others enqueue at the same time.

Raising: first the home notes it, then the shard learns it. Lowering: the other way round. Each grant has a number, and
a shard takes none that is older than the one it has: so no crash and no delay leaves a shard with more than was noted.

What goes from shard to shard within a tenant is not asked for, and takes its part along. The target's is raised in the
transaction that announces it, where it counts at once; the source's is lowered in the one that lets it go. In between
it counts twice, and others may be refused early. What was announced and does not come is lowered again with it.
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

# Granted beyond what is needed at the moment, as long as there is plenty.
_SPARE_MESSAGES, _SPARE_BYTES = 1_000, 4 << 20


class QuotaAmount(NamedTuple):
    messages: int
    bytes: int

    def plus(self, other: "QuotaAmount") -> "QuotaAmount":
        return QuotaAmount(self.messages + other.messages, self.bytes + other.bytes)

    def or_more(self, other: "QuotaAmount") -> "QuotaAmount":
        return QuotaAmount(max(self.messages, other.messages), max(self.bytes, other.bytes))

    def is_within(self, quotas: Quotas) -> bool:
        return (quotas.max_messages is None or self.messages <= quotas.max_messages) and (
            quotas.max_bytes is None or self.bytes <= quotas.max_bytes
        )


_NONE = QuotaAmount(0, 0)


class QuotaShortage(Exception):
    """A shard has not been granted enough of its tenant's quota for what it would keep."""

    def __init__(self, tenant: str, shard: PostgresDatabase, used: QuotaAmount, sizes: list[int]) -> None:
        super().__init__(tenant)
        self.tenant = tenant
        self.shard = shard
        self.used = used
        self.sizes = sizes

    @property
    def needed(self) -> QuotaAmount:
        return self.used.plus(QuotaAmount(len(self.sizes), sum(self.sizes)))


class QuotaGranted(NamedTuple):
    """What the home has noted for a shard, and by which number."""

    part: QuotaAmount
    version: int


class QuotaGrants:
    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        # Of one tenant one after the other: else they take back what was just granted.
        self._turns: dict[str, asyncio.Lock] = {}

    async def check(self, connection: Any, info: QueueInfo, sizes: list[int], freed: QuotaAmount = _NONE) -> None:
        """Refuse messages of these sizes if they would take the tenant past a quota, in the transaction that adds
        them; `QuotaShortage` if that cannot be said here. `freed` goes in the same step."""
        quotas, tenant = info.config.quotas, info.ref.tenant
        check_quotas(tenant, Quotas(max_message_bytes=quotas.max_message_bytes), 0, 0, sizes)
        if info.has_quotas and sizes:
            await self._check(connection, info, sizes, freed)

    async def _check(self, connection: Any, info: QueueInfo, sizes: list[int], freed: QuotaAmount = _NONE) -> None:
        quotas, tenant = info.config.quotas, info.ref.tenant
        # Whoever adds for this tenant waits here: nobody counts what another is about to add.
        row = await connection.fetchrow(SQL["tenant_locked"], tenant)
        counted = await connection.fetchrow(SQL["usage"], tenant)
        used = QuotaAmount(counted["messages"] - freed.messages, counted["bytes"] - freed.bytes)
        if len(self._cluster.shards) == 1:
            check_quotas(tenant, quotas, used.messages, used.bytes, sizes)
            return
        short = QuotaShortage(tenant, info.shard, used, sizes)
        if not short.needed.is_within(_as_quotas(quotas, row["granted_messages"], row["granted_bytes"])):
            raise short

    async def widen(self, short: QuotaShortage) -> None:
        """Grant what is needed, or `OverQuota`."""
        async with self._turns.setdefault(short.tenant, asyncio.Lock()):
            await self._widen(short)

    async def _widen(self, short: QuotaShortage) -> None:
        if await self._grant(short):
            return
        for shard in self._cluster.shards:
            if shard is not short.shard:
                await self.take_back(short.tenant, shard)
        if await self._grant(short):
            return
        # What was noted for this one too may be more than it has: messages have gone from it to another.
        await self.take_back(short.tenant, short.shard)
        if not await self._grant(short):
            quotas, others, _ = await self._home_of(short.tenant).step(lambda each: self._parts(each, short))
            before = short.used.plus(others)
            check_quotas(short.tenant, quotas, before.messages, before.bytes, short.sizes)

    async def _grant(self, short: QuotaShortage) -> bool:
        async def work(connection: Any) -> tuple[QuotaAmount, int] | None:
            quotas, others, mine = await self._parts(connection, short)
            added = QuotaAmount(len(short.sizes), sum(short.sizes))
            # Never less than before: the shard may have used it since it was short. With room to spare if there is
            # plenty; else so much more that others who were short meanwhile have theirs besides; else what is needed.
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
        """The tenant's quotas, what all other shards were granted, and what this one was."""
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

    async def check_carried(
        self, connection: Any, info: QueueInfo, sizes: list[int], granted: "QuotaGranted | None"
    ) -> None:
        """Check quotas for messages that the tenant already has on another shard.

        Raise `QuotaShortage` until the amount that `carry` noted for them is granted here. The grant is used in the
        transaction that adds them, or not at all.
        """
        if not info.has_quotas:
            return
        if granted is not None:
            await connection.execute(SQL["take_grant"], info.ref.tenant, *granted.part, granted.version)
        await self._check(connection, info, sizes)

    async def carry(self, short: QuotaShortage) -> "QuotaGranted":
        """Note at the home what a shard needs for messages that come to it from another, whatever the quota says."""

        async def work(connection: Any) -> QuotaGranted:
            _, _, mine = await self._parts(connection, short)
            part = mine.or_more(short.needed)
            version: int = await connection.fetchval(SQL["put_grant"], short.tenant, short.shard.number, *part)
            return QuotaGranted(part, version)

        return await self._home_of(short.tenant).step(work)

    async def lower_by(self, connection: Any, key: int, part: QuotaAmount) -> None:
        """So much of a queue's tenant goes from this shard, or will not come, in this transaction."""
        if part != _NONE and len(self._cluster.shards) > 1:
            await connection.execute(SQL["lower_granted"], key, *part)

    async def note_all(self, tenant: str) -> None:
        """As `note_used`, for all shards that are up."""
        for shard in self._cluster.shards if len(self._cluster.shards) > 1 else ():
            try:
                await self.note_used(tenant, shard)
            except StoreUnavailable as error:
                _log.debug("what %s keeps is noted when its database is back: %s", tenant, error.message)

    async def note_used(self, tenant: str, shard: PostgresDatabase) -> None:
        """Grant a shard what it keeps: it has come without being asked for, from another shard or before there was a
        quota."""
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
        """In one transaction the counts of a queue go, and what was granted for them."""
        await connection.fetchrow(SQL["tenant_locked"], tenant)
        # In this order: lines that are being summed up meanwhile are found in the sums.
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
        """What a shard was granted and does not use."""

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
    """What a shard was granted of these."""
    return Quotas(
        max_messages=None if quotas.max_messages is None else messages,
        max_bytes=None if quotas.max_bytes is None else size,
    )
