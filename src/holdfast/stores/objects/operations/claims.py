"""Claim: what is due in the window, each taken by one conditional write of its metadata.

write the metadata: in flight, token, version + 1      lost to another: passed over, and the next one taken
read the payload (beside it)                           not there: given back uncounted, and passed over
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
from holdfast.stores.contract import Claims, QueueRow
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import being_deleted, delivery_of
from holdfast.stores.objects.buckets.bucket import ObjectMissing
from holdfast.stores.objects.buckets.retries import side_by_side
from holdfast.stores.objects.messages.groups import ObjectGroups
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState, ObjectQueueStates
from holdfast.stores.objects.messages.state_documents import StateDocuments
from holdfast.stores.objects.messages.unit import ObjectUnits
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.ledgers import ObjectLedgers

# Leases and TTLs that one claim ends before it looks for messages; the rest is found by the next pass.
_ENDED_PER_CLAIM = 1_000
# How often a claim that lost messages to others looks for more.
_ROUNDS = 4


@dataclass(slots=True)
class _Pick:
    """Messages that are taken together: one, or a group's in order."""

    ask: int
    entries: list[IndexedMessage]
    given: list[Delivery] = field(default_factory=list)


class ObjectClaims:
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
        self._shelves: ObjectQueueStates = messages.shelves
        self._directory = directory
        self._groups = groups
        self._states = states
        self._ledgers = ledgers
        self._units = units
        self._dice = dice
        self._streams_above = streams_above

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int, notices: Notices) -> Claims:
        row = await self._directory.find(ref)
        if row is None:
            return Claims([[] for _ in asks], None)
        if row.drain_until is not None:
            raise being_deleted(ref)
        shelf = self._shelves.of(ref)
        ledger = asks[0].ledger
        if ledger is not None and (again := await self._ledgers.claim_again(ref, *ledger, now_ms)) is not None:
            return Claims([again], self._next_at(row, shelf, now_ms), is_reread=True)
        wanted = sum(ask.limit for ask in asks)
        is_all = await self._shelves.look(shelf, max(1, wanted), now_ms)
        await self._units.end_overdue(row, shelf, _ENDED_PER_CLAIM, now_ms, notices)
        per_ask: list[list[Delivery]] = [[] for _ in asks]
        if not row.is_paused and wanted:
            await self._serve(row, shelf, asks, per_ask, now_ms, notices)
        if ledger is not None and per_ask[0]:
            noted = await self._ledgers.note(ref, *ledger, per_ask[0], now_ms)
            if noted is not None:  # the same claim was made twice at once, and the other stands
                await side_by_side(per_ask[0], lambda each: self._unsend(row, each, now_ms, notices))
                return Claims([noted], self._next_at(row, shelf, now_ms), is_reread=True)
        notices.deadline(shelf.index.next_deadline())
        return Claims(per_ask, self._next_at(row, shelf, now_ms, may_hold_more=not is_all))

    def _next_at(
        self, row: QueueRow, shelf: ObjectQueueState, now_ms: int, *, may_hold_more: bool = False
    ) -> int | None:
        """`may_hold_more`: the window is full, so that the next look may find more, whatever this one gave."""
        return next_claim_at(
            is_paused=row.is_paused, is_served=may_hold_more, now_ms=now_ms, soonest=shelf.index.next_at
        )

    async def _serve(
        self,
        row: QueueRow,
        shelf: ObjectQueueState,
        asks: list[ClaimRequest],
        per_ask: list[list[Delivery]],
        now_ms: int,
        notices: Notices,
    ) -> None:
        for _ in range(_ROUNDS):
            picks = self._pick(shelf, asks, per_ask, now_ms)
            if not picks:
                return
            try:
                await side_by_side(picks, lambda pick: self._take(row, pick, asks[pick.ask], now_ms, notices))
            finally:
                for pick in picks:
                    for entry in pick.entries:
                        entry.is_taken = False
            lost = 0
            for pick in picks:
                per_ask[pick.ask] += pick.given
                lost += len(pick.entries) - len(pick.given)
            if not lost:
                return
            short = sum(ask.limit - len(given) for ask, given in zip(asks, per_ask, strict=True))
            await self._shelves.look(shelf, max(1, short), now_ms)

    def _pick(
        self, shelf: ObjectQueueState, asks: list[ClaimRequest], per_ask: list[list[Delivery]], now_ms: int
    ) -> list[_Pick]:
        """For each ask in turn what is due. Nothing is awaited: no other claim of this process picks the same."""
        picks: list[_Pick] = []
        due = shelf.index.due(now_ms)
        for at, ask in enumerate(asks):
            short = ask.limit - len(per_ask[at])
            while short > 0 and (entry := next(due, None)) is not None:
                if entry.is_taken or self._groups.is_held(shelf, entry, now_ms):
                    continue
                entries = [entry]
                if entry.body.group is not None:
                    entries = []
                    for each in shelf.index.group_of(entry)[:short]:
                        if each.body.life.visible_at > now_ms or each.is_taken:
                            break
                        entries.append(each)
                entries = [each for each in entries if not is_over(each.body.life, now_ms)]
                if not entries:
                    continue
                for each in entries:
                    each.is_taken = True
                short -= len(entries)
                picks.append(_Pick(at, entries))
        return picks

    async def _take(self, row: QueueRow, pick: _Pick, ask: ClaimRequest, now_ms: int, notices: Notices) -> None:
        if pick.entries[0].body.group is None:
            if (given := await self._take_one(row, pick.entries[0], ask, now_ms, notices)) is not None:
                pick.given.append(given)
            return
        batch = await self._groups.begin(row.ref, pick.entries, now_ms)
        if batch is None:
            return
        for entry in batch.entries:
            given = await self._take_one(row, entry, ask, now_ms, notices)
            if given is None:
                break  # what comes behind it must not overtake it
            pick.given.append(given)
        if pick.given and not await self._groups.is_ours(batch):
            for delivery in pick.given:
                await self._unsend(row, delivery, now_ms, notices)
            pick.given.clear()

    async def _take_one(
        self, row: QueueRow, entry: IndexedMessage, ask: ClaimRequest, now_ms: int, notices: Notices
    ) -> Delivery | None:
        """None: it is another's, or its payload is not there."""
        is_whole = entry.body.size <= self._streams_above or not ask.streams
        writing = self._claim_one(row, entry, ask, now_ms, notices)
        reading = self._messages.payload(entry) if is_whole else self._messages.find_payload(entry)
        claimed, payload = await asyncio.gather(writing, reading, return_exceptions=True)
        if isinstance(claimed, BaseException):
            raise claimed
        if claimed is None:
            return None
        if isinstance(payload, ObjectMissing | StoreUnavailable):
            await self._pass_over(row, claimed, now_ms, notices)
            return None
        if isinstance(payload, BaseException):
            raise payload
        body = claimed.body
        state: StateDocument | None = None
        if ask.with_state or body.has_state:
            state = await self._states.take_over(claimed)
        return delivery_of(body.envelope(payload), body.life, state if ask.with_state else None)

    async def _claim_one(
        self, row: QueueRow, entry: IndexedMessage, ask: ClaimRequest, now_ms: int, notices: Notices
    ) -> IndexedMessage | None:
        [token] = self._dice.tokens(1)
        change = lifecycle.claim(
            entry.body.life,
            row.policy,
            now_ms,
            token=token,
            lease_ms=ask.lease_ms,
            owner=ask.owner,
            ledger=ask.ledger,
        )
        return await self._messages.change(entry, change, now_ms, notices)

    async def _pass_over(self, row: QueueRow, entry: IndexedMessage, now_ms: int, notices: Notices) -> None:
        """Given back as if it had not been claimed; and not looked at again before it changes."""
        change = lifecycle.unsend(entry.body.life, row.policy, now_ms)
        given = await self._messages.change(entry, change, now_ms, notices)
        if given is not None:
            shelf = self._shelves.of(row.ref)
            shelf.index.drop(entry.id)
            shelf.passed[entry.id] = (given.held.stamp.mark, None)

    async def _unsend(self, row: QueueRow, delivery: Delivery, now_ms: int, notices: Notices) -> None:
        entry = await self._messages.read(row.ref, delivery.snowflake, now_ms)
        if entry is not None and lifecycle.holds(entry.body.life, delivery.receipt, now_ms):
            change = lifecycle.unsend(entry.body.life, row.policy, now_ms)
            await self._messages.change(entry, change, now_ms, notices)
