"""Stores that break one promise each, to check the checker: a rule that lets its mutant pass proves nothing.

Each is the memory store with one thing wrong, on some of the messages it meets.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Counts, Delivery, Enqueued, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.lifecycle import Change
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Verdict
from holdfast.stores.contract import Claims
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.shelf import Entry, Shelf
from holdfast.testing.history.rules import Rule

_DAY_MS = 86_400_000
_NOBODYS = bytes(16)


class Mutant(MemoryStore):
    """`breaks` is the rule that must catch it."""

    breaks: Rule

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice, _DAY_MS)
        self._met: Counter[str] = Counter()

    def _is_turn(self, every: int, what: str = "") -> bool:
        """Every so many times it is asked: a fault that always strikes would be caught by anything."""
        self._met[what] += 1
        return self._met[what] % every == 0


class DropsMessages(Mutant):
    """Answers an enqueue, and forgets the message."""

    breaks = Rule.LOST

    def _put_new(self, shelf: Shelf, draft: Draft, id: int, now_ms: int, reason: str | None = None) -> None:
        super()._put_new(shelf, draft, id, now_ms, reason)
        if draft.group is None and self._is_turn(5):
            self._directory.drop(shelf, shelf.entries[id])


class DropsExpired(Mutant):
    """Forgets a message whose lease ran out."""

    breaks = Rule.LOST

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.event is Event.EXPIRED and entry.envelope.group is None and self._is_turn(3):
            change = Change(None, change.event)
        super()._apply(shelf, entry, change, now_ms)


class Resurrects(Mutant):
    """Puts back what was acked: a sweep that did not look again."""

    breaks = Rule.RESURRECTED

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        super()._apply(shelf, entry, change, now_ms)
        if change.event is Event.SUCCEEDED and entry.life.version == 1 and self._is_turn(3):
            entry.life = replace(entry.life, state=State.READY, lease=None)
            self._directory.put(shelf, entry)


class LeasesTwice(Mutant):
    """Gives a message that is in flight to the next claimer too."""

    breaks = Rule.DOUBLE_LEASE

    def _claim_for(self, shelf: Shelf, ask: Ask, now_ms: int) -> list[Delivery]:
        held = [shelf.entries[id] for _, id in shelf.leases if shelf.entries[id].envelope.group is None]
        deliveries = super()._claim_for(shelf, ask, now_ms)
        if held and len(deliveries) < ask.limit and self._is_turn(3):
            [token] = self._dice.tokens(1)
            free = replace(held[0].life, state=State.READY, lease=None)
            change = lifecycle.claim(free, shelf.row.policy, now_ms, token=token, lease_ms=ask.lease_ms)
            self._apply(shelf, held[0], change, now_ms)
            deliveries.append(self._delivery(held[0], with_state=ask.with_state))
        return deliveries


class ForgetsExpiry(Mutant):
    """Takes a receipt whose lease has run out, for a while."""

    breaks = Rule.STALE_ACCEPTED
    _while_ms = 200

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.event is Event.CLAIMED and change.life is not None and change.life.lease is not None:
            lease = change.life.lease
            lease = replace(lease, expires_at=lease.expires_at + self._while_ms)
            change = change._replace(life=replace(change.life, lease=lease))
        super()._apply(shelf, entry, change, now_ms)

    def _delivery(self, entry: Entry, *, with_state: bool) -> Delivery:
        delivery = super()._delivery(entry, with_state=with_state)
        return replace(delivery, lease_expires_at=delivery.lease_expires_at - self._while_ms)


class ForgetsToken(Mutant):
    """Takes any receipt of a message that is in flight."""

    breaks = Rule.STALE_ACCEPTED

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        entry = shelf.entries.get(verdict.receipt.id)
        if entry is not None and entry.life.lease is not None:
            current = Receipt(entry.envelope.id, entry.life.lease.token, entry.life.version)
            verdict = replace(verdict, receipt=current)
        return super()._settle_one(shelf, verdict, now_ms)


class RobsTheHolder(Mutant):
    """A receipt that it refuses ends the lease of whoever holds the message."""

    breaks = Rule.ROBBED

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        result = super()._settle_one(shelf, verdict, now_ms)
        entry = shelf.entries.get(verdict.receipt.id)
        if not result.ok and entry is not None and entry.life.lease is not None:
            lease = replace(entry.life.lease, token=_NOBODYS)
            shelf.change(entry, replace(entry.life, lease=lease))
        return result


class ReusesVersions(Mutant):
    """Gives a claim the version of the one before it."""

    breaks = Rule.VERSION

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.event is Event.CLAIMED and change.life is not None and entry.life.version and self._is_turn(2):
            change = change._replace(life=replace(change.life, version=entry.life.version))
        super()._apply(shelf, entry, change, now_ms)


class IgnoresKeys(Mutant):
    """Makes a new message of a key it has seen."""

    breaks = Rule.DUPLICATED

    def _seen_keys(self, shelf: Shelf | None, keys: Iterable[str], now_ms: int) -> dict[str, Enqueued]:
        return {}


class StoresTwice(Mutant):
    """Makes two messages of one."""

    breaks = Rule.DUPLICATED

    def _put_new(self, shelf: Shelf, draft: Draft, id: int, now_ms: int, reason: str | None = None) -> None:
        super()._put_new(shelf, draft, id, now_ms, reason)
        if draft.key is None and draft.group is None and self._is_turn(5):
            [twin] = self._ids.take(1, now_ms)
            super()._put_new(shelf, draft, twin, now_ms, reason)


class Corrupts(Mutant):
    """Delivers other bytes than were sent."""

    breaks = Rule.CORRUPT

    def _delivery(self, entry: Entry, *, with_state: bool) -> Delivery:
        delivery = super()._delivery(entry, with_state=with_state)
        return replace(delivery, payload=delivery.payload[:-1] + b"\0") if self._is_turn(5) else delivery


class SwapsPayloads(Mutant):
    """Delivers a message with the payload of another."""

    breaks = Rule.CORRUPT

    def _claim_for(self, shelf: Shelf, ask: Ask, now_ms: int) -> list[Delivery]:
        deliveries = super()._claim_for(shelf, ask, now_ms)
        if len(deliveries) > 1:
            first, second, *others = deliveries
            return [replace(first, payload=second.payload), replace(second, payload=first.payload), *others]
        return deliveries


class _Leaks(Mutant):
    breaks = Rule.LEAKED

    def _is_other(self, ref: QueueRef, other: QueueRef) -> bool:
        raise NotImplementedError

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        claims = await super().claim(ref, asks, now_ms)
        if not any(claims.per_ask) and self._is_turn(4) and self._met[""] < 100:
            for tenant in await self._directory.list_tenants():
                for shelf in self._directory.shelves_of(tenant.tenant):
                    if self._is_other(ref, shelf.row.ref) and not shelf.row.is_paused:
                        return await super().claim(shelf.row.ref, asks, now_ms)
        return claims


class LeaksToTenants(_Leaks):
    """Gives a tenant that finds nothing the messages of another."""

    def _is_other(self, ref: QueueRef, other: QueueRef) -> bool:
        return ref.tenant != other.tenant and ref.queue == other.queue


class LeaksToQueues(_Leaks):
    """Gives a queue that is empty the messages of another queue of its tenant."""

    def _is_other(self, ref: QueueRef, other: QueueRef) -> bool:
        return ref.tenant == other.tenant and ref.queue != other.queue


class NeverGivesUp(Mutant):
    """Does not count what fails and what expires: a poison message comes for ever."""

    breaks = Rule.OVER_BUDGET

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.life is not None and change.life.state is State.READY:
            change = change._replace(life=replace(change.life, failures=0, expiries=0))
        super()._apply(shelf, entry, change, now_ms)


class ForgetsAttempts(Mutant):
    """Tells each claim that it is the first."""

    breaks = Rule.ATTEMPT

    def _delivery(self, entry: Entry, *, with_state: bool) -> Delivery:
        return replace(super()._delivery(entry, with_state=with_state), attempt=1)


class ForgetsGroups(Mutant):
    """Takes no heed of groups."""

    breaks = Rule.GROUP_ORDER

    def _put_new(self, shelf: Shelf, draft: Draft, id: int, now_ms: int, reason: str | None = None) -> None:
        super()._put_new(shelf, replace(draft, group=None), id, now_ms, reason)


class Miscounts(Mutant):
    """Counts one dead letter too many."""

    breaks = Rule.MISCOUNTED

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        counts = await super().counts(tenant, queue, now_ms)
        return replace(counts, failed=counts.failed + 1)


class Strands(Mutant):
    """Loses sight of a lease: its message is in flight for ever."""

    breaks = Rule.STUCK

    def _return_expired(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        if shelf.leases and shelf.leases[0][0] <= now_ms and self._is_turn(3):
            entry = shelf.entries[shelf.leases[0][1]]
            assert entry.life.lease is not None
            lease = replace(entry.life.lease, token=_NOBODYS, expires_at=now_ms + 10_000 * _DAY_MS)
            shelf.change(entry, replace(entry.life, lease=lease))
        return super()._return_expired(shelf, limit, now_ms)


class TearsBatches(Mutant):
    """Breaks off in the middle of a batch, and keeps its first half."""

    breaks = Rule.TORN

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        if len(drafts) > 1 and self._is_turn(3):
            await super().enqueue(ref, drafts[:1], now_ms, auto_create=auto_create)
            raise StoreUnavailable("the store broke off in the middle", outcome="unknown")
        return await super().enqueue(ref, drafts, now_ms, auto_create=auto_create)


class RefusesAndDoes(Mutant):
    """Refuses an enqueue, and carries it out."""

    breaks = Rule.PHANTOM

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        answers = await super().enqueue(ref, drafts, now_ms, auto_create=auto_create)
        if self._is_turn(5):
            raise InvalidArgument("this store takes no such message", field="payload")
        return answers


class ForgetsEvents(Mutant):
    """Leaves an ack out of the journal."""

    breaks = Rule.JOURNAL

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.event is Event.SUCCEEDED and self._is_turn(5):
            change = change._replace(event=None)
        super()._apply(shelf, entry, change, now_ms)


class Refuses(Mutant):
    """Raises where nothing stands in the way."""

    breaks = Rule.REFUSED

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        if self._is_turn(10):
            raise StoreUnavailable("this store has a headache", outcome="nothing happened")
        return await super().claim(ref, asks, now_ms)


MUTANTS: tuple[type[Mutant], ...] = (
    DropsMessages,
    DropsExpired,
    Resurrects,
    LeasesTwice,
    ForgetsExpiry,
    ForgetsToken,
    RobsTheHolder,
    ReusesVersions,
    IgnoresKeys,
    StoresTwice,
    Corrupts,
    SwapsPayloads,
    LeaksToTenants,
    LeaksToQueues,
    NeverGivesUp,
    ForgetsAttempts,
    ForgetsGroups,
    Miscounts,
    Strands,
    TearsBatches,
    RefusesAndDoes,
    ForgetsEvents,
    Refuses,
)
