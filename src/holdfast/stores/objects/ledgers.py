"""The claim ledger: a consumer's numbered claims, one sheet for each consumer.

claim the messages          dies here: their leases run out, and the number is free
write the sheet             from here on the number is open, and answers these
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.model import lifecycle
from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.stores.answers import delivery_of
from holdfast.stores.objects import layout
from holdfast.stores.objects.bucket import Changed, Missing
from holdfast.stores.objects.documents import LedgerBody, encode
from holdfast.stores.objects.messages import Messages
from holdfast.stores.objects.sheets import Busy, Held
from holdfast.stores.objects.states import States

_TRIES = 50

_ledger_of = msgspec.msgpack.Decoder(LedgerBody).decode


class Ledgers:
    def __init__(self, messages: Messages, states: States) -> None:
        self._messages = messages
        self._states = states

    async def read(self, ref: QueueRef, consumer: str) -> tuple[LedgerBody, Held | None]:
        held = await self._messages.sheets.read(layout.ledger(ref, consumer))
        if held is None or held.body is None:
            return LedgerBody(consumer), held
        return _ledger_of(held.body), held

    async def claim_again(self, ref: QueueRef, consumer: str, number: int, now_ms: int) -> list[Delivery] | None:
        """What an open claim of this number still holds; None if the number is new."""
        body, _ = await self.read(ref, consumer)
        if number <= body.closed_upto:
            raise InvalidArgument(
                f"ledger number {number} of {consumer!r} is closed: claim with a number above {body.closed_upto}",
                closed_upto=body.closed_upto,
            )
        if number not in body.open:
            return None
        return await self._deliveries(ref, receipts_of(body, number), now_ms)

    async def note(
        self, ref: QueueRef, consumer: str, number: int, deliveries: list[Delivery], now_ms: int
    ) -> list[Delivery] | None:
        """Open the number with these. If it was opened meanwhile: what that one holds."""
        receipts = [tuple(each.receipt) for each in deliveries]
        for _ in range(_TRIES):
            body, held = await self.read(ref, consumer)
            if number in body.open or number <= body.closed_upto:
                return await self._deliveries(ref, receipts_of(body, number), now_ms)
            after = replace(body, open={**body.open, number: (now_ms, receipts)})
            try:
                await self._messages.sheets.write(layout.ledger(ref, consumer), encode(after), held)
            except (Changed, Busy):
                continue
            return None
        raise StoreUnavailable("the ledger changes all the time: later")

    async def close(self, ref: QueueRef, consumer: str, upto: int) -> None:
        for _ in range(_TRIES):
            body, held = await self.read(ref, consumer)
            left = {number: claim for number, claim in body.open.items() if number > upto}
            after = replace(body, open=left, closed_upto=max(body.closed_upto, upto))
            if after == body:
                return
            try:
                await self._messages.sheets.write(layout.ledger(ref, consumer), encode(after), held)
            except (Changed, Busy):
                continue
            return
        raise StoreUnavailable("the ledger changes all the time: later")

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, only: int | None = None) -> list[LedgerEntry]:
        body, _ = await self.read(ref, consumer)
        entries = []
        for number in sorted(body.open):
            if only not in (None, number):
                continue
            receipts = receipts_of(body, number)
            deliveries = await self._deliveries(ref, receipts, now_ms)
            lost = len(receipts) - len(deliveries)
            claimed_at = body.open[number][0]
            entries.append(LedgerEntry(number=number, claimed_at=claimed_at, deliveries=deliveries, lost=lost))
        return entries

    async def _deliveries(self, ref: QueueRef, receipts: Iterable[Receipt], now_ms: int) -> list[Delivery]:
        """Of those that are still held."""
        found: dict[int, Delivery] = {}

        async def read(receipt: Receipt) -> None:
            entry = await self._messages.read(ref, receipt.id, now_ms)
            if entry is None or not lifecycle.holds(entry.body.life, receipt, now_ms):
                return
            try:
                payload = await self._messages.payload(entry)
            except Missing:
                return
            state = await self._states.read(entry)
            found[receipt.id] = delivery_of(entry.body.envelope(payload), entry.body.life, state)

        receipts = list(receipts)
        await self._messages.sheets.each(receipts, read)
        return [found[receipt.id] for receipt in receipts if receipt.id in found]


def receipts_of(body: LedgerBody, number: int) -> list[Receipt]:
    _, receipts = body.open.get(number, (0, []))
    return [Receipt(*each) for each in receipts]
