"""Room that messages leave behind, taken back as they go.

A queue's rows live for seconds. PostgreSQL's own vacuum comes to a database once a minute, and finds hundreds of
thousands of dead rows at the head of the index that claims read. So each server vacuums after so many of its own
changes; where others do it at that moment, it lets them.
"""

import asyncio
import logging
from typing import Any

from asyncpg import exceptions

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.shard import LOST, Shard, connect

_log = logging.getLogger("holdfast")

# Messages that this server has claimed on a database since its last vacuum there.
CLAIMED = 50_000
_LOOK_S = 1.0
_LONGEST_S = 600.0
# Without the lock that giving back the end of a table takes.
_VACUUM = "VACUUM (SKIP_LOCKED, TRUNCATE off) items, count_lines"


class Vacuum:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for shard in self._cluster.shards:
                await self.vacuum_once(shard)

    async def vacuum_once(self, shard: Shard) -> bool:
        """If enough was claimed there; on a connection of its own, for it may take long."""
        if shard.claimed < CLAIMED:
            return False
        shard.claimed = 0
        connection: Any = None
        try:
            connection = await connect(shard.url, {"application_name": "holdfast vacuum"})
            await connection.execute(_VACUUM, timeout=_LONGEST_S)
        except (*LOST, exceptions.PostgresError, StoreUnavailable) as error:
            _log.debug("a database was not vacuumed, and will be: %s", error)
            return False
        finally:
            if connection is not None:
                connection.terminate()
        return True
