"""Copies of a tenant's configuration on the databases that are not its home.

A change is made on the home, which notes in the same transaction every database that must receive it. A database that
is down receives it from a sweep when it is back; no call waits for it. A copy has the home's revision number and
ignores older ones. With each copy, the tenant's usage on that database is noted on the home, because a quota may be
new.
"""

import logging
from typing import Any

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.schema.statements import SQL

_log = logging.getLogger("holdfast")


class TenantCopies:
    """Sends tenants' configurations to other databases."""

    def __init__(self, cluster: PostgresCluster, grants: QuotaGrants) -> None:
        self._cluster = cluster
        self._grants = grants

    async def note(self, connection: Any, tenant: str, home: PostgresDatabase) -> None:
        """Note, in the transaction of the change, that all other databases must receive it."""
        others = [shard.number for shard in self._cluster.shards if shard is not home]
        await connection.execute(SQL["note_copies"], tenant, others)

    async def send(self, home: PostgresDatabase, tenant: str | None = None, limit: int = 100) -> int:
        """Send configurations to the databases that have not received them, of one tenant or of all. Return how many
        were sent."""
        sent = 0
        for row in await home.fetch(SQL["due_copies"], tenant, limit):
            if row["shard"] >= len(self._cluster.shards):
                continue
            shard = self._cluster.shards[row["shard"]]
            try:
                await shard.fetch(SQL["copy_tenant"], row["tenant"], row["tenant_id"], row["config"], row["revision"])
                await self._grants.note_used(row["tenant"], shard)
            except StoreUnavailable as error:
                _log.debug(
                    "tenant_copy_not_sent tenant=%s error=%s",
                    row["tenant"],
                    error.message,
                )
                continue
            await home.fetch(SQL["copied"], row["tenant"], row["shard"], row["revision"])
            sent += 1
        return sent
