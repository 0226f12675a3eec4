"""Which queues a sweep must visit, and when; apart for each shard."""

import heapq

from holdfast.model.names import QueueRef
from holdfast.stores.contract import Listener
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.shelf import Shelf


class Upkeep:
    """Per queue the earliest deadline noted: the end of a lease, or of a deletion's patience.

    A deadline that has moved away since is found out when it comes up; that costs one look, and noting every move would
    cost one for each ack.
    """

    def __init__(self, engine: Engine, catalog: Catalog, listener: Listener, *, shards: int) -> None:
        self._engine = engine
        self._catalog = catalog
        self._listener = listener
        self._heaps: list[list[tuple[int, QueueRef]]] = [[] for _ in range(shards)]
        self._noted: dict[QueueRef, int] = {}

    def note_all(self, now_ms: int) -> None:
        """At the start: look at every queue that may have something to end."""
        for shelf in self._catalog.shelves():
            if shelf.counters.in_flight or shelf.row.drain_until is not None:
                self._note_at(shelf, now_ms)
        # TTLs, keys and the journal's age are not known before the first sweep has looked.
        self._listener.deadline(now_ms)

    def note(self, shelf: Shelf, now_ms: int) -> None:
        first = shelf.first_expiry() if shelf.counters.in_flight else None
        if shelf.row.drain_until is not None:
            self._note_at(shelf, shelf.row.drain_until if first else now_ms)
        if first is not None:
            self._note_at(shelf, first[0])

    def note_after_commit(self, shelf: Shelf, now_ms: int) -> None:
        """As part of the open commit: whoever waits for it may have left when it holds."""
        self._engine.publish_after_commit(lambda: self.note(shelf, now_ms))

    def pop_due(self, shard: int, now_ms: int) -> Shelf | None:
        heap = self._heaps[shard]
        while heap and heap[0][0] <= now_ms:
            at_ms, ref = heapq.heappop(heap)
            if self._noted.get(ref) != at_ms:
                continue
            del self._noted[ref]
            if (shelf := self._catalog.find(ref)) is not None:
                return shelf
        return None

    def next_at(self) -> int | None:
        return min((heap[0][0] for heap in self._heaps if heap), default=None)

    def _note_at(self, shelf: Shelf, at_ms: int) -> None:
        ref = shelf.row.ref
        noted = self._noted.get(ref)
        if noted is None or at_ms < noted:
            self._noted[ref] = at_ms
            heapq.heappush(self._heaps[keys.shard_of(shelf.p, len(self._heaps))], (at_ms, ref))
            self._listener.deadline(at_ms)
