"""QueueService: enqueue, claim and settle messages."""

from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.answers import (
    Delivery,
    Enqueued,
    Exchanged,
    LedgerEntry,
    PayloadPart,
    Result,
    Saved,
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
from holdfast.model.message import MAX_PART, Draft, Envelope, Receipt, check_draft, check_drafts, check_size
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
)
from holdfast.model.rules.lifecycle import holds
from holdfast.runtime import Runtime
from holdfast.service.joined_calls import Call, JoinedCalls, weigh_drafts, weigh_verdicts
from holdfast.service.limits.admission import Admission
from holdfast.service.policy_cache import PolicyCache
from holdfast.service.subscriptions import Subscription, Subscriptions
from holdfast.service.uploads import PayloadUpload
from holdfast.service.watches import Watch, Watches
from holdfast.stores.contract import PayloadReader, PayloadWriter, Store
from holdfast.stores.logic.results import receipt_of
from holdfast.wire.requests import (
    LedgerAckRequest,
    LedgerExtendRequest,
    LedgerRequest,
    StateRequest,
)


class QueueService:
    """The operations on messages. Each call is checked completely before it changes anything."""

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
        self._enqueue: Call[Draft, Enqueued] = self._enqueue_in_store
        self._settle: Call[Verdict, Result] = self._settle_in_store
        if runtime.has_turns and store.capabilities.prefers_batches:
            self._enqueue = JoinedCalls(runtime, self._enqueue_in_store, weigh_drafts).add
            self._settle = JoinedCalls(runtime, self._settle_in_store, weigh_verdicts).add
        self._subscriptions = Subscriptions(runtime, self.claim, self.settle, self.give_back)
        self._watches = Watches(dispatcher, runtime)

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        """Add messages to a queue, all or none, and return their results once they are durable.

        Raise `InvalidArgument` or `PayloadTooLarge` for an invalid draft, `RateLimited` or `OverQuota` above a limit,
        `Draining` for a queue that is being deleted, and `QueueNotFound` for a missing queue without `auto_create`.
        """
        check_drafts(drafts, self._max_payload)
        if not drafts:
            return []
        with self._admission.enter_at_once(ref) or await self._admission.admit_enqueue(ref, drafts):
            return await self._enqueue(ref, drafts)

    def _enqueue_in_store(self, ref: QueueRef, drafts: list[Draft]) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._store.enqueue(ref, drafts, self._now_ms(), auto_create=self._directory.auto_create)

    def _settle_in_store(self, ref: QueueRef, verdicts: list[Verdict]) -> Coroutine[Any, Any, list[Result]]:
        return self._store.settle(ref, verdicts, self._now_ms())

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        """Add messages to several queues, one after the other.

        If one queue refuses its messages, for example because of a quota, the queues before it keep theirs.
        """
        check_drafts([draft for drafts in batches.values() for draft in drafts], self._max_payload)
        return {ref: await self.enqueue(ref, drafts) for ref, drafts in batches.items()}

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> PayloadUpload:
        """Begin the upload of one message, whose payload is then written in parts.

        Args:
            draft: The message without its payload.
            size: The size of the payload, if it is known. Raise `PayloadTooLarge` at once if it is above the limit.
        """
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
        """Return a reader of the payload of a delivery that has it in pieces (see `ClaimRequest.streams`)."""
        if delivery.pieces is None:
            raise Internal("this delivery has its payload in memory, not in pieces")
        return await self._store.payloads.read(ref, delivery.snowflake, delivery.pieces)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        """Return at most `limit` bytes from `offset` of the payload of a message.

        Raise `StaleLease` if the receipt no longer holds the message.
        """
        check_integer("offset", offset, 0, MAX_MS)
        check_integer("limit", limit, 1, MAX_PART)
        try:
            found = await self._store.get(ref, receipt.id)
        except QueueNotFound:  # the queue was deleted, with all its leases
            raise _not_held(receipt) from None
        if found is None or not holds(found.life, receipt, self._now_ms()):
            raise _not_held(receipt)
        try:
            return await self._read_part(ref, found.envelope, offset, limit)
        except MessageNotFound:  # settled while it was read
            raise _not_held(receipt) from None

    async def read_delivered_part(self, ref: QueueRef, id: int, offset: int, limit: int) -> PayloadPart:
        """Return a part of the payload of a message that was delivered, whether or not its lease has ended since.

        Raise `MessageNotFound` once the message is gone.
        """
        found = await self._store.get(ref, id)
        if found is None:
            raise MessageNotFound(
                f"message {to_uuid(id)} was settled or removed while its payload was read", id=to_uuid(id)
            )
        return await self._read_part(ref, found.envelope, offset, limit)

    async def _read_part(self, ref: QueueRef, envelope: Envelope, offset: int, limit: int) -> PayloadPart:
        pieces = envelope.pieces
        if pieces is None:
            data = envelope.payload[offset : offset + limit]
            return PayloadPart(data, len(envelope.payload), envelope.correlation_id)
        remaining = min(limit, max(0, pieces.size - offset))
        parts: list[bytes] = []
        reader = await self._store.payloads.read(ref, envelope.id, pieces, offset)
        while remaining > 0:
            parts.append((await anext(reader))[:remaining])
            remaining -= len(parts[-1])
        return PayloadPart(b"".join(parts), pieces.size, envelope.correlation_id)

    async def claim(self, ref: QueueRef, request: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim ready messages, waiting up to `wait_ms` for one (None: for ever).

        Return an empty list if none came. Raise `InvalidArgument`, `RateLimited`, and `QueueNotFound` for a missing
        queue without `auto_create`.
        """
        # Nothing may be awaited after the dispatcher has returned. A caller that was cancelled there would strand the
        # messages.
        check_claim_request(request)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        if not self._directory.auto_create:
            await self._directory.require(ref)
        if not self._admission.is_limited(ref):
            return await self._dispatcher.claim(ref, request, wait_ms)
        with await self._admission.admit_claim(ref, wait_ms) as hold:
            deliveries = await self._dispatcher.claim(ref, request, hold.remaining_ms(wait_ms))
            hold.delivered(deliveries)
            return deliveries

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], request: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Settle earlier deliveries, then claim ready messages, waiting up to `wait_ms` for one (None: for ever).

        Raise before anything is settled if the claim is malformed. If the claim fails once verdicts are settled, return
        their results without messages; the caller's next claim gets the error.
        """
        check_claim_request(request)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        results = await self.settle(ref, verdicts) if verdicts else []
        try:
            return Exchanged(results, await self.claim(ref, request, wait_ms))
        except HoldfastError:
            if not verdicts:
                raise
            # The verdicts are durable, so their results must be returned.
            return Exchanged(results, [])

    async def stream(self, ref: QueueRef, request: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield deliveries without end, each claimed when it is needed.

        `prefetch` is not used: without a network there is nothing to gain from claiming in advance.
        """
        while True:
            for delivery in await self.claim(ref, replace(request, limit=1), None):
                yield delivery

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """Carry out verdicts, and return the result of each once they are durable.

        A verdict that fails, for example because its receipt is stale, has its error in the result. Raise
        `InvalidArgument` if a verdict is malformed; then none is carried out.
        """
        check_verdicts(verdicts)
        results = await self._settle(ref, verdicts)
        self._subscriptions.note(ref, verdicts, results)
        return results

    async def held_by(self, ref: QueueRef, id: object, owner: str | None) -> Receipt:
        """Return the receipt of the message with this id, if `owner` holds its lease (None: any owner).

        Raise `StaleLease`, with the same text whether another caller holds it, no caller does, or it does not exist.
        """
        snowflake = parse_id(id)
        found = await self._store.get(ref, snowflake)
        lease = None if found is None else found.life.lease
        if found is None or lease is None or (owner is not None and (lease.owner or "") != owner):
            id = to_uuid(snowflake)
            raise StaleLease(f"message {id} is not held by this caller: claim it, or give its receipt", id=id)
        return receipt_of(found.envelope, found.life)

    async def subscribe(
        self, ref: QueueRef, request: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> Subscription:
        """Open a subscription that claims up to `prefetch` messages in advance.

        With `releases_at_end`, the messages that the subscriber still holds are released when the subscription ends.
        """
        check_claim_request(request)
        if not self._directory.auto_create:
            await self._directory.require(ref)
        return self._subscriptions.open(ref, request, prefetch, releases_at_end=releases_at_end)

    async def watch(self, ref: QueueRef) -> Watch:
        """Open a watch, which waits until the queue may have messages."""
        if not self._directory.auto_create:
            await self._directory.require(ref)
        return self._watches.open(ref)

    def close(self) -> None:
        """End all subscriptions and watches. The dispatcher ends waiting claims."""
        self._subscriptions.close()
        self._watches.close()

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """Make deliveries that could not be sent ready again at once, in the background."""
        self._dispatcher.give_back(ref, deliveries)

    async def save_state(self, ref: QueueRef, request: StateRequest) -> Saved:
        """Save the state document, the progress, or both, of a message in flight.

        Return the document's ETag and the message's correlation id.

        Raise `StaleLease` if the receipt does not hold the message, and `Conflict` if the stored ETag is not the given
        one.
        """
        progress = None if request.progress is None else check_progress(request.progress.percent, request.progress.text)
        changes = []
        if request.document is not UNSET:
            document = bytes(request.document)
            check_size("state", len(document), self._max_payload)
            changes.append(StateChange(document=document, etag=request.etag))
        if progress is not None:
            changes.append(StateChange(progress=progress))
        if not changes:
            raise InvalidArgument("nothing to save: give document, progress or both", field="document")
        for change in changes:
            saved = await self._store.save_state(ref, request.receipt, change, self._now_ms())
        return saved

    # --- The claim ledger ------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, request: LedgerRequest) -> list[LedgerEntry]:
        """Return the open claims of a consumer, or only the one with `request.number`."""
        check_text("consumer", request.consumer)
        if request.number is not None:
            check_integer("number", request.number, 0, MAX_MS)
        await self._admission.admit_look(ref)
        claims = await self._store.ledgers.entries(ref, request.consumer, self._now_ms(), request.number)
        deliveries = [delivery for entry in claims for delivery in entry.deliveries]
        self._admission.charge_read(ref, len(deliveries), sum(each.bytes for each in deliveries))
        return claims

    async def ledger_ack(self, ref: QueueRef, request: LedgerAckRequest) -> list[Result]:
        """Close a consumer's claims up to `request.upto`, and ack their messages."""
        check_text("consumer", request.consumer)
        check_integer("upto", request.upto, 0, MAX_MS)
        return await self._store.ledgers.ack(ref, request.consumer, request.upto, self._now_ms())

    async def ledger_extend(self, ref: QueueRef, request: LedgerExtendRequest) -> list[Result]:
        """Extend the leases of all messages in a consumer's open claims."""
        check_text("consumer", request.consumer)
        if request.lease_ms is not None:
            check_integer("lease", request.lease_ms, 1, MAX_MS)
        return await self._store.ledgers.extend(ref, request.consumer, request.lease_ms, self._now_ms())


def _not_held(receipt: Receipt) -> StaleLease:
    id = to_uuid(receipt.id)
    return StaleLease(
        f"cannot read the payload of message {id}: this receipt no longer holds it, because the lease expired, or the "
        "message was settled, claimed again or removed",
        id=id,
    )
