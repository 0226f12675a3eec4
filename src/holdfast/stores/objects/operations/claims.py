"""Claim due messages of the window, each by one conditional write of its metadata.

write the metadata: in flight, token, version + 1      if another process was first, take the next message
read the payload, concurrently                         if it is missing, give the message back uncounted and skip it
"""

import asyncio
from dataclasses import dataclass, field

from holdfast.dice import Dice
from holdfast.model.answers import Delivery
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, StateDocument
from holdfast.model.rules import lifecycle
from holdfast.model.rules.claims import next_claim_at
from holdfast.model.rules.lifecycle import is_over
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import being_deleted, delivery_of
from holdfast.stores.objects.buckets.bucket import ObjectMissing
from holdfast.stores.objects.buckets.retries import run_concurrently
from holdfast.stores.objects.messages.groups import ObjectGroups
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState, ObjectQueueStates
from holdfast.stores.objects.messages.state_documents import StateDocuments
from holdfast.stores.objects.messages.unit import ObjectUnits
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.ledgers import ObjectLedgers
from holdfast.stores.values import Claims, QueueRow

# Maximum number of leases and TTLs that one claim ends before it looks for messages; later passes find the rest.
_MAX_ENDED = 1_000
# Rounds of a claim that lost messages to other processes.
_ROUNDS = 4


@dataclass(slots=True)
class _Pick:
    """Messages that are claimed together: a single one, or those of a group in order."""

    request_index: int
    entries: list[IndexedMessage]
    deliveries: list[Delivery] = field(default_factory=list)


