"""Claim ledgers: a consumer's numbered claims, which can be read again by number."""

from collections.abc import Callable
from typing import Generic

from holdfast.model.answers import Delivery, LedgerEntry, Result
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.model.rules import lifecycle
from holdfast.model.rules.ledgers import check_open, closed_after, entry_of
from holdfast.stores.logic.queues import require
from holdfast.stores.logic.verdicts import settle_loaded
from holdfast.stores.unit import E, Q, Unit, Units


class UnitLedgers(Generic[Q, E]):
    """The ledgers of a store that runs units of work."""

    def __init__(self, units: Units[Q, E], roll: Callable[[], float]) -> None:
        self._units = units
        self._roll = roll

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        return await self._units.run(ref, lambda unit: entries(unit, ref, consumer, number), now_ms)

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        return await self._units.run(ref, lambda unit: ack(unit, ref, consumer, upto, self._roll), now_ms)

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        return await self._units.run(ref, lambda unit: extend(unit, ref, consumer, lease_ms, self._roll), now_ms)


async def entries(unit: Unit[Q, E], ref: QueueRef, consumer: str, number: int | None) -> list[LedgerEntry]:
    """Return the consumer's open claims by number, or one of them, each with the deliveries it still holds."""
    queue = await require(unit, ref)
    unit.is_durable = False
    found = []
    for claim in await unit.open_claims(queue, consumer, number=number):
        held = await _held(unit, queue, claim.receipts, streams=False)
        found.append(entry_of(*claim, held))
    return found


async def ack(unit: Unit[Q, E], ref: QueueRef, consumer: str, upto: int, roll: Callable[[], float]) -> list[Result]:
    """Ack the messages that the consumer's claims up to this number still hold, and close those claims."""
    queue = await require(unit, ref)
    claims = await unit.open_claims(queue, consumer, upto=upto)
    closed_upto = closed_after(await unit.closed_upto(queue, consumer), upto)
    verdicts = [Verdict(settle=Settle.ACK, receipt=receipt) for claim in claims for receipt in claim.receipts]
    entries = await unit.load(queue, [verdict.receipt.id for verdict in verdicts])
    results = settle_loaded(unit, queue, entries, verdicts, roll)
    await unit.close_claims(queue, consumer, [claim.number for claim in claims], closed_upto)
    return results


async def extend(
    unit: Unit[Q, E], ref: QueueRef, consumer: str, lease_ms: int | None, roll: Callable[[], float]
) -> list[Result]:
    """Extend the leases of all messages that the consumer's open claims still hold."""
    queue = await require(unit, ref)
    unit.is_durable = False
    claims = await unit.open_claims(queue, consumer)
    verdicts = [
        Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
        for claim in claims
        for receipt in claim.receipts
    ]
    entries = await unit.load(queue, [verdict.receipt.id for verdict in verdicts])
    return settle_loaded(unit, queue, entries, verdicts, roll)


async def reread(unit: Unit[Q, E], queue: Q, consumer: str, number: int, *, streams: bool) -> list[Delivery] | None:
    """Return the deliveries that an open claim of this number still holds; None if the number is new.

    Raise `InvalidArgument` if the number is closed."""
    check_open(consumer, number, await unit.closed_upto(queue, consumer))
    claims = await unit.open_claims(queue, consumer, number=number)
    return await _held(unit, queue, claims[0].receipts, streams=streams) if claims else None


async def _held(unit: Unit[Q, E], queue: Q, receipts: list[Receipt], *, streams: bool) -> list[Delivery]:
    found = await unit.load_whole(queue, [receipt.id for receipt in receipts])
    held = [
        entry
        for receipt in receipts
        if (entry := found.get(receipt.id)) is not None and lifecycle.holds(entry.life, receipt, unit.now_ms)
    ]
    return await unit.deliveries(queue, held, with_state=True, streams=streams)
