"""A tenant's configuration on the databases that are not its home.

A change is the home's: it is made there, with a note of everybody who is to be told, in one step. A database that is
down is told when it is back, by a sweep; nobody else waits for it. A copy knows which of the home's revisions it is,
and takes no older one. With it goes what the tenant keeps there into the home's notes, for a quota may be new.
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
    def __init__(self, cluster: PostgresCluster, grants: QuotaGrants) -> None:
        self._cluster = cluster
        self._grants = grants

    async def note(self, connection: Any, tenant: str, home: PostgresDatabase) -> None:
        """In the step that changes it: who is to be told."""
        others = [shard.number for shard in self._cluster.shards if shard is not home]
        await connection.execute(SQL["note_copies"], tenant, others)

    async def send(self, home: PostgresDatabase, tenant: str | None = None, limit: int = 100) -> int:
        """Tell those who have not been told, of one tenant or of any; answers how many were."""
        told = 0
        for row in await home.fetch(SQL["due_copies"], tenant, limit):
            if row["shard"] >= len(self._cluster.shards):
                continue
            shard = self._cluster.shards[row["shard"]]
            try:
                await shard.fetch(SQL["copy_tenant"], row["tenant"], row["tenant_id"], row["config"], row["revision"])
                await self._grants.note_used(row["tenant"], shard)
            except StoreUnavailable as error:
                _log.debug("the configuration of %s waits for its database: %s", row["tenant"], error.message)
                continue
            await home.fetch(SQL["copied"], row["tenant"], row["shard"], row["revision"])
            told += 1
        return told
