"""Atomic steps on the PostgreSQL store: each is one transaction on one database."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.queues.queue_turns import QueueTurns
from holdfast.stores.postgres.queues.quota_grants import QuotaShortage
from holdfast.stores.postgres.transactions.unit import PostgresParts, PostgresUnit, QueueChanged

T = TypeVar("T")
Work = Callable[[PostgresUnit], Awaitable[T]]

# How often a step is run again because the queue or its tenant was changed meanwhile.
_TRIES = 50


class StepRunner:
    """Runs steps for work that is on the driver's loop already. The caller reports `notices` to the listener."""

    def __init__(self, parts: PostgresParts) -> None:
        self._parts = parts

    async def run_on(self, shard: PostgresDatabase, work: Work[T], now_ms: int, notices: Notices) -> T:
        """Run `work` in one transaction, and write its changes. It runs again after a deadlock."""

        async def once(connection: Any) -> tuple[T, Notices]:
            unit = PostgresUnit(self._parts, shard, connection, now_ms)
            result = await work(unit)
            await unit.write()
            if not unit.notifies_ready:
                unit.notices.ready_at.clear()
            return result, unit.notices

        result, unit_notices = await shard.step(once)
        notices.add(unit_notices)
        return result

    async def run(self, ref: QueueRef, work: Work[T], now_ms: int, notices: Notices) -> T:
        """Run `work` on the database that owns the queue.

        It runs again after `QueueChanged`, and after `QuotaShortage` once the database was granted more of the quota.
        Raise `StoreUnavailable` after 50 tries.
        """

        async def on_queue(unit: PostgresUnit) -> T:
            result = await work(unit)
            unit.note_draining()
            return result

        for _ in range(_TRIES):
            try:
                return await self.run_on(self._parts.cluster.shard_of(ref), on_queue, now_ms, notices)
            except QueueChanged:
                continue
            except QuotaShortage as short:
                await self._parts.grants.grant_more(short)
        raise StoreUnavailable(f"gave up after {_TRIES} concurrent changes of queue {ref} or its tenant; try again")


class PostgresUnits:
    """`Units`. Steps run on the driver's loop, and their notices go to the listener. If the queue has moved to another
    database, the driver follows it."""

    def __init__(self, driver: LoopDriver, parts: PostgresParts, steps: StepRunner, turns: QueueTurns) -> None:
        self._driver = driver
        self._directory = parts.directory
        self._steps = steps
        self._turns = turns

    async def run(self, ref: QueueRef, work: Work[T], now_ms: int, *, target: QueueRef | None = None) -> T:
        async def run(notices: Notices) -> T:
            # The driver follows only a queue that the registry has on another database.
            await self._directory.known(ref)
            return await self._turns.run(ref, lambda: self._steps.run(ref, work, now_ms, notices))

        return await self._driver.change(run)
