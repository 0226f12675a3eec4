"""QueueService: the operations on messages that every door calls."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.answers import (
    Delivery,
    Enqueued,
    Exchanged,
    Found,
    Info,
    JournalEvents,
    LedgerEntry,
    Page,
    PayloadPart,
    Result,
    Saved,
    Stats,
)
from holdfast.model.errors import (
    HoldfastError,
    Internal,
    InvalidArgument,
    MessageNotFound,
    QueueNotFound,
    StaleLease,
)
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import MAX_BATCH, MAX_PART, Draft, Receipt, check_draft, check_drafts, check_size
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import check_integer, check_text
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import (
    ClaimRequest,
    StateChange,
    Verdict,
    check_claim_request,
    check_progress,
    check_verdicts,
    parse_listing,
)
from holdfast.model.rules.lifecycle import holds
from holdfast.runtime import Runtime, sleep_until
from holdfast.service.directory import PolicyCache
from holdfast.service.limits.admission import Admission
from holdfast.service.subscriptions import Subscription, Subscriptions
from holdfast.service.uploads import PayloadUpload
from holdfast.service.views import info_of, stats_of
from holdfast.service.watches import Watch, Watches
from holdfast.stores.contract import PayloadReader, PayloadWriter, Store
from holdfast.stores.logic.results import receipt_of
from holdfast.wire.requests import (
    BrowseRequest,
    GetRequest,
    JournalRequest,
    LedgerAckRequest,
    LedgerExtendRequest,
    LedgerRequest,
    Nothing,
    PeekRequest,
    StateRequest,
)

# The journal tells nobody of its events: who waits for some asks this often, in milliseconds.
_JOURNAL_POLL_MS = 100

# A page of messages with their payloads is read in steps of so many, and ends after so many bytes.
_STEP_WITH_PAYLOADS = 16
_PAGE_BYTES = 16 << 20


class QueueService:
    """Each call is checked whole before any of it is carried out: what is refused changes nothing."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        directory: PolicyCache,
        admission: Admission,
        runtime: Runtime,
        *,
        max_payload: int,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._directory = directory
        self._admission = admission
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._max_payload = max_payload
        self._subscriptions = Subscriptions(runtime, self.claim, self.settle, self.give_back)
        self._watches = Watches(dispatcher, runtime)
        self._is_closing = False

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        check_drafts(drafts, self._max_payload)
        if not drafts:
            return []
        with self._admission.at_once(ref) or await self._admission.enqueue(ref, drafts):
            return await self._store.enqueue(ref, drafts, self._now_ms(), auto_create=self._directory.auto_create)

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        """To several queues. What one queue refuses (a quota, say) leaves those before it with their messages."""
        check_drafts([draft for drafts in batches.values() for draft in drafts], self._max_payload)
        return {ref: await self.enqueue(ref, drafts) for ref, drafts in batches.items()}

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> PayloadUpload:
        """A message whose payload is yet to come, to be enqueued after; `draft` is all the rest of it. Of a `size` that
        is known, too much is refused before any of it has come."""
        check_draft(draft, self._max_payload)
        if size is not None:
            check_size("payload", size, self._max_payload)
        auto_create = self._directory.auto_create

        async def stage() -> PayloadWriter:
            return await self._store.payloads.stage(ref, draft, self._now_ms(), auto_create=auto_create)

        above = self._store.capabilities.streams_above
        enqueue = partial(self.enqueue, ref)
        return PayloadUpload(draft, max_payload=self._max_payload, stages_above=above, stage=stage, enqueue=enqueue)

    async def read_payload(self, ref: QueueRef, delivery: Delivery) -> PayloadReader:
        """Of a delivery that has its payload in pieces (`ClaimRequest.streams`)."""
        if delivery.pieces is None:
            raise Internal("this delivery has its payload with it")
        return await self._store.payloads.read(ref, delivery.snowflake, delivery.pieces)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        """Up to `limit` bytes, from `offset` on, of the payload of a message that the receipt still holds."""
        check_integer("offset", offset, 0, MAX_MS)
        check_integer("limit", limit, 1, MAX_PART)
        try:
            found = await self._store.get(ref, receipt.id)
        except QueueNotFound:  # deleted, and every lease with it
            raise _not_held(receipt) from None
        if found is None or not holds(found.life, receipt, self._now_ms()):
            raise _not_held(receipt)
        envelope = found.envelope
        pieces = envelope.pieces
        if pieces is None:
            data = envelope.payload[offset : offset + limit]
            return PayloadPart(data, len(envelope.payload), envelope.correlation_id)
        left = min(limit, max(0, pieces.size - offset))
        parts: list[bytes] = []
        try:
            reader = await self._store.payloads.read(ref, receipt.id, pieces, offset)
            while left > 0:
                parts.append((await anext(reader))[:left])
                left -= len(parts[-1])
        except MessageNotFound:  # settled while it was read
            raise _not_held(receipt) from None
        return PayloadPart(b"".join(parts), pieces.size, envelope.correlation_id)

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Nothing may be awaited after the dispatcher's answer: a caller that leaves then would strand it."""
        check_claim_request(ask)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        if not self._directory.auto_create:
            await self._directory.require(ref)
        if not self._admission.is_limited(ref):
            return await self._dispatcher.claim(ref, ask, wait_ms)
        with await self._admission.claim(ref, wait_ms) as hold:
            deliveries = await self._dispatcher.claim(ref, ask, hold.remaining_ms(wait_ms))
            hold.delivered(deliveries)
            return deliveries

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Settle earlier deliveries, then claim ready messages, waiting up to `wait_ms` for one (None: for ever).

        Raise before anything is settled if the claim is malformed. If the claim fails once verdicts are settled, return
        their results without messages; the caller's next claim gets the error.
        """
        check_claim_request(ask)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        results = await self.settle(ref, verdicts) if verdicts else []
        try:
            return Exchanged(results, await self.claim(ref, ask, wait_ms))
        except HoldfastError:
            if not verdicts:
                raise
            # The verdicts are written, and the caller must learn of that.
            return Exchanged(results, [])

    async def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        """Deliveries for ever, each claimed when it is asked for: nothing travels here, so nothing is sent ahead."""
        while True:
            for delivery in await self.claim(ref, replace(ask, limit=1), None):
                yield delivery

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        check_verdicts(verdicts)
        results = await self._store.settle(ref, verdicts, self._now_ms())
        self._subscriptions.note(ref, verdicts, results)
        return results

    async def held_by(self, ref: QueueRef, id: object, owner: str | None) -> Receipt:
        """The receipt of a message's lease, if it is `owner`'s (None: anybody's). `StaleLease` in the same words
        whether another holds it, nobody does, or there is no such message."""
        snowflake = parse_id(id)
        found = await self._store.get(ref, snowflake)
        lease = None if found is None else found.life.lease
        if found is None or lease is None or (owner is not None and (lease.owner or "") != owner):
            id = to_uuid(snowflake)
            raise StaleLease(f"message {id} is not held by this caller: claim it, or give its receipt", id=id)
        return receipt_of(found.envelope, found.life)

    async def subscribe(
        self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> Subscription:
        check_claim_request(ask)
        if not self._directory.auto_create:
            await self._directory.require(ref)
        return self._subscriptions.open(ref, ask, prefetch, releases_at_end=releases_at_end)

    async def watch(self, ref: QueueRef) -> Watch:
        if not self._directory.auto_create:
            await self._directory.require(ref)
        return self._watches.open(ref)

    def close(self) -> None:
        """Let those go who subscribed, watch or wait for events; claims that wait are the dispatcher's."""
        self._subscriptions.close()
        self._watches.close()
        self._is_closing = True

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """What never reached its claimer."""
        self._dispatcher.give_back(ref, deliveries)

    async def save_state(self, ref: QueueRef, request: StateRequest) -> Saved:
        """Save the document if its ETag is still the given one, then the progress, whichever of them is given."""
        progress = None if request.progress is None else check_progress(request.progress.percent, request.progress.text)
        changes = []
        if request.document is not UNSET:
            document = bytes(request.document)
            check_size("state", len(document), self._max_payload)
            changes.append(StateChange(document=document, etag=request.etag))
        if progress is not None:
            changes.append(StateChange(progress=progress))
        if not changes:
            raise InvalidArgument("give the document to save, or progress", field="document")
        for change in changes:
            etag = await self._store.save_state(ref, request.receipt, change, self._now_ms())
        return Saved(etag=etag)

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, request: GetRequest) -> Info:
        snowflake, with_payload = parse_id(request.id), request.payload
        await self._admission.look(ref)
        found = await self._store.get(ref, snowflake)
        if found is None:
            raise MessageNotFound(f"queue {ref} has no message {to_uuid(snowflake)}", id=to_uuid(snowflake))
        self._admission.read(ref, 1, found.envelope.bytes if with_payload else 0)
        return info_of(await self._whole(ref, found) if with_payload else found, with_payload=with_payload)

    async def peek(self, ref: QueueRef, request: PeekRequest) -> list[Info]:
        check_integer("limit", request.limit, 1, MAX_BATCH)
        await self._admission.look(ref)
        every = await self._store.peek(ref, request.limit, self._now_ms())
        self._admission.read(ref, len(every), sum(each.envelope.bytes for each in every))
        infos = []
        for each in every:
            with suppress(MessageNotFound):  # it went while its payload was read
                infos.append(info_of(await self._whole(ref, each), with_payload=True))
        return infos

    async def browse(self, ref: QueueRef, request: BrowseRequest) -> Page[Info]:
        """Return one page. With payloads it may end before the limit, by its bytes."""
        limit, with_payload = request.limit, request.payload
        check_integer("limit", limit, 1, MAX_BATCH)
        state, which = parse_listing(request.state, request.filter)
        after = None if request.cursor is None else parse_id(request.cursor)
        await self._admission.look(ref)
        step = _STEP_WITH_PAYLOADS if with_payload else limit
        page: Page[Info] = Page()
        size = 0
        while True:
            listing = await self._store.browse(ref, state, which, after, min(step, limit - len(page)), self._now_ms())
            after = listing.after
            for each in listing.found:
                if with_payload and size > _PAGE_BYTES:
                    after = page[-1].snowflake
                    break
                with suppress(MessageNotFound):  # it went while its payload was read
                    whole = await self._whole(ref, each) if with_payload else each
                    page.append(info_of(whole, with_payload=with_payload))
                    size += each.envelope.bytes
            page.cursor = None if after is None else str(after)
            if after is None or len(page) == limit or not with_payload or size > _PAGE_BYTES:
                self._admission.read(ref, len(page), size if with_payload else 0)
                return page

    async def _whole(self, ref: QueueRef, found: Found) -> Found:
        envelope = found.envelope
        if envelope.pieces is None:
            return found
        parts = [part async for part in await self._store.payloads.read(ref, envelope.id, envelope.pieces)]
        return replace(found, envelope=replace(envelope, payload=b"".join(parts), pieces=None))

    async def stats(self, ref: QueueRef, request: Nothing) -> Stats:
        row = await self._directory.require(ref)
        now_ms = self._now_ms()
        counts = await self._store.counts(*ref, now_ms)
        return stats_of(counts, now_ms, waiters=self._dispatcher.count_waiters(ref), row=row)

    async def journal(self, ref: QueueRef, request: JournalRequest) -> JournalEvents:
        """If there is nothing behind the position, wait up to `wait_ms` for something. `until` ends a range that was
        read before."""
        after, tenant = request.after, request.tenant
        check_integer("limit", request.limit, 1, MAX_BATCH)
        check_integer("wait_ms", request.wait_ms, 0, MAX_MS)
        ends_at = self._now_ms() + request.wait_ms
        while True:
            events = await self._events(after, request.limit, tenant, request.until)
            now_ms = self._now_ms()
            if events or now_ms >= ends_at or self._is_closing:
                return events
            # What is looked through once is not looked through again.
            after = events.next
            await sleep_until(self._runtime, min(ends_at, now_ms + _JOURNAL_POLL_MS))

    async def _events(self, after: str | None, limit: int, tenant: str | None, until: str | None) -> JournalEvents:
        """A whole page. One tenant's may lie far apart among the others': then everybody has a turn in between."""
        events = JournalEvents()
        steps = 0
        while True:
            page = await self._store.journal(after, limit - len(events), tenant, self._now_ms(), until)
            events += page.events
            events.next = page.position
            if tenant is None or len(events) == limit or page.position == after or self._is_closing:
                return events
            after = page.position
            steps += 1
            if steps > 1:  # the first one mostly reached the end, and the second only sees that it did
                await sleep_until(self._runtime, self._now_ms())

    # --- The claim ledger ------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, request: LedgerRequest) -> list[LedgerEntry]:
        """Return the consumer's open claims; with `number`, that one alone."""
        check_text("consumer", request.consumer)
        if request.number is not None:
            check_integer("number", request.number, 0, MAX_MS)
        await self._admission.look(ref)
        claims = await self._store.ledgers.entries(ref, request.consumer, self._now_ms(), request.number)
        deliveries = [delivery for entry in claims for delivery in entry.deliveries]
        self._admission.read(ref, len(deliveries), sum(each.bytes for each in deliveries))
        return claims

    async def ledger_ack(self, ref: QueueRef, request: LedgerAckRequest) -> list[Result]:
        check_text("consumer", request.consumer)
        check_integer("upto", request.upto, 0, MAX_MS)
        return await self._store.ledgers.ack(ref, request.consumer, request.upto, self._now_ms())

    async def ledger_extend(self, ref: QueueRef, request: LedgerExtendRequest) -> list[Result]:
        check_text("consumer", request.consumer)
        if request.lease_ms is not None:
            check_integer("lease", request.lease_ms, 1, MAX_MS)
        return await self._store.ledgers.extend(ref, request.consumer, request.lease_ms, self._now_ms())


def _not_held(receipt: Receipt) -> StaleLease:
    id = to_uuid(receipt.id)
    return StaleLease(
        f"message {id} is no longer held by this receipt, so its payload is not given: the lease ran out, or the "
        "message was settled, claimed again or removed",
        id=id,
    )
