"""What time ends: leases, TTLs, the keeping of what succeeded, delays; of one queue, in one transaction.

Locks, in the order in which every transaction of this store takes them:

    1. `arrivals`    the move that is ended, if one is
    2. `queues`      of every queue whose groups may be touched, or that messages go to or come from; by key
    3. UPKEEP_LOCK   of the queue to which this brings its first group: `admit_groups`
    4. `items`
    5. `tenants`     whoever adds for a tenant with quotas; an enqueue takes it before 3

Upkeep alone begins with UPKEEP_LOCK, and takes the queue's row behind it. That makes no circle. Whoever waits for
UPKEEP_LOCK has the row and has seen in it that the queue has no groups; so has the upkeep it waits for, which therefore
does not ask for the row, and of what lies behind 3 nothing of this queue is held yet. Once the queue has groups nobody
but upkeep takes UPKEEP_LOCK.
"""

from typing import Any

from holdfast.model import lifecycle
from holdfast.model.names import QueueRef
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.cluster import Cluster, QueueMoved
from holdfast.stores.postgres.queues import QueueInfo, info_of
from holdfast.stores.postgres.rows import entry_of
from holdfast.stores.postgres.shard import Shard
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.steps import Step

# Of one queue. Upkeep holds it, and whoever brings a queue its first group: an upkeep that began before the queue had
# groups holds no lock on them, and must not see any. What it showed would be counted again by whoever shows a head
# beside it.
UPKEEP_LOCK = "SELECT pg_advisory_xact_lock(1751739236, ($1::bigint & 2147483647)::integer)"


class Upkeep:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def end_by_time(self, info: QueueInfo, limit: int, now_ms: int, notices: Notices) -> int:
        """For a claim, which has no business with what succeeded: sweeps end the keeping of that."""
        return await self.end_on(info.shard, info.key, limit, now_ms, notices, ends_kept=False)

    async def end_on(
        self, shard: Shard, key: int, limit: int, now_ms: int, notices: Notices, *, ends_kept: bool = True
    ) -> int:
        """Up to `limit` of each kind; answers how many messages changed their state."""

        async def work(connection: Any) -> tuple[int, Notices]:
            fresh = Notices()
            # One at a time. Whoever waited for a row of another's would go on holding it, though it is not his to end,
            # and a claim that comes then would pass it by.
            await connection.execute(UPKEEP_LOCK, key)
            opened = await self.open(connection, shard, key, now_ms, fresh)
            if opened is None:
                return 0, fresh
            info, step = opened
            changed = await self._end(step, info, limit, ends_kept=ends_kept)
            await step.write()
            await connection.fetch(SQL["promote"], key, step.given_now, limit)
            return changed, fresh

        changed, fresh = await shard.step(work)
        notices.add(fresh)
        return changed

    async def open(
        self, connection: Any, shard: Shard, key: int, now_ms: int, notices: Notices
    ) -> tuple[QueueInfo, Step] | None:
        """A step on one queue, under its lock if it has groups."""
        given = self._cluster.given(now_ms)
        row = await connection.fetchrow(SQL["queue_by_key"], key, given)
        if row is not None and row["has_groups"]:
            await connection.execute(SQL["lock_queue"], key)
            row = await connection.fetchrow(SQL["queue_by_key"], key, given)
        if row is not None and row["moving_to"] is not None:
            raise QueueMoved(QueueRef(row["tenant"], row["queue"]))
        if row is None or row["gone_at"] is not None:
            return None
        self._cluster.note_now(row["now"], now_ms)
        return info_of(row, shard), Step(connection, row["now"], given, notices)

    async def admit_groups(self, connection: Any, key: int) -> None:
        """Before messages in groups come to a queue, and before any of its messages is touched: its row is locked, and
        if they are its first, no upkeep is under way that knows of none."""
        if not await connection.fetchval(SQL["lock_queue"], key):
            await connection.execute(UPKEEP_LOCK, key)

    async def _end(self, step: Step, info: QueueInfo, limit: int, *, ends_kept: bool) -> int:
        connection, now_ms, policy = step.connection, step.now_ms, info.row.policy
        changed = 0
        for row in await connection.fetch(SQL["expired"], info.key, now_ms, limit):
            entry = entry_of(row)
            step.apply(info, entry, lifecycle.expire(entry.life, entry.envelope, policy, now_ms))
            changed += 1
        for row in await connection.fetch(SQL["overdue"], info.key, now_ms, limit):
            entry = entry_of(row)
            step.apply(info, entry, lifecycle.end_by_ttl(entry.life, policy, now_ms))
            changed += 1
        for row in await connection.fetch(SQL["kept"], info.key, now_ms, limit) if ends_kept else ():
            step.drop(info, entry_of(row))
            changed += 1
        return changed
