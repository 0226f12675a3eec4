"""Bulk verbs: messages are searched without a lock, and then changed in a step or moved to another database."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Verb, states_of
from holdfast.stores.event_loop.driver import LoopDriver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.bulk import alter
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.operations.message_moves import PostgresMoves
from holdfast.stores.postgres.operations.reads import PostgresReads
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.rows import STATUSES
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit
from holdfast.stores.values import AlterStep


class PostgresBulkVerbs:
    """The bulk verbs of the contract."""

    def __init__(
        self,
        driver: LoopDriver,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        reads: PostgresReads,
        steps: StepRunner,
        moves: PostgresMoves,
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._reads = reads
        self._steps = steps
        self._moves = moves

    @on_driver_with_notices
    async def alter(
        self, notices: Notices, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Change up to `limit` messages, as `Store.alter` says."""
        info = await self._directory.require(ref)
        target = await self._directory.require_open(verb.to) if isinstance(verb, Move) else None
        statuses = [status for state in states_of(verb) for status in STATUSES[state]]
        stored_ms = self._cluster.database_time(now_ms)
        found = await self._reads.matching(info, statuses, which, after, limit, stored_ms)
        if not found:
            return AlterStep(0, 0, None)
        ids = [entry.envelope.id for entry in found]
        if isinstance(verb, Move) and target is not None and target.shard is not info.shard:
            moved = await self._moves.move(info, target, verb, which, ids, statuses, now_ms, notices)
            return AlterStep(moved, moved, ids[-1] if len(ids) == limit else None)

        async def work(unit: PostgresUnit) -> AlterStep:
            if target is not None:
                has_groups = any(entry.envelope.group is not None for entry in found)
                await unit.lock_both(info, target, has_groups=has_groups)
            unit.found = ids
            return await alter(unit, ref, verb, which, after, limit)

        return await self._steps.run(ref, work, now_ms, notices)
