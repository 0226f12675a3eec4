"""Claim ledgers: a consumer's numbered claims, to be read again by number."""

from typing import Any

import msgspec

from holdfast.model import lifecycle
from holdfast.model.answers import Delivery, LedgerEntry, Result
from holdfast.model.ledgers import NONE_CLOSED, check_open, entry_of
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.stores.answers import delivery_of
from holdfast.stores.driver import Driver, on_driver, on_driver_with_notices
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.directory import Directory
from holdfast.stores.postgres.pieces import Payloads
from holdfast.stores.postgres.queues import QueueInfo
from holdfast.stores.postgres.rows import whole_entry_of
from holdfast.stores.postgres.settling import Settling
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.postgres.steps import Step

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Receipt]).decode

_PUT = "INSERT INTO ledgers (queue_key, consumer, number, claimed_at, receipts) VALUES ($1, $2, $3, $4, $5)"
_ONE = "SELECT receipts FROM ledgers WHERE queue_key = $1 AND consumer = $2 AND number = $3"
_OPEN = "SELECT number, claimed_at, receipts FROM ledgers WHERE queue_key = $1 AND consumer = $2 ORDER BY number"
_ENTRIES = (
    "SELECT number, claimed_at, receipts FROM ledgers WHERE queue_key = $1 AND consumer = $2 "
    "AND ($3::bigint IS NULL OR number = $3) ORDER BY number"
)
_CLOSED = "SELECT closed_upto FROM ledger_ends WHERE queue_key = $1 AND consumer = $2"
# Equals `closed_by` and `closed_after` of holdfast.model.ledgers.
_CLOSE = "DELETE FROM ledgers WHERE queue_key = $1 AND consumer = $2 AND number <= $3 RETURNING number, receipts"
_END = (
    "INSERT INTO ledger_ends AS e VALUES ($1, $2, $3) "
    "ON CONFLICT (queue_key, consumer) DO UPDATE SET closed_upto = greatest(e.closed_upto, excluded.closed_upto)"
)


class Ledgers:
    """`LedgerStore`, and the ledgers for claims."""

    def __init__(
        self, driver: Driver, cluster: Cluster, directory: Directory, settling: Settling, payloads: Payloads
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._settling = settling
        self._payloads = payloads

    @on_driver
    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        info = await self._directory.require(ref)

        async def entries(connection: Any) -> list[LedgerEntry]:
            return await self._entries(connection, info, consumer, self._cluster.stored(now_ms), number)

        return await self._payloads.filled_entries(ref, await info.shard.use(entries))

    @on_driver_with_notices
    async def ack(self, notices: Notices, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        info = await self._directory.require(ref)

        async def choose(step: Step, info: QueueInfo) -> list[Verdict]:
            receipts = await self._close(step, info, consumer, upto)
            return [Verdict(settle=Settle.ACK, receipt=receipt) for receipt in receipts]

        return await self._settling.settle_in_step(info, choose, now_ms, notices) or []

    @on_driver_with_notices
    async def extend(
        self, notices: Notices, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int
    ) -> list[Result]:
        info = await self._directory.require(ref)

        async def choose(step: Step, info: QueueInfo) -> list[Verdict]:
            receipts = await self._receipts(step.connection, info, consumer)
            return [Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms) for receipt in receipts]

        return await self._settling.settle_in_step(info, choose, now_ms, notices) or []

    # --- In a transaction --------------------------------------------------------------------------------------

    async def reread(self, step: Step, info: QueueInfo, consumer: str, number: int) -> list[Delivery] | None:
        """What an open claim of this number still holds; None if the number is new."""
        closed_upto = await step.connection.fetchval(_CLOSED, info.key, consumer)
        check_open(consumer, number, NONE_CLOSED if closed_upto is None else closed_upto)
        raw = await step.connection.fetchval(_ONE, info.key, consumer, number)
        if raw is None:
            return None
        return await self._held(step.connection, info.key, _decode(raw), step.now_ms)

    async def put(self, step: Step, info: QueueInfo, consumer: str, number: int, receipts: list[Receipt]) -> None:
        await step.connection.execute(_PUT, info.key, consumer, number, step.now_ms, _encode(receipts))

    async def _entries(
        self, connection: Any, info: QueueInfo, consumer: str, now_ms: int, number: int | None
    ) -> list[LedgerEntry]:
        entries = []
        for row in await connection.fetch(_ENTRIES, info.key, consumer, number):
            receipts = _decode(row["receipts"])
            held = await self._held(connection, info.key, receipts, now_ms)
            entries.append(entry_of(row["number"], row["claimed_at"], receipts, held))
        return entries

    async def _receipts(self, connection: Any, info: QueueInfo, consumer: str) -> list[Receipt]:
        """Of all open claims."""
        rows = await connection.fetch(_OPEN, info.key, consumer)
        return [receipt for row in rows for receipt in _decode(row["receipts"])]

    async def _close(self, step: Step, info: QueueInfo, consumer: str, upto: int) -> list[Receipt]:
        """The receipts of the claims up to this number, which are closed."""
        rows = await step.connection.fetch(_CLOSE, info.key, consumer, upto)
        await step.connection.execute(_END, info.key, consumer, upto)
        return [receipt for row in sorted(rows, key=lambda row: row["number"]) for receipt in _decode(row["receipts"])]

    async def _held(self, connection: Any, key: int, receipts: list[Receipt], now_ms: int) -> list[Delivery]:
        rows = await connection.fetch(SQL["by_ids"], key, [receipt.id for receipt in receipts])
        found = {row["id"]: whole_entry_of(row) for row in rows}
        held = []
        for receipt in receipts:
            entry = found.get(receipt.id)
            if entry is not None and lifecycle.holds(entry.life, receipt, now_ms):
                held.append(delivery_of(entry.envelope, entry.life, entry.state))
        return held
