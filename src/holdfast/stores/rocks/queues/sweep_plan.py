"""Which queues of a shard a sweep must visit, and when."""

import heapq
from collections.abc import Iterator

from holdfast.model.names import QueueRef
from holdfast.stores.contract import Listener
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState


class SweepPlan:
    """Per queue the earliest deadline noted: the end of a lease, or of a deletion's patience.

    A deadline that has moved away since is found out when it comes up; that costs one look, and noting every move would
    cost one for each ack.
    """

    def __init__(self, engine: Engine, catalog: QueueCatalog, listener: Listener) -> None:
        self._engine = engine
        self._catalog = catalog
        self._listener = listener
        self._heap: list[tuple[int, QueueRef]] = []
        self._noted: dict[QueueRef, int] = {}

    def note_all(self, now_ms: int) -> None:
        """At the start: note every queue with leases or being deleted. None of them is loaded for it."""
        for p, expires_at in self._first_expiries():
            self._note_unloaded(p, expires_at)
        for p in self._catalog.indexes.prefixes(keys.DELETING):
            self._note_unloaded(p, now_ms)
        # TTLs, keys and the journal's age are not known before the first sweep has looked.
        self._listener.deadline(now_ms)

    def note(self, shelf: QueueState, now_ms: int) -> None:
        first = shelf.first_expiry() if shelf.counters.in_flight else None
        if shelf.row.drain_until is not None:
            self._note_at(shelf.row.ref, shelf.row.drain_until if first else now_ms)
        if first is not None:
            self._note_at(shelf.row.ref, first[0])

    def note_after_commit(self, shelf: QueueState, now_ms: int) -> None:
        """As part of the open commit: whoever waits for it may have left when it holds."""
        self._engine.publish_after_commit(lambda: self.note(shelf, now_ms))

    def pop_due(self, now_ms: int) -> QueueState | None:
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, ref = heapq.heappop(heap)
            if self._noted.get(ref) != at_ms:
                continue
            del self._noted[ref]
            if (shelf := self._catalog.find(ref)) is not None:
                return shelf
        return None

    def next_at(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def _first_expiries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the prefix of each queue with leases, and the end of its first one: one seek each, from the end of the
        queue before."""
        database, lower, upper = self._engine.database, b"", b"\xff" * (keys.P_SIZE + 1)
        while (key := next(database.scan(keys.EXPIRIES, lower, upper), None)) is not None:
            p = key[: keys.P_SIZE]
            yield p, keys.parse_instant(key[keys.P_SIZE :])
            lower = keys.after(p)

    def _note_unloaded(self, p: bytes, at_ms: int) -> None:
        # A queue without a name has entries by damage alone: `verify` reports them, and nothing else is to fail.
        if (ref := self._catalog.find_name(p)) is not None:
            self._note_at(ref, at_ms)

    def _note_at(self, ref: QueueRef, at_ms: int) -> None:
        noted = self._noted.get(ref)
        if noted is None or at_ms < noted:
            self._noted[ref] = at_ms
            heapq.heappush(self._heap, (at_ms, ref))
            self._listener.deadline(at_ms)
