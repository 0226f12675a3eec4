"""Add the lines of counts up while calls write them.

Each transaction that changes a queue's counts adds a line, and a reader of a count or a usage adds up the lines that no
fold has summed up yet. Sweeps fold too, but only every few seconds: too rarely for thousands of enqueues in a second.
"""

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.schema.statements import SQL

# Maximum number of lines that one statement adds up.
FOLD = 5_000
# How many statements of this server make a fold due, and how often it looks. A quiet server leaves folds to sweeps.
_BUSY = 200
_LOOK_MS = 250


class Folding:
    """The folding loop of one server."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        # The statements of each database when this server last folded there.
        self._statements: dict[PostgresDatabase, int] = {}

    async def run(self, clock: Clock) -> None:
        """Fold while calls are made, until cancelled."""
        await run_forever(self.fold_busy_once, Backoff("fold"), clock, lambda: sleep_for(clock, _LOOK_MS))

    async def fold_busy_once(self) -> None:
        """Fold the lines of every database on which this server has been busy and that is up."""
        for shard in self._cluster.shards:
            if shard.is_up and shard.statements - self._statements.get(shard, 0) >= _BUSY:
                await fold(shard)
                self._statements[shard] = shard.statements


async def fold(shard: PostgresDatabase) -> None:
    """Add up lines until a statement finds fewer than it may take."""
    [row] = await shard.fetch(SQL["fold"], FOLD)
    while row["lines"] == FOLD:
        [row] = await shard.fetch(SQL["fold"], FOLD)
