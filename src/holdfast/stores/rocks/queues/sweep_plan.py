"""The queues of a shard that a sweep must visit, and when."""

import heapq
from collections.abc import Iterator

from holdfast.model.names import QueueRef
from holdfast.stores.contract import Listener
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState


class SweepPlan:
    """The earliest known deadline of each queue: the end of a lease, or the end of a deletion's wait for leases.

    A deadline that has moved later is noticed only when it comes up. That costs one lookup; recording every move would
    cost one for each ack.
    """

    def __init__(self, engine: Engine, catalog: QueueCatalog, listener: Listener) -> None:
        self._engine = engine
        self._catalog = catalog
        self._listener = listener
        self._heap: list[tuple[int, QueueRef]] = []
        self._noted: dict[QueueRef, int] = {}

    def note_all(self, now_ms: int) -> None:
        """Record every queue with leases or an unfinished deletion, when the store opens. This loads no queue."""
        for p, expires_at in self._first_expiries():
            self._note_unloaded(p, expires_at)
        for p in self._catalog.indexes.prefixes(keys.DELETING):
            self._note_unloaded(p, now_ms)
        # The first sweep finds the deadlines of TTLs, idempotency keys and the journal.
        self._listener.deadline(now_ms)

    def note(self, queue: QueueState, now_ms: int) -> None:
        """Record the next deadline of a queue."""
        first_at = queue.first_expiry_at() if queue.counters.in_flight else None
        if queue.row.drain_until is not None:
            self._note_at(queue.row.ref, now_ms if first_at is None else queue.row.drain_until)
        if first_at is not None:
            self._note_at(queue.row.ref, first_at)

    def note_after_commit(self, queue: QueueState, now_ms: int) -> None:
        """Record the next deadline of a queue as part of the open commit, even if the caller stops waiting for the
        commit."""
        self._engine.publish_after_commit(lambda: self.note(queue, now_ms))

    def pop_due(self, now_ms: int) -> QueueState | None:
        """Return a queue with a deadline that has passed, and forget the deadline; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, ref = heapq.heappop(heap)
            if self._noted.get(ref) != at_ms:
                continue
            del self._noted[ref]
            if (queue := self._catalog.find(ref)) is not None:
                return queue
        return None

    def next_at(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def _first_expiries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the prefix of each queue with leases, and the end of its first lease. Finding them takes one seek for
        each queue."""
        database, lower, upper = self._engine.database, b"", b"\xff" * (keys.P_SIZE + 1)
        while (key := next(database.scan(keys.EXPIRIES, lower, upper), None)) is not None:
            p = key[: keys.P_SIZE]
            yield p, keys.parse_instant(key[keys.P_SIZE :])
            lower = keys.after(p)

    def _note_unloaded(self, p: bytes, at_ms: int) -> None:
        # Only damage leaves entries of a queue without a name. `verify` reports them; nothing else should fail because
        # of them.
        if (ref := self._catalog.find_name(p)) is not None:
            self._note_at(ref, at_ms)

    def _note_at(self, ref: QueueRef, at_ms: int) -> None:
        noted = self._noted.get(ref)
        if noted is None or at_ms < noted:
            self._noted[ref] = at_ms
            heapq.heappush(self._heap, (at_ms, ref))
            self._listener.deadline(at_ms)
