"""One sweep: end everything whose time has come, up to a limit shared by all databases."""

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.driver import LoopDriver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.sweep import delete_some, remove_oldest
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import LockTimeout, PostgresDatabase
from holdfast.stores.postgres.cluster.folding import fold
from holdfast.stores.postgres.cluster.slot_moves import Resharding
from holdfast.stores.postgres.operations.journal import PostgresJournal
from holdfast.stores.postgres.operations.message_moves import PostgresMoves
from holdfast.stores.postgres.operations.queue_sweep import QueueSweep
from holdfast.stores.postgres.payloads.staging import PostgresStaging
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit
from holdfast.stores.values import Swept

# Leases of other servers end too, without a notification, so each server sweeps at least this often.
LOOK_MS = 5_000


class SweptParts(NamedTuple):
    """The parts of the store that a sweep calls to do their overdue work."""

    queue_sweep: QueueSweep
    journal: PostgresJournal
    moves: PostgresMoves
    staging: PostgresStaging
    resharding: Resharding


class PostgresSweep:
    """The sweep of the whole store."""

    def __init__(
        self,
        driver: LoopDriver,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        steps: StepRunner,
        parts: SweptParts,
        retention_ms: int,
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._steps = steps
        self._parts = parts
        self._retention_ms = retention_ms
        # One sweep at a time: a second sweep would find the work of the first neither done nor open.
        self._turn = asyncio.Lock()

    @on_driver_with_notices
    async def sweep(self, notices: Notices, limit: int, now_ms: int) -> Swept:
        """Sweep all databases, as `Store.sweep` says. A database that is down is left out."""
        async with self._turn:
            return await self._sweep(limit, now_ms, notices)

    async def _sweep(self, limit: int, now_ms: int, notices: Notices) -> Swept:
        changed, ends, failure = 0, [self._cluster.database_time(now_ms) + LOOK_MS], None
        for shard in self._cluster.shards:
            try:
                changed += await self._sweep_shard(shard, max(1, limit - changed), now_ms, notices)
                ends += await self._next_ends(shard)
            except StoreUnavailable as error:
                failure = error
        if len(self._cluster.shards) > 1:
            try:
                changed += await self._parts.resharding.recover()
            except StoreUnavailable as error:
                failure = error
        if failure is not None and len(self._cluster.shards) == 1:
            raise failure
        return Swept(changed, self._cluster.caller_time(min(ends)))

    async def _sweep_shard(self, shard: PostgresDatabase, limit: int, now_ms: int, notices: Notices) -> int:
        stored_ms = self._cluster.database_time(now_ms)
        changed = 0
        moving = {row["key"] for row in await shard.fetch(SQL["moving"])}
        for row in await shard.fetch(SQL["ends"]):
            if row["at"] <= stored_ms and changed < limit and row["queue_key"] not in moving:
                changed += await unless_locked(
                    self._parts.queue_sweep.end_on(shard, row["queue_key"], limit - changed, now_ms, notices)
                )
        for row in await shard.fetch(SQL["draining"]):
            if changed < limit and (not row["has_leases"] or row["drain_until"] <= stored_ms):
                changed += await unless_locked(self._delete_some(shard, row, limit - changed, now_ms, notices))
        for sql, at in ((SQL["forget_keys"], stored_ms), (SQL["forget_queues"], stored_ms - self._retention_ms)):
            if changed < limit:
                changed += await _execute(shard, sql, at, limit - changed)
        if changed < limit:
            changed += await self._parts.journal.trim(shard, limit - changed, stored_ms)
        if changed < limit:
            changed += await self._parts.staging.sweep(shard, limit - changed)
        for row in await shard.fetch(SQL["strays"], limit):
            changed += await unless_locked(self._end_strays(shard, row["key"], limit, now_ms, notices))
        if len(self._cluster.shards) > 1:
            changed += await self._directory.copies.send(shard)
            changed += await self._parts.moves.resolve(shard, now_ms, notices)
        await fold(shard)
        return changed

    async def _next_ends(self, shard: PostgresDatabase) -> list[int]:
        """Return the times at which this database has something to sweep."""
        moving = {row["key"] for row in await shard.fetch(SQL["moving"])}
        ends = [row["at"] for row in await shard.fetch(SQL["ends"]) if row["queue_key"] not in moving]
        [keys] = await shard.fetch(SQL["next_key_end"])
        ends += [at for at in (keys["at"], await self._parts.journal.next_trim_at(shard)) if at is not None]
        ends += [0] if await self._parts.staging.has_work(shard) else []
        ends += [row["drain_until"] if row["has_leases"] else 0 for row in await shard.fetch(SQL["draining"])]
        return ends

    async def _delete_some(self, shard: PostgresDatabase, queue: Any, limit: int, now_ms: int, notices: Notices) -> int:
        """Continue the deletion of a queue."""

        async def work(unit: PostgresUnit) -> int:
            await unit.connection.execute(SQL["lock_queue"], queue["key"])
            opened = await unit.open_key(queue["key"])
            return 0 if opened is None else await delete_some(unit, opened, limit)

        ref = QueueRef(queue["tenant"], queue["queue"])
        home = self._cluster.home_of(ref.tenant)
        if home is not shard:
            # The home forgets the queue first, so a queue that is created again meanwhile gets a new number.
            await home.fetch(SQL["directory_drop"], ref.tenant, ref.queue, queue["queue_id"])
        changed = await self._steps.run_on(shard, work, now_ms, notices)
        self._directory.forget(ref)
        return changed

    async def _end_strays(self, shard: PostgresDatabase, key: int, limit: int, now_ms: int, notices: Notices) -> int:
        """Remove messages of a deleted queue: an enqueue that began before the deletion may commit after it."""

        async def work(unit: PostgresUnit) -> int:
            return await remove_oldest(unit, await unit.open_gone(key), limit)

        return await self._steps.run_on(shard, work, now_ms, notices)


async def unless_locked(work: Awaitable[int]) -> int:
    """Return the result of the work, or 0 if another transaction has locked its queue: the next sweep tries again."""
    try:
        return await work
    except LockTimeout:
        return 0


async def _execute(shard: PostgresDatabase, sql: str, *args: Any) -> int:
    async def work(connection: Any) -> int:
        status = await connection.execute(sql, *args)
        return int(status.rpartition(" ")[2])

    return await shard.use(work)
