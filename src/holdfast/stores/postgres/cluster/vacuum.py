"""Room that messages leave behind, taken back as they go.

A queue's rows live for seconds. PostgreSQL's own vacuum comes to a database once a minute, and finds hundreds of
thousands of dead rows at the head of the index that claims read. So each server vacuums after so many of its own
changes; where others do it at that moment, it lets them.

How many: what is dead slows every claim by as much as there is of it, and a vacuum reads the indexes of all that lives.
The two cost the same in all at a number that grows with the root of the rows.
"""

import math
from typing import Any

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect

# Messages that this server has claimed on a database since its last vacuum there, at least. Of 5,000 to 50,000, with
# which the databases spent the least of their processors on a queue with few messages in it (bench/postgres.py).
CLAIMED = 10_000
# A claim of 100 takes 20 ns longer for each dead row, a vacuum 0.2 us for each live one.
_CLAIMED_BY_ROOT = 50
_LOOK_MS = 1_000
_LONGEST_S = 600.0
# Without the lock that giving back the end of a table takes. The indexes too, though few of a large table's rows are
# dead: claims read past every one of them.
_VACUUM = "VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) items, count_lines"
_ROWS = "SELECT reltuples FROM pg_class WHERE oid = 'items'::regclass"


def claims_between(rows: float) -> int:
    """How many claims are to pass before a table of so many rows is vacuumed again."""
    return max(CLAIMED, round(_CLAIMED_BY_ROOT * math.sqrt(max(0.0, rows))))


class Vacuum:
    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        # Of each database, when it was last vacuumed by this server.
        self._rows: dict[PostgresDatabase, float] = {}

    async def run(self, clock: Clock) -> None:
        """Vacuum when it is worth it, until cancelled."""
        await run_forever(self.vacuum_all_once, Backoff("vacuum"), clock, lambda: sleep_for(clock, _LOOK_MS))

    async def vacuum_all_once(self) -> None:
        """Look at every database; raise the last error once all were tried."""
        failure: Exception | None = None
        for shard in self._cluster.shards:
            try:
                await self.vacuum_once(shard)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    async def vacuum_once(self, shard: PostgresDatabase) -> bool:
        """Vacuum if enough was claimed there, on a connection of its own, for it may take long. Return whether it
        was; raise what the driver raises."""
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
