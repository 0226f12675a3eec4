"""Claim ledgers: a consumer's numbered claims, in one document for each consumer.

claim the messages          crash: their leases end, and the number stays free
write the document          from here on the number is open, and a claim with it returns these messages
"""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.model.answers import Delivery, LedgerEntry, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.model.rules import lifecycle
from holdfast.model.rules.ledgers import check_open, closed_after, closed_by, entry_of
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import delivery_of
from holdfast.stores.objects.buckets.bucket import ObjectMissing
from holdfast.stores.objects.buckets.retries import retry_conflicts, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import LedgerBody
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.state_documents import StateDocuments
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.verdicts import ObjectVerdicts

_decode_ledger = BodyDecoder(LedgerBody)


class ObjectLedgers:
    """The `LedgerStore`, and the ledgers as claims use them."""

    def __init__(
        self,
        driver: LoopDriver,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        states: StateDocuments,
        verdicts: ObjectVerdicts,
    ) -> None:
        self.driver = driver
        self._messages = messages
        self._directory = directory
        self._states = states
        self._verdicts = verdicts

    @on_driver
    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        await self._directory.require(ref)
        body, _ = await self.read(ref, consumer)
        entries = []
        for each in sorted(body.open):
            if number not in (None, each):
                continue
            receipts = receipts_of(body, each)
            deliveries = await self._deliveries(ref, receipts, now_ms)
            entries.append(entry_of(each, body.open[each][0], receipts, deliveries))
        return entries

    @on_driver_with_notices
    async def ack(self, notices: Notices, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        await self._directory.require(ref)
        body, _ = await self.read(ref, consumer)
        receipts = [each for number in closed_by(body.open, upto) for each in receipts_of(body, number)]
        verdicts = [Verdict(settle=Settle.ACK, receipt=receipt) for receipt in receipts]
        results = await self._verdicts.settle(ref, verdicts, now_ms, notices)
        _check_written(results, "acked; they stay open, ack them again")
        await self._close(ref, consumer, upto)
        return results

    @on_driver_with_notices
    async def extend(
        self, notices: Notices, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int
    ) -> list[Result]:
        await self._directory.require(ref)
        body, _ = await self.read(ref, consumer)
        receipts = [each for number in sorted(body.open) for each in receipts_of(body, number)]
        verdicts = [Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms) for receipt in receipts]
        results = await self._verdicts.settle(ref, verdicts, now_ms, notices)
        _check_written(results, "extended; extend them again")
        return results

    async def read(self, ref: QueueRef, consumer: str) -> tuple[LedgerBody, ReadCasDocument | None]:
        """Return a consumer's ledger, and its document."""
        current = await self._messages.documents.read(layout.ledger(ref, consumer))
        if current is None or current.body is None:
            return LedgerBody(consumer), current
        return _decode_ledger(current.body), current

    async def claim_again(self, ref: QueueRef, consumer: str, number: int, now_ms: int) -> list[Delivery] | None:
        """Return the messages of an open claim that are still held; None if the number is new."""
        body, _ = await self.read(ref, consumer)
        check_open(consumer, number, body.closed_upto)
        if number not in body.open:
            return None
        return await self._deliveries(ref, receipts_of(body, number), now_ms)

    async def open_claim(
        self, ref: QueueRef, consumer: str, number: int, deliveries: list[Delivery], now_ms: int
    ) -> list[Delivery] | None:
        """Record a claim under its number. If the number was opened meanwhile, return the messages of that claim
        instead."""
        receipts = [tuple(each.receipt) for each in deliveries]

        async def open_claim() -> list[Delivery] | None:
            body, current = await self.read(ref, consumer)
            if number in body.open or number <= body.closed_upto:
                return await self._deliveries(ref, receipts_of(body, number), now_ms)
            after = replace(body, open={**body.open, number: (now_ms, receipts)})
            await self._messages.documents.write(layout.ledger(ref, consumer), encode(after), current)
            return None

        return await retry_conflicts(open_claim, f"the ledger of {consumer!r}", self._messages.documents.pause)

    async def _close(self, ref: QueueRef, consumer: str, upto: int) -> None:
        async def close() -> None:
            body, current = await self.read(ref, consumer)
            closed = closed_by(body.open, upto)
            remaining = {number: claim for number, claim in body.open.items() if number not in closed}
            after = replace(body, open=remaining, closed_upto=closed_after(body.closed_upto, upto))
            if after != body:
                await self._messages.documents.write(layout.ledger(ref, consumer), encode(after), current)

        await retry_conflicts(close, f"the ledger of {consumer!r}", self._messages.documents.pause)

    async def _deliveries(self, ref: QueueRef, receipts: Iterable[Receipt], now_ms: int) -> list[Delivery]:
        """Return the messages of the receipts that are still held."""

        async def read(receipt: Receipt) -> Delivery | None:
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                return None
            try:
                payload = await self._messages.payload(entry)
            except ObjectMissing:
                return None
            return delivery_of(entry.body.envelope(payload), entry.body.life, await self._states.read(entry))

        return [each for each in await run_concurrently(receipts, read) if each is not None]


def receipts_of(body: LedgerBody, number: int) -> list[Receipt]:
    """Return the receipts of a claim; empty if the number is not open."""
    _, receipts = body.open.get(number, (0, []))
    return [Receipt(*each) for each in receipts]


def _check_written(results: list[Result], action: str) -> None:
    """Raise `StoreUnavailable` if the bucket failed for a claim of the ledger, so that the caller repeats the call."""
    if any(result.is_retryable for result in results):
        raise StoreUnavailable(f"not all claims could be {action}")
