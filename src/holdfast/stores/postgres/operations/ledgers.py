"""Claim ledgers: a consumer's numbered claims, which can be read again by number."""

from collections.abc import Callable

from holdfast.model.answers import LedgerEntry
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.logic.ledgers import UnitLedgers, entries
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.schema.rows import MessageRow
from holdfast.stores.postgres.transactions.runner import PostgresUnits
from holdfast.stores.postgres.transactions.unit import PostgresUnit


class PostgresLedgers(UnitLedgers[QueueInfo, MessageRow]):
    """`LedgerStore`."""

    def __init__(
        self, driver: LoopDriver, units: PostgresUnits, payloads: PostgresPayloads, roll: Callable[[], float]
    ) -> None:
        super().__init__(units, roll)
        self._driver = driver
        self._steps = units
        self._payloads = payloads

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        async def read(unit: PostgresUnit) -> list[LedgerEntry]:
            await unit.open(ref, is_locked=False)
            return await entries(unit, ref, consumer, number)

        found = await self._steps.run(ref, read, now_ms)
        if all(delivery.pieces is None for entry in found for delivery in entry.deliveries):
            return found
        return await self._driver.call(lambda: self._payloads.fill_entries(ref, found))
