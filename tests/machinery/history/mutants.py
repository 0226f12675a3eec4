"""Stores that break one promise each, to check the checker: a rule that lets its mutant pass proves nothing.

Each is the memory store with one thing wrong, on some of the messages it meets.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Delivery, Enqueued, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.ids import IdMaker
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.model.rules.lifecycle import Change
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.journal import MemoryJournal
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue
from holdfast.stores.memory.unit import MemoryUnits
from holdfast.stores.values import Claims
from tests.machinery.history.rules import Rule

_DAY_MS = 86_400_000
_NOBODYS = bytes(16)


class FaultyUnits(MemoryUnits):
    """Atomic steps with a fault in them."""

    def __init__(self, directory: MemoryDirectory, journal: MemoryJournal, ids: IdMaker) -> None:
        super().__init__(directory, journal, ids)
        self._met = 0

    def _is_turn(self, every: int) -> bool:
        """Strike at every n-th call, because any check would find a fault that always strikes."""
        self._met += 1
        return self._met % every == 0


class Mutant(MemoryStore):
    """`breaks` is the rule that must catch it."""

    breaks: Rule

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice, _DAY_MS)
        self._met = 0

    def _is_turn(self, every: int) -> bool:
        self._met += 1
        return self._met % every == 0


class DropsMessages(Mutant):
    """Answers an enqueue, and forgets the message."""

    breaks = Rule.LOST

    class units_class(FaultyUnits):
        def add_one(self, queue: MemoryQueue, draft: Draft, id: int, reason: str | None) -> None:
            super().add_one(queue, draft, id, reason)
            if draft.group is None and self._is_turn(5):
                self._directory.drop(queue, queue.entries[id])


class DropsExpired(Mutant):
    """Forgets a message whose lease ran out."""

    breaks = Rule.LOST

    class units_class(FaultyUnits):
        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            if change.event is Event.EXPIRED and entry.envelope.group is None and self._is_turn(3):
                change = Change(None, change.event)
            super().apply_one(queue, entry, change)


class Resurrects(Mutant):
    """Puts back what was acked: a sweep that did not look again."""

    breaks = Rule.RESURRECTED

    class units_class(FaultyUnits):
        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            super().apply_one(queue, entry, change)
            if change.event is Event.SUCCEEDED and entry.life.version == 1 and self._is_turn(3):
                entry.life = replace(entry.life, state=State.READY, lease=None)
                self._directory.put(queue, entry)


class LeasesTwice(Mutant):
    """Gives a message that is in flight to the next claimer too."""

    breaks = Rule.DOUBLE_LEASE

    class units_class(FaultyUnits):
        async def take_due(self, queue: MemoryQueue, limits: list[int]) -> list[list[MemoryMessage]]:
            held = [queue.entries[id] for _, id in queue.leases if queue.entries[id].envelope.group is None]
            taken = await super().take_due(queue, limits)
            if held and len(taken[0]) < limits[0] and self._is_turn(3):
                queue.change(held[0], replace(held[0].life, state=State.READY, lease=None))
                taken[0].append(held[0])
            return taken


class ForgetsExpiry(Mutant):
    """Takes a receipt whose lease has run out, for a while."""

    breaks = Rule.STALE_ACCEPTED

    class units_class(FaultyUnits):
        _while_ms = 200

        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            if change.event is Event.CLAIMED and change.life is not None and change.life.lease is not None:
                lease = change.life.lease
                lease = replace(lease, expires_at=lease.expires_at + self._while_ms)
                change = change._replace(life=replace(change.life, lease=lease))
            super().apply_one(queue, entry, change)

        async def deliveries(
            self, queue: MemoryQueue, entries: list[MemoryMessage], *, with_state: bool, streams: bool
        ) -> list[Delivery]:
            deliveries = await super().deliveries(queue, entries, with_state=with_state, streams=streams)
            return [replace(each, lease_expires_at=each.lease_expires_at - self._while_ms) for each in deliveries]


class ForgetsToken(Mutant):
    """Takes any receipt of a message that is in flight."""

    breaks = Rule.STALE_ACCEPTED

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        return await super().settle(ref, [self._with_current(ref, verdict) for verdict in verdicts], now_ms)

    def _with_current(self, ref: QueueRef, verdict: Verdict) -> Verdict:
        queue = self._directory.find(ref)
        entry = None if queue is None else queue.entries.get(verdict.receipt.id)
        if entry is None or entry.life.lease is None:
            return verdict
        current = Receipt(entry.envelope.id, entry.life.lease.token, entry.life.version)
        return replace(verdict, receipt=current)


class RobsTheHolder(Mutant):
    """A refused receipt ends the current lease of the message."""

    breaks = Rule.ROBBED

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        results = await super().settle(ref, verdicts, now_ms)
        queue = self._directory.find(ref)
        for result in results:
            entry = None if queue is None else queue.entries.get(result.snowflake)
            if not result.ok and queue is not None and entry is not None and entry.life.lease is not None:
                lease = replace(entry.life.lease, token=_NOBODYS)
                queue.change(entry, replace(entry.life, lease=lease))
        return results


class ReusesVersions(Mutant):
    """Gives a claim the version of the one before it."""

    breaks = Rule.VERSION

    class units_class(FaultyUnits):
        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            if change.event is Event.CLAIMED and change.life is not None and entry.life.version and self._is_turn(2):
                change = change._replace(life=replace(change.life, version=entry.life.version))
            super().apply_one(queue, entry, change)


class IgnoresKeys(Mutant):
    """Makes a new message of a key it has seen."""

    breaks = Rule.DUPLICATED

    class units_class(FaultyUnits):
        async def known_keys(
            self, queue: MemoryQueue, drafts: list[Draft], firsts: Mapping[str, int]
        ) -> dict[str, Enqueued]:
            return {}


class StoresTwice(Mutant):
    """Makes two messages of one."""

    breaks = Rule.DUPLICATED

    class units_class(FaultyUnits):
        def add_one(self, queue: MemoryQueue, draft: Draft, id: int, reason: str | None) -> None:
            super().add_one(queue, draft, id, reason)
            if draft.key is None and draft.group is None and self._is_turn(5):
                [twin] = self._ids.take(1, self.now_ms)
                super().add_one(queue, draft, twin, reason)


class Corrupts(Mutant):
    """Delivers other bytes than were sent."""

    breaks = Rule.CORRUPT

    class units_class(FaultyUnits):
        async def deliveries(
            self, queue: MemoryQueue, entries: list[MemoryMessage], *, with_state: bool, streams: bool
        ) -> list[Delivery]:
            deliveries = await super().deliveries(queue, entries, with_state=with_state, streams=streams)
            return [
                replace(each, payload=each.payload[:-1] + b"\0") if self._is_turn(5) else each for each in deliveries
            ]


class SwapsPayloads(Mutant):
    """Delivers a message with the payload of another."""

    breaks = Rule.CORRUPT

    class units_class(FaultyUnits):
        async def deliveries(
            self, queue: MemoryQueue, entries: list[MemoryMessage], *, with_state: bool, streams: bool
        ) -> list[Delivery]:
            deliveries = await super().deliveries(queue, entries, with_state=with_state, streams=streams)
            if len(deliveries) > 1:
                first, second, *others = deliveries
                return [replace(first, payload=second.payload), replace(second, payload=first.payload), *others]
            return deliveries


class _Leaks(Mutant):
    breaks = Rule.LEAKED

    def _is_other(self, ref: QueueRef, other: QueueRef) -> bool:
        raise NotImplementedError

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        claims = await super().claim(ref, asks, now_ms)
        if not any(claims.per_ask) and self._is_turn(4) and self._met < 100:
            for tenant in await self._directory.list_tenants():
                for shelf in self._directory.queues_of(tenant.tenant):
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

    class units_class(FaultyUnits):
        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            if change.life is not None and change.life.state is State.READY:
                change = change._replace(life=replace(change.life, failures=0, expiries=0))
            super().apply_one(queue, entry, change)


class ForgetsAttempts(Mutant):
    """Number each delivery as the first."""

    breaks = Rule.ATTEMPT

    class units_class(FaultyUnits):
        async def deliveries(
            self, queue: MemoryQueue, entries: list[MemoryMessage], *, with_state: bool, streams: bool
        ) -> list[Delivery]:
            deliveries = await super().deliveries(queue, entries, with_state=with_state, streams=streams)
            return [replace(each, attempt=1) for each in deliveries]


class ForgetsGroups(Mutant):
    """Takes no heed of groups."""

    breaks = Rule.GROUP_ORDER

    class units_class(FaultyUnits):
        def add_one(self, queue: MemoryQueue, draft: Draft, id: int, reason: str | None) -> None:
            super().add_one(queue, replace(draft, group=None), id, reason)


class Miscounts(Mutant):
    """Counts one dead letter too many."""

    breaks = Rule.MISCOUNTED

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        counts = await super().counts(tenant, queue, now_ms)
        return replace(counts, failed=counts.failed + 1)


class Strands(Mutant):
    """Loses sight of a lease: its message is in flight for ever."""

    breaks = Rule.STUCK

    class units_class(FaultyUnits):
        async def ended(self, queue: MemoryQueue, limit: int) -> tuple[list[MemoryMessage], list[MemoryMessage]]:
            if queue.leases and queue.leases[0][0] <= self.now_ms and self._is_turn(3):
                entry = queue.entries[queue.leases[0][1]]
                assert entry.life.lease is not None
                lease = replace(entry.life.lease, token=_NOBODYS, expires_at=self.now_ms + 10_000 * _DAY_MS)
                queue.change(entry, replace(entry.life, lease=lease))
            return await super().ended(queue, limit)


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

    class units_class(FaultyUnits):
        def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
            if change.event is Event.SUCCEEDED and self._is_turn(5):
                change = change._replace(event=None)
            super().apply_one(queue, entry, change)


class Refuses(Mutant):
    """Raises where nothing stands in the way."""

    breaks = Rule.REFUSED

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
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
