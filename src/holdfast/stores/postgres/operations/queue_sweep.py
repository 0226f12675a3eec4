"""End leases, TTLs, delays and keeping times of one queue's messages, in one transaction."""

from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.sweep import end_by_time
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.locks import SWEEP_LOCK
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit


class QueueSweep:
    """The sweep of a single queue."""

    def __init__(self, steps: StepRunner) -> None:
        self._steps = steps

    async def end_by_time(self, info: QueueInfo, limit: int, now_ms: int, notices: Notices) -> int:
        """End leases, TTLs and delays before a claim. Succeeded messages are left to sweeps."""
        return await self.end_on(info.shard, info.key, limit, now_ms, notices, ends_kept=False)

    async def end_on(
        self, shard: PostgresDatabase, key: int, limit: int, now_ms: int, notices: Notices, *, ends_kept: bool = True
    ) -> int:
        """End up to `limit` messages, and up to `limit` delays. Return how many messages changed their state."""

        async def work(unit: PostgresUnit) -> int:
            # One sweep of a queue at a time. A sweep that waited for a row of another would hold on to the row
            # afterwards, though it has nothing to end there, and a claim that comes then would skip the row.
            await unit.connection.execute(SWEEP_LOCK, key)
            queue = await unit.open_key(key)
            if queue is None:
                return 0
            changed = await end_by_time(unit, queue, limit)
            if ends_kept:
                kept = await unit.kept(queue, limit - changed)
                unit.drop(queue, kept)
                changed += len(kept)
            await unit.write()
            await unit.connection.fetch(SQL["promote"], key, unit.given_now, limit)
            return changed

        return await self._steps.run_on(shard, work, now_ms, notices)
