"""One queue's messages in memory, with the indexes that find them."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import itemgetter

from sortedcontainers import SortedDict, SortedList

from holdfast.model.answers import Counts
from holdfast.model.message import Envelope, State
from holdfast.model.requests import NO_STATE, StateDocument
from holdfast.model.rules.ledgers import NONE_CLOSED
from holdfast.model.rules.lifecycle import Life, is_over
from holdfast.stores.indexes.queue_orders import LAST_ID, Group, OrderKey, QueueOrders, earliest
from holdfast.stores.unit import OpenClaim
from holdfast.stores.values import QueueRow

# Read once, because Python 3.11 looks up enum members slowly and every change of a message compares this one.
_READY = State.READY


@dataclass(slots=True)
class MemoryMessage:
    """A stored message."""

    envelope: Envelope
    life: Life
    bytes: int
    state: StateDocument = NO_STATE


@dataclass(slots=True)
class SeenKey:
    """The first message with an idempotency key, and when the key's window ends."""

    id: int
    given_correlation_id: str | None
    ends_at: int


@dataclass(slots=True)
class Ledger:
    """A consumer's numbered claims."""

    closed_upto: int = NONE_CLOSED
    open: "SortedDict[int, OpenClaim]" = field(default_factory=SortedDict)


class MemoryQueue(QueueOrders):
    """A queue's messages by id, with all indexes. Messages must be altered by `put`, `change` and `drop` only, which
    keep the indexes up to date."""

    def __init__(self, row: QueueRow) -> None:
        super().__init__()
        self.row = row
        self.bytes = 0
        self.entries: dict[int, MemoryMessage] = {}
        self.by_state: dict[State, SortedList[int]] = {state: SortedList() for state in State}
        # Every Ready message by (visible_at, id), which separates due from delayed messages.
        self.visible: SortedList[tuple[int, int]] = SortedList()
        self.keys: dict[str, SeenKey] = {}
        self.key_ends: SortedList[tuple[int, str]] = SortedList()
        self.ledgers: dict[str, Ledger] = {}

    def put(self, entry: MemoryMessage) -> None:
        """Add a message."""
        self.entries[entry.envelope.id] = entry
        self.bytes += entry.bytes
        self._index(entry)

    def change(self, entry: MemoryMessage, life: Life) -> None:
        """Give a message another life."""
        self._unindex(entry)
        entry.life = life
        self._index(entry)

    def drop(self, entry: MemoryMessage) -> None:
        """Remove a message."""
        self._unindex(entry)
        self.bytes -= entry.bytes
        del self.entries[entry.envelope.id]

    # --- Due messages ------------------------------------------------------------------------------------

    def due_batches(self, now_ms: int) -> Iterator[Sequence[MemoryMessage]]:
        """Yield due messages in the order of delivery: a single message, or those of a group that are delivered
        together. The queue must not change meanwhile."""
        entries, levels = self.entries, self.levels
        for priority in levels:
            for visible_at, id in levels[priority]:
                if visible_at > now_ms:
                    break
                entry = entries[id]
                group = entry.envelope.group
                if group is not None:
                    yield self._group_batch(self.groups[group], now_ms)
                elif not is_over(entry.life, now_ms):
                    yield (entry,)

    def _group_batch(self, group: Group, now_ms: int) -> list[MemoryMessage]:
        """Return the group's oldest due messages, in order of id, up to the first that is not due."""
        due = takewhile(lambda entry: entry.life.visible_at <= now_ms, (self.entries[id] for id in group.ready))
        return [entry for entry in due if not is_over(entry.life, now_ms)]

    def peek_due(self, now_ms: int) -> Iterator[MemoryMessage]:
        """Yield the messages that claims would take next. A claim ends overdue TTLs first, so such messages are left
        out, and a group is sorted by its first remaining message."""
        for _, batch in heapq.merge(self._peek_singles(now_ms), self._peek_groups(now_ms), key=itemgetter(0)):
            yield from batch

    def _peek_singles(self, now_ms: int) -> Iterator[tuple[OrderKey, list[MemoryMessage]]]:
        for level in self.levels.values():
            for _, id in level.irange(maximum=(now_ms, LAST_ID)):
                entry = self.entries[id]
                if entry.envelope.group is None and not is_over(entry.life, now_ms):
                    yield _order_key(entry), [entry]

    def _peek_groups(self, now_ms: int) -> list[tuple[OrderKey, list[MemoryMessage]]]:
        batches = []
        for group in self.groups.values():
            living = [self.entries[id] for id in group.ready if not is_over(self.entries[id].life, now_ms)]
            batch = list(takewhile(lambda entry: entry.life.visible_at <= now_ms, living))
            if batch and not group.in_flight:
                batches.append((_order_key(batch[0]), batch))
        return sorted(batches, key=itemgetter(0))

    def next_at(self) -> int | None:
        """Return when a claim may next find something; None for a paused queue."""
        return None if self.row.is_paused else super().next_at()

    # --- Ends of time --------------------------------------------------------------------------------

    def ended(self, ends: "SortedList[tuple[int, int]]", limit: int, now_ms: int) -> list[MemoryMessage]:
        """Return up to `limit` messages of an index of end times whose time has come."""
        if not ends or ends[0][0] > now_ms:
            return []
        return [self.entries[id] for _, id in islice(ends.irange(maximum=(now_ms, LAST_ID)), limit)]

    def next_deadline(self, now_ms: int) -> int | None:
        """Return when a sweep has something to do here; None if never as things are."""
        ends_at = earliest((self.leases, self.ttls, self.kept, self.key_ends))
        drain_until = self.row.drain_until
        if drain_until is None:
            return ends_at
        drains_at = drain_until if self.leases else now_ms
        return drains_at if ends_at is None else min(ends_at, drains_at)

    def counts(self, now_ms: int) -> Counts:
        """Return the counts of the queue."""
        due = self.visible.bisect_right((now_ms, LAST_ID))
        return Counts(
            ready=due,
            delayed=len(self.visible) - due,
            in_flight=len(self.by_state[State.IN_FLIGHT]),
            failed=len(self.by_state[State.FAILED]),
            bytes=self.bytes,
            oldest_ready_at=self.visible[0][0] if due else None,
        )

    # --- Indexes -----------------------------------------------------------------------------------------------

    def _index(self, entry: MemoryMessage) -> None:
        life, id = entry.life, entry.envelope.id
        self.by_state[life.state].add(id)
        if life.state is _READY:
            self.visible.add((life.visible_at, id))
        self.add_to_orders(id, life, entry.envelope.group, _lease_end(life))

    def _unindex(self, entry: MemoryMessage) -> None:
        life, id = entry.life, entry.envelope.id
        self.by_state[life.state].remove(id)
        if life.state is _READY:
            self.visible.remove((life.visible_at, id))
        self.remove_from_orders(id, life, entry.envelope.group, _lease_end(life))


def _lease_end(life: Life) -> int:
    return 0 if life.lease is None else life.lease.expires_at


def _order_key(entry: MemoryMessage) -> OrderKey:
    return entry.life.priority, entry.life.visible_at, entry.envelope.id
