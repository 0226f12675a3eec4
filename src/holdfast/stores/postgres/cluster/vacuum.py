"""Vacuum the table of messages as its rows die.

A row of a queue lives for seconds. PostgreSQL's autovacuum visits a database once a minute, and then finds hundreds of
thousands of dead rows at the head of the index that claims read. So each server vacuums after a number of its own
claims, and skips it while another server vacuums.

The number of claims balances two costs: dead rows slow every claim in proportion to their number, and a vacuum reads
the indexes of all live rows. The sum is smallest at a number that grows with the square root of the live rows.
"""

import math
from typing import Any

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect

# Minimum number of messages that this server has claimed on a database since its last vacuum there. Of 5,000 to 50,000,
# the number with which the databases used the least CPU on a queue with few messages (bench/postgres.py).
CLAIMED = 10_000
# A claim of 100 messages takes 20 ns longer for each dead row; a vacuum takes 0.2 us for each live row.
_CLAIMED_BY_ROOT = 50
_LOOK_MS = 1_000
_LONGEST_S = 600.0
# TRUNCATE off avoids the lock for giving back the end of the table. The indexes are cleaned even if few rows of a large
# table are dead, because claims read past every dead entry.
_VACUUM = "VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) items, count_lines"
_ROWS = "SELECT reltuples FROM pg_class WHERE oid = 'items'::regclass"


def claims_between(rows: float) -> int:
    """Return how many claims should pass between two vacuums of a table with this many rows."""
    return max(CLAIMED, round(_CLAIMED_BY_ROOT * math.sqrt(max(0.0, rows))))


class Vacuum:
    """The vacuum loop of one server."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        # The rows of each database when this server last vacuumed it.
        self._rows: dict[PostgresDatabase, float] = {}

    async def run(self, clock: Clock) -> None:
        """Vacuum when enough was claimed, until cancelled."""
        await run_forever(self.vacuum_all_once, Backoff("vacuum"), clock, lambda: sleep_for(clock, _LOOK_MS))

    async def vacuum_all_once(self) -> None:
        """Check every database; raise the last error once all were tried."""
        failure: Exception | None = None
        for shard in self._cluster.shards:
            try:
                await self.vacuum_once(shard)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    async def vacuum_once(self, shard: PostgresDatabase) -> bool:
        """Vacuum a database if enough was claimed there, and return whether it was vacuumed. Errors of the driver are
        raised. It uses its own connection, because a vacuum may take long."""
        claimed = shard.claimed
        if claimed < claims_between(self._rows.get(shard, 0.0)):
            return False
        shard.claimed = 0
        connection: Any = None
        try:
            connection = await connect(shard.url, {"application_name": "holdfast vacuum"})
            await connection.execute(_VACUUM, timeout=_LONGEST_S)
            self._rows[shard] = await connection.fetchval(_ROWS)
        except Exception:
            shard.claimed += claimed
            raise
        finally:
            if connection is not None:
                connection.terminate()
        return True
