"""Atomic steps on the memory store. Nothing here suspends, so a step is atomic by itself."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Self, TypeVar

from sortedcontainers import SortedList

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.ids import IdMaker
from holdfast.model.message import Draft, Envelope, State, make_envelope
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Change
from holdfast.model.rules.transitions import TRANSITIONS, Cause
from holdfast.stores.contract import Listener
from holdfast.stores.logic.results import delivery_of
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.inspection import find_matching, take_first
from holdfast.stores.memory.journal import MemoryJournal
from holdfast.stores.memory.queue import Ledger, MemoryMessage, MemoryQueue, SeenKey
from holdfast.stores.unit import OpenClaim, Sized

T = TypeVar("T")

_ENQUEUED = TRANSITIONS[None, Cause.ENQUEUE].event


class MemoryUnits:
    """The unit of work of every step: steps never overlap, so one object serves them all."""

    def __init__(self, directory: MemoryDirectory, journal: MemoryJournal, ids: IdMaker) -> None:
        self._directory = directory
        self._journal = journal
        self._ids = ids
        self.now_ms = 0
        self.is_durable = self.notifies_ready = True
        # Queues that the step has changed, in order.
        self._changed: dict[QueueRef, MemoryQueue] = {}
        # (when, queue): the next deadline of each queue, so that a sweep visits only those with work.
        self._deadlines: SortedList[tuple[int, QueueRef]] = SortedList()
        self._deadline_of: dict[QueueRef, int] = {}

    def open(self, listener: Listener) -> None:
        self.listener = listener

    async def run(
        self, ref: QueueRef, work: Callable[[Self], Awaitable[T]], now_ms: int, *, target: QueueRef | None = None
    ) -> T:
        self.now_ms = now_ms
        self.is_durable = self.notifies_ready = True
        self._changed.clear()
        result = await work(self)
        notify = self.notify_listener if self.notifies_ready else self.report_deadline
        for queue in self._changed.values():
            notify(queue, now_ms)
        return result

    # --- Queues ------------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> MemoryQueue | None:
        return self._directory.find(ref)

    async def create(self, ref: QueueRef) -> MemoryQueue:
        return self._directory.create(ref)

    async def remove_if_empty(self, queue: MemoryQueue) -> None:
        if not queue.entries:
            self._directory.remove(queue.row.ref)
            self._changed.pop(queue.row.ref, None)
            self.note_deadline(queue.row.ref, None)

    def default_ttl_ms(self, queue: MemoryQueue) -> int | None:
        return self._directory.default_ttl_ms(queue)

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        self._directory.check_quotas(ref.tenant, added, freed)

    # --- Finding messages --------------------------------------------------------------------------------------

    async def load(self, queue: MemoryQueue, ids: Iterable[int]) -> dict[int, MemoryMessage]:
        entries = queue.entries
        return {id: entries[id] for id in ids if id in entries}

    load_whole = load

    async def take_due(self, queue: MemoryQueue, limits: list[int]) -> list[list[MemoryMessage]]:
        batches = queue.due_batches(self.now_ms)
        taken: list[list[MemoryMessage]] = []
        for limit in limits:
            entries: list[MemoryMessage] = []
            while len(entries) < limit and (batch := next(batches, None)) is not None:
                entries += batch[: limit - len(entries)]
            taken.append(entries)
        return taken

    async def ended(self, queue: MemoryQueue, limit: int) -> tuple[list[MemoryMessage], list[MemoryMessage]]:
        expired = queue.ended(queue.leases, limit, self.now_ms)
        return expired, queue.ended(queue.ttls, limit - len(expired), self.now_ms)

    async def oldest(self, queue: MemoryQueue, limit: int) -> list[MemoryMessage]:
        return list(queue.entries.values())[:limit]

    async def matching(
        self, queue: MemoryQueue, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[MemoryMessage], int | None]:
        found = take_first(limit, find_matching(queue, states, which, after, self.now_ms))
        return found, found[-1].envelope.id if len(found) == limit else None

    async def next_at(self, queue: MemoryQueue) -> int | None:
        return queue.next_at()

    def version_floor(self, entry: MemoryMessage) -> int:
        return 0

    # --- Reading messages --------------------------------------------------------------------------------------

    async def deliveries(
        self, queue: MemoryQueue, entries: list[MemoryMessage], *, with_state: bool, streams: bool
    ) -> list[Delivery]:
        return [delivery_of(entry.envelope, entry.life, entry.state if with_state else None) for entry in entries]

    async def states(self, queue: MemoryQueue, entries: list[MemoryMessage]) -> list[StateDocument]:
        return [entry.state for entry in entries]

    # --- Changing messages -------------------------------------------------------------------------------------

    def apply(
        self, queue: MemoryQueue, changes: Sequence[tuple[MemoryMessage, Change]], *, by_time: bool = False
    ) -> None:
        self._changed[queue.row.ref] = queue
        for entry, change in changes:
            self.apply_one(queue, entry, change)

    def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
        """Take one message one step along its life."""
        if change.event is not None:
            self._journal.append(
                queue.row.ref, entry, change.event, self.now_ms, change.life, reason=change.reason, error=change.error
            )
        if change.life is None or change.life.is_gone:
            self._directory.drop(queue, entry)
        else:
            queue.change(entry, change.life)

    def drop(self, queue: MemoryQueue, entries: Sequence[MemoryMessage]) -> None:
        self._changed[queue.row.ref] = queue
        for entry in entries:
            self._directory.drop(queue, entry)

    async def move(
        self, queue: MemoryQueue, target: MemoryQueue, changes: Sequence[tuple[MemoryMessage, Change]]
    ) -> None:
        self._changed[queue.row.ref], self._changed[target.row.ref] = queue, target
        for entry, change in changes:
            self._directory.drop(queue, entry)
            self._directory.put(target, entry)
            self._journal.append(queue.row.ref, entry, change.event, self.now_ms, reason=f"to {target.row.ref}")
            self._journal.append(target.row.ref, entry, change.event, self.now_ms, reason=f"from {queue.row.ref}")

    async def edit(self, queue: MemoryQueue, entry: MemoryMessage, envelope: Envelope) -> None:
        self._directory.drop(queue, entry)
        entry.envelope, entry.bytes = envelope, envelope.bytes
        self._directory.put(queue, entry)

    async def put_state(self, queue: MemoryQueue, entry: MemoryMessage, state: StateDocument) -> None:
        entry.state = state

    # --- New messages ------------------------------------------------------------------------------------------

    async def known_keys(
        self, queue: MemoryQueue, drafts: list[Draft], firsts: Mapping[str, int]
    ) -> dict[str, Enqueued]:
        found = ((key, queue.keys.get(key)) for key in firsts)
        return {
            key: Enqueued(snowflake=seen.id, given_correlation_id=seen.given_correlation_id, duplicate=True)
            for key, seen in found
            if seen is not None and seen.ends_at > self.now_ms
        }

    async def add(self, queue: MemoryQueue, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        self._changed[queue.row.ref] = queue
        ids = self._ids.take(len(drafts), self.now_ms)
        for draft, id in zip(drafts, ids, strict=True):
            self.add_one(queue, draft, id, reason)
        return ids

    def add_one(self, queue: MemoryQueue, draft: Draft, id: int, reason: str | None) -> None:
        """Add one message."""
        now_ms = self.now_ms
        life = lifecycle.first_life(draft, self._directory.default_ttl_ms(queue), now_ms)
        entry = MemoryMessage(make_envelope(draft, id, now_ms), life, draft.bytes)
        self._directory.put(queue, entry)
        self._journal.append(queue.row.ref, entry, _ENQUEUED, now_ms, reason=reason)
        if draft.key is not None:
            self.remember_key(queue, draft.key, entry)

    def remember_key(self, queue: MemoryQueue, key: str, entry: MemoryMessage) -> None:
        """Remember an idempotency key for the queue's window."""
        if (old := queue.keys.get(key)) is not None:
            queue.key_ends.remove((old.ends_at, key))
        ends_at = self.now_ms + queue.row.policy.dedup_window_ms
        queue.keys[key] = SeenKey(entry.envelope.id, entry.envelope.given_correlation_id, ends_at)
        queue.key_ends.add((ends_at, key))

    def forget_keys(self, queue: MemoryQueue, limit: int) -> int:
        """Forget keys whose window has ended, at most `limit`. Return how many."""
        ended = list(islice(queue.key_ends.irange(maximum=(self.now_ms + 1, "")), limit))
        for end in ended:
            queue.key_ends.remove(end)
            del queue.keys[end[1]]
        return len(ended)

    # --- Ledgers -----------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: MemoryQueue, consumer: str) -> int:
        return queue.ledgers.get(consumer, Ledger()).closed_upto

    async def open_claims(
        self, queue: MemoryQueue, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        claims: Iterable[OpenClaim] = queue.ledgers.get(consumer, Ledger()).open.values()
        return [claim for claim in claims if number in (None, claim.number) and (upto is None or claim.number <= upto)]

    async def put_claim(self, queue: MemoryQueue, consumer: str, claim: OpenClaim) -> None:
        queue.ledgers.setdefault(consumer, Ledger()).open[claim.number] = claim

    async def close_claims(self, queue: MemoryQueue, consumer: str, numbers: list[int], closed_upto: int) -> None:
        ledger = queue.ledgers.setdefault(consumer, Ledger())
        for number in numbers:
            del ledger.open[number]
        ledger.closed_upto = closed_upto

    # --- Notices -----------------------------------------------------------------------------------------------

    def notify_ready(self, queue: MemoryQueue) -> None:
        self._changed[queue.row.ref] = queue

    def notify_listener(self, queue: MemoryQueue, now_ms: int) -> None:
        """Report when a claim may next find something, and when a sweep has something to do."""
        if (next_at := queue.next_at()) is not None:
            self.listener.ready(queue.row.ref, next_at)
        self.report_deadline(queue, now_ms)

    def report_deadline(self, queue: MemoryQueue, now_ms: int) -> None:
        """Report when a sweep has something to do on the queue."""
        deadline = queue.next_deadline(now_ms)
        self.note_deadline(queue.row.ref, deadline)
        if deadline is not None:
            self.listener.deadline(deadline)

    def note_deadline(self, ref: QueueRef, at_ms: int | None) -> None:
        """Set the next deadline of a queue."""
        old = self._deadline_of.get(ref)
        if old == at_ms:
            return
        if old is not None:
            self._deadlines.remove((old, ref))
        if at_ms is None:
            del self._deadline_of[ref]
        else:
            self._deadline_of[ref] = at_ms
            self._deadlines.add((at_ms, ref))

    def first_deadline(self) -> tuple[int, QueueRef] | None:
        """Return the earliest deadline of all queues, and its queue."""
        return self._deadlines[0] if self._deadlines else None