class ObjectClaims:
    """Claims of messages."""

    def __init__(
        self,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        groups: ObjectGroups,
        states: StateDocuments,
        ledgers: ObjectLedgers,
        units: ObjectUnits,
        dice: Dice,
        streams_above: int,
    ) -> None:
        self._messages = messages
        self._queues: ObjectQueueStates = messages.queues
        self._directory = directory
        self._groups = groups
        self._states = states
        self._ledgers = ledgers
        self._units = units
        self._dice = dice
        self._streams_above = streams_above

    async def claim(self, ref: QueueRef, requests: list[ClaimRequest], now_ms: int, notices: Notices) -> Claims:
        """Claim messages of a queue for several requests at once.

        A request with a ledger number that is already open gets the messages of that claim again. Raise `Draining` if
        the queue is being deleted.
        """
        row = await self._directory.find(ref)
        if row is None:
            return Claims([[] for _ in requests], None)
        if row.drain_until is not None:
            raise being_deleted(ref)
        queue = self._queues.get(ref)
        ledger = requests[0].ledger
        if ledger is not None and (again := await self._ledgers.claim_again(ref, *ledger, now_ms)) is not None:
            return Claims([again], self._next_at(row, queue, now_ms), is_reread=True)
        wanted = sum(request.limit for request in requests)
        is_all = await self._queues.fill_window(queue, max(1, wanted), now_ms)
        await self._units.end_overdue(row, queue, _MAX_ENDED, now_ms, notices)
        per_request: list[list[Delivery]] = [[] for _ in requests]
        if not row.is_paused and wanted:
            await self._claim_due(row, queue, requests, per_request, now_ms, notices)
        if ledger is not None and per_request[0]:
            recorded = await self._ledgers.open_claim(ref, *ledger, per_request[0], now_ms)
            if recorded is not None:  # another claim with this number was recorded first
                await run_concurrently(per_request[0], lambda each: self._release(row, each, now_ms, notices))
                return Claims([recorded], self._next_at(row, queue, now_ms), is_reread=True)
        notices.deadline(queue.index.next_deadline())
        return Claims(per_request, self._next_at(row, queue, now_ms, may_hold_more=not is_all))

    def _next_at(
        self, row: QueueRow, queue: ObjectQueueState, now_ms: int, *, may_hold_more: bool = False
    ) -> int | None:
        """Return when a claim may next find something. `may_hold_more`: the window is full, so the next look may find
        more."""
        return next_claim_at(
            is_paused=row.is_paused, is_served=may_hold_more, now_ms=now_ms, soonest=queue.index.next_at
        )

    async def _claim_due(
        self,
        row: QueueRow,
        queue: ObjectQueueState,
        requests: list[ClaimRequest],
        per_request: list[list[Delivery]],
        now_ms: int,
        notices: Notices,
    ) -> None:
        for _ in range(_ROUNDS):
            picks = self._pick(queue, requests, per_request, now_ms)
            if not picks:
                return
            try:
                await run_concurrently(
                    picks, lambda pick: self._claim_pick(row, pick, requests[pick.request_index], now_ms, notices)
                )
            finally:
                for pick in picks:
                    for entry in pick.entries:
                        entry.is_taken = False
            lost = 0
            for pick in picks:
                per_request[pick.request_index] += pick.deliveries
                lost += len(pick.entries) - len(pick.deliveries)
            if not lost:
                return
            missing = sum(request.limit - len(claimed) for request, claimed in zip(requests, per_request, strict=True))
            await self._queues.fill_window(queue, max(1, missing), now_ms)

    def _pick(
        self, queue: ObjectQueueState, requests: list[ClaimRequest], per_request: list[list[Delivery]], now_ms: int
    ) -> list[_Pick]:
        """Pick due messages for each request in turn. Nothing is awaited, so no other claim of this process picks the
        same ones."""
        picks: list[_Pick] = []
        due = queue.index.due(now_ms)
        for at, request in enumerate(requests):
            missing = request.limit - len(per_request[at])
            while missing > 0 and (entry := next(due, None)) is not None:
                if entry.is_taken or self._groups.is_held(queue, entry, now_ms):
                    continue
                entries = [entry]
                if entry.body.group is not None:
                    entries = []
                    for each in queue.index.group_of(entry)[:missing]:
                        if each.body.life.visible_at > now_ms or each.is_taken:
                            break
                        entries.append(each)
                entries = [each for each in entries if not is_over(each.body.life, now_ms)]
                if not entries:
                    continue
                for each in entries:
                    each.is_taken = True
                missing -= len(entries)
                picks.append(_Pick(at, entries))
        return picks

    async def _claim_pick(
        self, row: QueueRow, pick: _Pick, request: ClaimRequest, now_ms: int, notices: Notices
    ) -> None:
        if pick.entries[0].body.group is None:
            if (delivery := await self._claim_message(row, pick.entries[0], request, now_ms, notices)) is not None:
                pick.deliveries.append(delivery)
            return
        batch = await self._groups.begin(row.ref, pick.entries, now_ms)
        if batch is None:
            return
        for entry in batch.entries:
            delivery = await self._claim_message(row, entry, request, now_ms, notices)
            if delivery is None:
                break  # later messages of the group must not overtake it
            pick.deliveries.append(delivery)
        if pick.deliveries and not await self._groups.is_ours(batch):
            for delivery in pick.deliveries:
                await self._release(row, delivery, now_ms, notices)
            pick.deliveries.clear()

    async def _claim_message(
        self, row: QueueRow, entry: IndexedMessage, request: ClaimRequest, now_ms: int, notices: Notices
    ) -> Delivery | None:
        """Claim a message and read its payload; None if another process has it or its payload is missing."""
        is_whole = entry.body.size <= self._streams_above or not request.streams
        writing = self._write_claim(row, entry, request, now_ms, notices)
        claimed: IndexedMessage | BaseException | None
        payload: bytes | BaseException | None
        if not entry.body.has_payload_object:
            claimed, payload = await writing, entry.body.payload
        else:
            reading = self._messages.payload(entry) if is_whole else self._messages.check_payload(entry)
            claimed, payload = await asyncio.gather(writing, reading, return_exceptions=True)
        if isinstance(claimed, BaseException):
            raise claimed
        if claimed is None:
            return None
        if isinstance(payload, ObjectMissing | StoreUnavailable):
            await self._skip(row, claimed, now_ms, notices)
            return None
        if isinstance(payload, BaseException):
            raise payload
        body = claimed.body
        state: StateDocument | None = None
        if request.with_state or body.has_state:
            state = await self._states.take_over(claimed)
        return delivery_of(body.envelope(payload), body.life, state if request.with_state else None)

    async def _write_claim(
        self, row: QueueRow, entry: IndexedMessage, request: ClaimRequest, now_ms: int, notices: Notices
    ) -> IndexedMessage | None:
        [token] = self._dice.tokens(1)
        change = lifecycle.claim(
            entry.body.life,
            row.policy,
            now_ms,
            token=token,
            lease_ms=request.lease_ms,
            owner=request.owner,
            ledger=request.ledger,
        )
        return await self._messages.change(entry, change, now_ms, notices)

    async def _skip(self, row: QueueRow, entry: IndexedMessage, now_ms: int, notices: Notices) -> None:
        """Give back a message uncounted, and do not look at it again before it changes."""
        change = lifecycle.unsend(entry.body.life, row.policy, now_ms)
        released = await self._messages.change(entry, change, now_ms, notices)
        if released is not None:
            queue = self._queues.get(row.ref)
            queue.index.drop(entry.id)
            queue.skipped[entry.id] = (released.document.version.mark, None)

    async def _release(self, row: QueueRow, delivery: Delivery, now_ms: int, notices: Notices) -> None:
        entry = await self._messages.read(row.ref, delivery.snowflake, now_ms)
        if entry is not None and lifecycle.holds(entry.body.life, delivery.receipt, now_ms):
            change = lifecycle.unsend(entry.body.life, row.policy, now_ms)
            await self._messages.change(entry, change, now_ms, notices)
