"""Connections that outlive the store that opened them, for tests that open hundreds of stores on one event loop.

A new connection costs its server a process, and the plan of every statement anew: more than most laws ask of a store.
"""

from collections import defaultdict
from typing import Any

from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.database import PostgresDatabase


class KeptConnections:
    def __init__(self) -> None:
        # By the database.
        self.idle: defaultdict[str, list[Any]] = defaultdict(list)

    def lend_to(self, store: PostgresStore) -> PostgresStore:
        """Before it is opened."""
        cluster = store._cluster
        cluster.shards = [
            _LentShard(shard.url, shard._settings, shard.bounds, self.idle[shard.url]) for shard in cluster.shards
        ]
        return store

    async def close(self) -> None:
        for idle in self.idle.values():
            for connection in idle:
                await connection.close()


class _LentShard(PostgresDatabase):
    def __init__(self, url: str, settings: dict[str, str], bounds: ConnectionBounds, kept: list[Any]) -> None:
        super().__init__(url, settings, bounds)
        self._kept = kept

    async def _connect(self) -> Any:
        while self._kept:
            connection = self._kept.pop()
            if not connection.is_closed():
                return connection
        return await super()._connect()

    async def _disconnect(self, connection: Any) -> None:
        """Its prepared statements are all that the next one finds of this one."""
        await connection.reset()
        self._kept.append(connection)
