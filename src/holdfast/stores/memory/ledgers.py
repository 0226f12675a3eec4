"""Claim ledgers in memory: a consumer's numbered claims."""

from collections.abc import Callable, Iterable

from holdfast.model import lifecycle
from holdfast.model.answers import Delivery, LedgerEntry, Result
from holdfast.model.ledgers import check_open, closed_after, closed_by, entry_of
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.shelf import Entry, Ledger, Shelf


class MemoryLedgers:
    """`LedgerStore`."""

    def __init__(
        self,
        directory: MemoryDirectory,
        settle: Callable[[Shelf, list[Verdict], int], list[Result]],
        delivery: Callable[[Entry], Delivery],
    ) -> None:
        """`settle` carries verdicts out and tells the listener; `delivery` returns a held message with its state."""
        self._directory = directory
        self._settle = settle
        self._delivery = delivery

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        shelf = self._directory.require(ref)
        ledger = shelf.ledgers.get(consumer, Ledger())
        entries = []
        for each, (claimed_at, receipts) in ledger.open.items():
            if number not in (None, each):
                continue
            deliveries = self._deliveries(shelf, receipts, now_ms)
            entries.append(entry_of(each, claimed_at, receipts, deliveries))
        return entries

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        shelf = self._directory.require(ref)
        ledger = shelf.ledgers.setdefault(consumer, Ledger())
        receipts = [each for number in closed_by(ledger.open, upto) for each in ledger.open.pop(number)[1]]
        ledger.closed_upto = closed_after(ledger.closed_upto, upto)
        return self._settle(shelf, [Verdict(settle=Settle.ACK, receipt=each) for each in receipts], now_ms)

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        shelf = self._directory.require(ref)
        verdicts = [
            Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
            for _, receipts in shelf.ledgers.get(consumer, Ledger()).open.values()
            for receipt in receipts
        ]
        return self._settle(shelf, verdicts, now_ms)

    def reread(self, shelf: Shelf, consumer: str, number: int, now_ms: int) -> list[Delivery] | None:
        """Return the deliveries that the open claim of this number still holds, or None for a new number. Raise
        `InvalidArgument` for a closed one."""
        ledger = shelf.ledgers.get(consumer, Ledger())
        check_open(consumer, number, ledger.closed_upto)
        if number not in ledger.open:
            return None
        return self._deliveries(shelf, ledger.open[number][1], now_ms)

    def _deliveries(self, shelf: Shelf, receipts: Iterable[Receipt], now_ms: int) -> list[Delivery]:
        found = ((receipt, shelf.entries.get(receipt.id)) for receipt in receipts)
        return [
            self._delivery(entry) for receipt, entry in found if entry and lifecycle.holds(entry.life, receipt, now_ms)
        ]
