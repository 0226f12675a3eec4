"""The ledger part of the store: a consumer's numbered claims, read and settled together."""

from collections.abc import Callable, Iterable

from holdfast.model.answers import Delivery, LedgerEntry, Result
from holdfast.model.ledgers import closed_by, entry_of
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.ledgers import Ledgers
from holdfast.stores.rocks.settling import Settling
from holdfast.stores.rocks.shelf import Entry, Shelf

Held = Callable[[Shelf, Iterable[Receipt], int], list[Entry]]


class LedgerClaims:
    """`LedgerStore`."""

    def __init__(
        self,
        catalog: Catalog,
        ledgers: Ledgers,
        settling: Settling,
        held: Held,
        delivery: Callable[[Shelf, Entry], Delivery],
    ) -> None:
        """`held` returns the messages whose leases still hold, and `delivery` one of them with its state."""
        self._catalog = catalog
        self._ledgers = ledgers
        self._settling = settling
        self._held = held
        self._delivery = delivery

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        shelf = self._catalog.require(ref)
        entries = []
        for each, claimed_at, receipts in self._ledgers.open_claims(shelf, consumer, number):
            held = self._held(shelf, receipts, now_ms)
            deliveries = [self._delivery(shelf, entry) for entry in held]
            entries.append(entry_of(each, claimed_at, receipts, deliveries))
        return entries

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        shelf = self._catalog.require(ref)
        claims = {number: receipts for number, _, receipts in self._ledgers.open_claims(shelf, consumer)}
        numbers = closed_by(claims, upto)
        verdicts = [Verdict(settle=Settle.ACK, receipt=each) for number in numbers for each in claims[number]]
        closed_upto = self._ledgers.closed_upto(shelf, consumer)

        def close() -> None:
            self._ledgers.close(shelf, consumer, upto, numbers, closed_upto)

        return await self._settling.settle(shelf, verdicts, now_ms, also=close)

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        shelf = self._catalog.require(ref)
        verdicts = [
            Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
            for _, _, receipts in self._ledgers.open_claims(shelf, consumer)
            for receipt in receipts
        ]
        return await self._settling.settle(shelf, verdicts, now_ms)
