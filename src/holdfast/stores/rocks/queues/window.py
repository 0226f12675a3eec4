"""The head of an ordered space in memory, the rest on disk.

A window holds, sorted, every key of its space below a watermark; what lies at or above it is only on disk. When it
runs empty it reads on from the watermark, in small steps. So the start of the space is never searched for again:
deleted keys pile up there, and walking over them made that 75 times slower.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable

# Keys read at once when a window has run empty: some milliseconds of work.
REFILL = 2_000
# Keys kept in memory; beyond it new ones at the far end stay on disk alone.
CAPACITY = 10_000


class Window:
    """`scan(from_key, limit)` reads the space's keys in order, beginning at a key, without the space's prefix.

    Keys mostly come in order, and whole batches of them come and go. So they are kept in a sorted list that is consumed
    from the front; the few that come out of order are kept in a heap beside it.
    """

    __slots__ = ("_highest", "_late", "_live", "_scan", "_sorted", "_start", "_watermark")

    def __init__(self, scan: Callable[[bytes, int], list[bytes]], *, is_empty: bool) -> None:
        self._scan = scan
        # The keys that count. The list and the heap may hold others besides: they are passed over when they come up.
        self._live: set[bytes] = set()
        self._sorted: list[bytes] = []
        # The place in the list of the first key that was not taken yet.
        self._start = 0
        self._late: list[bytes] = []
        self._highest = b""
        # None: nothing lies on disk that is not here.
        self._watermark: bytes | None = None if is_empty else b""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def held(self) -> int:
        """Return how many keys are in memory, with those that no longer count."""
        return len(self._sorted) - self._start + len(self._late)

    # --- Adding ------------------------------------------------------------------------------------------------

    def push(self, key: bytes) -> None:
        """Add a key that is on disk now."""
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
            self._highest = key
            self._sorted.append(key)
        else:
            heapq.heappush(self._late, key)
        # `held`, spelled out, here and where a key is discarded: every message comes by.
        if len(self._sorted) - self._start + len(self._late) > 2 * CAPACITY:
            self._shrink()

    def push_all(self, keys: list[bytes]) -> None:
        """Add keys that are on disk now, in ascending order."""
        is_last = self._watermark is None and keys[0] > self._highest and len(self._live) + len(keys) <= CAPACITY
        if not is_last:
            for key in keys:
                self.push(key)
            return
        self._live.update(keys)
        self._sorted += keys
        self._highest = keys[-1]

    # --- Taking ------------------------------------------------------------------------------------------------

    def peek(self) -> bytes | None:
        """Return the first key, or None."""
        live = self._live
        while True:
            first = self._sorted[self._start] if self._start < len(self._sorted) else None
            if self._late and (first is None or self._late[0] < first):
                if self._late[0] in live:
                    return self._late[0]
                heapq.heappop(self._late)
            elif first is not None:
                if first in live:
                    return first
                self._skip(1)
            elif self._watermark is None:
                return None
            else:
                self._refill()

    def pop(self) -> bytes:
        """Take the key that `peek` just returned."""
        if self._late and (self._start == len(self._sorted) or self._late[0] < self._sorted[self._start]):
            key = heapq.heappop(self._late)
        else:
            key = self._sorted[self._start]
            self._skip(1)
        self._live.discard(key)
        return key

    def pop_below(self, bound: bytes, limit: int) -> list[bytes]:
        """Take up to `limit` keys below a bound, in order."""
        popped: list[bytes] = []
        while len(popped) < limit and (first := self.peek()) is not None and first < bound:
            if self._late or len(popped) == limit - 1:
                popped.append(self.pop())
                continue
            start = self._start
            end = bisect_left(self._sorted, bound, start, min(start + limit - len(popped), len(self._sorted)))
            keys = self._sorted[start:end]
            if not self._live.issuperset(keys):
                keys = [key for key in keys if key in self._live]
            self._live.difference_update(keys)
            self._skip(end - start)
            popped += keys
        return popped

    def discard(self, key: bytes) -> None:
        """Forget a key that is no longer on disk."""
        live = self._live
        live.discard(key)
        if len(self._sorted) - self._start + len(self._late) > 2 * len(live) + REFILL:
            self._drop_stale()

    def discard_all(self, keys: list[bytes]) -> None:
        """Forget keys that are no longer on disk."""
        self._live.difference_update(keys)
        if self.held > 2 * len(self._live) + REFILL:
            self._drop_stale()

    def ensure(self, number: int) -> None:
        """Have more than `number` keys in memory, if there are as many: so many can go without a read."""
        while self._watermark is not None and len(self._live) <= number:
            self._refill()

    def first(self, number: int) -> list[bytes]:
        """Return the first keys, in order."""
        self.ensure(number)
        return heapq.nsmallest(number, self._live)

    # --- Memory ------------------------------------------------------------------------------------------------

    def _skip(self, number: int) -> None:
        self._start += number
        if self._start > REFILL and 2 * self._start > len(self._sorted):
            del self._sorted[: self._start]
            self._start = 0

    def _refill(self) -> None:
        assert self._watermark is not None
        keys = self._scan(self._watermark, REFILL)
        # In order, and all above what is there.
        self._sorted += keys
        self._live.update(keys)
        if keys:
            self._highest = keys[-1]
        self._watermark = keys[-1] + b"\0" if len(keys) == REFILL else None

    def _drop_stale(self) -> None:
        self._sorted, self._start, self._late = sorted(self._live), 0, []

    def _shrink(self) -> None:
        """Give the far end back to the disk."""
        self._drop_stale()
        if len(self._sorted) > CAPACITY:
            self._watermark = self._sorted[CAPACITY]
            self._live.difference_update(self._sorted[CAPACITY:])
            del self._sorted[CAPACITY:]
        self._highest = self._sorted[-1] if self._sorted else b""
