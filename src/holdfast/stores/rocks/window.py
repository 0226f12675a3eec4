"""The head of an ordered space in memory, the rest on disk.

A window holds, sorted, every key of its space below a watermark; what lies at or above it is only on disk. When it
runs empty it reads on from the watermark, in small steps. So the start of the space is never searched for again:
deleted keys pile up there, and walking over them made that 75 times slower.
"""

import heapq
from collections.abc import Callable

# Keys read at once when a window has run empty: some milliseconds of work.
REFILL = 2_000
# Keys kept in memory; beyond it new ones at the far end stay on disk alone.
CAPACITY = 10_000


class Window:
    """`scan(from_key, limit)` reads the space's keys in order, beginning at a key, without the space's prefix."""

    __slots__ = ("_heap", "_highest", "_live", "_scan", "_watermark")

    def __init__(self, scan: Callable[[bytes, int], list[bytes]], *, is_empty: bool) -> None:
        self._scan = scan
        # The keys that count. The heap may hold others besides: they are passed over when they come up.
        self._live: set[bytes] = set()
        self._heap: list[bytes] = []
        self._highest = b""
        # None: nothing lies on disk that is not here.
        self._watermark: bytes | None = None if is_empty else b""

    def __len__(self) -> int:
        return len(self._live)

    def push(self, key: bytes) -> None:
        """A key that is on disk now."""
        if self._watermark is not None:
            if key >= self._watermark:
                return
        elif len(self._live) >= CAPACITY and key > self._highest:
            self._watermark = key
            return
        if key in self._live:
            return
        self._live.add(key)
        if key > self._highest:
            # Above everything in the heap: at its end it leaves it one.
            self._highest = key
            self._heap.append(key)
        else:
            heapq.heappush(self._heap, key)
        if len(self._heap) > 2 * CAPACITY:
            self._shrink()

    def peek(self) -> bytes | None:
        heap, live = self._heap, self._live
        while True:
            if heap:
                if heap[0] in live:
                    return heap[0]
                heapq.heappop(heap)
            elif self._watermark is None:
                return None
            else:
                self._refill()

    def pop_below(self, bound: bytes, limit: int) -> list[bytes]:
        """Take up to `limit` keys below a bound, in order."""
        popped: list[bytes] = []
        heap, live = self._heap, self._live
        while len(popped) < limit and (key := self.peek()) is not None and key < bound:
            heapq.heappop(heap)
            live.discard(key)
            popped.append(key)
            heap, live = self._heap, self._live  # a refill may have made them anew
        return popped

    def pop(self) -> bytes:
        """The key that `peek` just showed."""
        key = heapq.heappop(self._heap)
        self._live.discard(key)
        return key

    def discard(self, key: bytes) -> None:
        """A key that is no longer on disk."""
        self._live.discard(key)
        if len(self._heap) > 2 * len(self._live) + REFILL:
            self._drop_stale()

    def ensure(self, number: int) -> None:
        """Have more than `number` keys in memory, if there are as many: so many can go without a read."""
        while self._watermark is not None and len(self._live) <= number:
            self._refill()

    def first(self, number: int) -> list[bytes]:
        """The first keys, in order."""
        self.ensure(number)
        return heapq.nsmallest(number, self._live)

    def _refill(self) -> None:
        assert self._watermark is not None
        keys = self._scan(self._watermark, REFILL)
        # In order, and all above what is there: behind a heap they leave it one.
        self._heap += keys
        self._live.update(keys)
        if keys:
            self._highest = keys[-1]
        self._watermark = keys[-1] + b"\0" if len(keys) == REFILL else None

    def _drop_stale(self) -> None:
        self._heap = sorted(self._live)

    def _shrink(self) -> None:
        """Give the far end back to the disk."""
        self._drop_stale()
        if len(self._heap) > CAPACITY:
            self._watermark = self._heap[CAPACITY]
            self._live.difference_update(self._heap[CAPACITY:])
            del self._heap[CAPACITY:]
        self._highest = self._heap[-1] if self._heap else b""
