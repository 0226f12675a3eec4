"""One sweep of a shard: end leases, TTLs and retention periods, within a limit that all kinds of work share."""

from collections.abc import Awaitable, Callable
from functools import partial

from holdfast.stores.logic.sweep import delete_some, end_by_time
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan
from holdfast.stores.rocks.shard_parts import ShardParts
from holdfast.stores.values import Swept

# Does up to a number of changes, and returns how many it did.
Work = Callable[[int], Awaitable[int]]


class RocksSweep:
    """The sweep of one shard."""

    def __init__(self, parts: ShardParts, units: RocksUnits, staging: RocksStaging, sweep_plan: SweepPlan) -> None:
        self._engine = parts.engine
        self._publisher = parts.publisher
        self._catalog = parts.catalog
        self._seen = parts.seen
        self._journal = parts.journal
        self._units = units
        self._staging = staging
        self._sweep_plan = sweep_plan

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        """Make up to `limit` changes that are due. Return how many were made, and when the next sweep is due."""
        changed = await share(limit, self._works(now_ms))
        await self._engine.committed()
        ends = [
            *(self._sweep_plan.next_at(), self._seen.next_at()),
            *(self._journal.next_trim_at(), self._staging.next_at()),
        ]
        ends += [
            keys.parse_instant(key)
            for key in (self._publisher.ttls.peek(), self._publisher.kept.peek())
            if key is not None
        ]
        return Swept(changed, min((end for end in ends if end is not None), default=None))

    def _works(self, now_ms: int) -> list[Work]:
        """Return the kinds of work in order of urgency: a returned lease makes a message claimable again."""

        def end_ttls(part: int) -> int:
            overdue = self._publisher.overdue_ttls(None, part, now_ms)
            self._units.end_overdue(overdue)
            return len(overdue)

        return [
            partial(self._end_leases, now_ms=now_ms),
            self._step(end_ttls, now_ms),
            self._step(self._units.end_kept, now_ms),
            self._step(partial(self._seen.forget_old, now_ms=now_ms), now_ms),
            self._step(partial(self._journal.trim, now_ms=now_ms), now_ms),
            self._step(self._staging.delete_abandoned, now_ms),
        ]

    def _step(self, work: Callable[[int], int], now_ms: int) -> Work:
        """Return work that runs as one step of the open commit."""

        async def run(limit: int) -> int:
            self._units.begin(now_ms)
            changed = work(limit)
            self._engine.end()
            return changed

        return run

    async def _end_leases(self, limit: int, now_ms: int) -> int:
        """Return expired leases, and continue the deletion of queues."""
        changed = 0
        while changed < limit and (queue := self._sweep_plan.pop_due(now_ms)) is not None:
            self._units.begin(now_ms)
            queue.begin(now_ms)
            changed += await end_by_time(self._units, queue, limit - changed)
            drain_until = queue.row.drain_until
            can_continue_delete = drain_until is not None and (not queue.counters.in_flight or drain_until <= now_ms)
            if can_continue_delete and changed < limit:
                changed += await delete_some(self._units, queue, limit - changed)
            self._engine.end()
            if self._catalog.find(queue.row.ref) is queue:
                self._sweep_plan.note(queue, now_ms)
        return changed


async def share(limit: int, works: list[Work]) -> int:
    """Divide the limit evenly among the works, then divide what some of them left among the others, until it is used
    up.

    So no work waits behind a backlog of another, and the whole limit is used as long as any work has more to do. With
    more works than the limit, the last ones do nothing. Return the number of changes made.
    """
    changed, busy = 0, works
    while busy and changed < limit:
        part = max(1, (limit - changed) // len(busy))
        still_busy = []
        for work in busy:
            allowed = min(part, limit - changed)
            if allowed <= 0:
                break
            done = await work(allowed)
            changed += done
            if done >= allowed:
                still_busy.append(work)
        busy = still_busy
    return changed
