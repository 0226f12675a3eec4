"""One sweep of a shard: everything that time has ended, up to a limit that all kinds of work share."""

from collections.abc import Awaitable, Callable
from functools import partial

from holdfast.stores.contract import Swept
from holdfast.stores.logic.sweep import delete_some, end_by_time
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.journal import RocksJournal
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.idempotency_keys import SeenKeys
from holdfast.stores.rocks.queues.publisher import Publisher
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan

# Does up to so much, and answers how much it did.
Work = Callable[[int], Awaitable[int]]


class RocksSweep:
    def __init__(
        self,
        engine: Engine,
        board: Publisher,
        catalog: QueueCatalog,
        units: RocksUnits,
        seen: SeenKeys,
        journal: RocksJournal,
        staging: RocksStaging,
        upkeep: SweepPlan,
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._units = units
        self._seen = seen
        self._journal = journal
        self._staging = staging
        self._upkeep = upkeep

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        changed = await share(limit, self._works(now_ms))
        await self._engine.committed()
        ends = [
            *(self._upkeep.next_at(), self._seen.next_at()),
            *(self._journal.next_trim_at(), self._staging.next_at()),
        ]
        ends += [
            keys.parse_instant(key) for key in (self._board.ttls.peek(), self._board.kept.peek()) if key is not None
        ]
        return Swept(changed, min((end for end in ends if end is not None), default=None))

    def _works(self, now_ms: int) -> list[Work]:
        """First what others wait for: a returned lease may be claimed again."""

        def end_ttls(part: int) -> int:
            overdue = self._board.overdue_ttls(None, part, now_ms)
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
        async def run(limit: int) -> int:
            self._units.begin(now_ms)
            changed = work(limit)
            self._engine.end()
            return changed

        return run

    async def _end_leases(self, limit: int, now_ms: int) -> int:
        """Return the expired leases of the shard's queues, and carry on the deletion of those that are going."""
        changed = 0
        while changed < limit and (shelf := self._upkeep.pop_due(now_ms)) is not None:
            self._units.begin(now_ms)
            shelf.begin(now_ms)
            changed += await end_by_time(self._units, shelf, limit - changed)
            drain_until = shelf.row.drain_until
            is_going = drain_until is not None and (not shelf.counters.in_flight or drain_until <= now_ms)
            if is_going and changed < limit:
                changed += await delete_some(self._units, shelf, limit - changed)
            self._engine.end()
            if self._catalog.find(shelf.row.ref) is shelf:
                self._upkeep.note(shelf, now_ms)
        return changed


async def share(limit: int, works: list[Work]) -> int:
    """Every work gets an equal part of the limit, and of what the others leave of theirs, again and again.

    So none waits for a backlog of another, and all of the limit is used as long as one has more to do. With more works
    than the limit, the last ones get nothing.
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
