"""The first keys of an ordered key space in memory; the rest stay on disk.

A window holds, sorted, every key of its space below a watermark. Keys at or above the watermark are only on disk. When
the window runs empty, it reads the next keys from the watermark on. So it never scans the start of the space again,
where deleted keys pile up: walking over them made reading 75 times slower.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable

# Keys read at once when a window has run empty. Reading them takes some milliseconds.
REFILL = 2_000
# Keys kept in memory. Beyond that, new keys at the far end stay on disk only.
CAPACITY = 10_000


class Window:
    """The first keys of an ordered key space.

    Keys mostly arrive in order, and whole batches of them come and go. So they are kept in a sorted list that is
    consumed from the front. The few keys that arrive out of order are kept in a heap beside it.
    """

    __slots__ = ("_highest", "_late", "_live", "_scan", "_sorted", "_start", "_watermark")

    def __init__(self, scan: Callable[[bytes, int], list[bytes]], *, is_empty: bool) -> None:
        """`scan(from_key, limit)` returns keys of the space in order, from a key on, without the space's prefix.
        `is_empty`: the space has no keys."""
        self._scan = scan
        # The keys that are present. The list and the heap may also hold removed keys, which are skipped at the front.
        self._live: set[bytes] = set()
        self._sorted: list[bytes] = []
        # The index in the list of the first key that was not taken yet.
        self._start = 0
        self._late: list[bytes] = []
        self._highest = b""
        # None if every key on disk is in memory.
        self._watermark: bytes | None = None if is_empty else b""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def held(self) -> int:
        """Return how many keys are in memory, including removed ones."""
        return len(self._sorted) - self._start + len(self._late)

    # --- Adding ------------------------------------------------------------------------------------------------

    def push(self, key: bytes) -> None:
        """Add a key that is now on disk."""
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
        # `held`, inlined here and in `discard`, because every message passes through.
        if len(self._sorted) - self._start + len(self._late) > 2 * CAPACITY:
            self._shrink()

    def push_all(self, keys: list[bytes]) -> None:
        """Add keys that are now on disk, in ascending order."""
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
        """Take and return the key that `peek` just returned."""
        if self._late and (self._start == len(self._sorted) or self._late[0] < self._sorted[self._start]):
            key = heapq.heappop(self._late)
        else:
            key = self._sorted[self._start]
            self._skip(1)
        self._live.discard(key)
        return key

    def pop_below(self, bound: bytes, limit: int) -> list[bytes]:
        """Take and return up to `limit` keys below `bound`, in order."""
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
        """Remove a key that is no longer on disk."""
        live = self._live
        live.discard(key)
        if len(self._sorted) - self._start + len(self._late) > 2 * len(live) + REFILL:
            self._drop_stale()

    def discard_all(self, keys: list[bytes]) -> None:
        """Remove keys that are no longer on disk."""
        self._live.difference_update(keys)
        if self.held > 2 * len(self._live) + REFILL:
            self._drop_stale()

    def ensure(self, number: int) -> None:
        """Load keys until more than `number` are in memory or none are left on disk. That many removals then need no
        read."""
        while self._watermark is not None and len(self._live) <= number:
            self._refill()

    def first(self, number: int) -> list[bytes]:
        """Return up to `number` of the first keys, in order."""
        self.ensure(number)
        return heapq.nsmallest(number, self._live)

    # --- Memory ------------------------------------------------------------------------------------------------

    def _skip(self, number: int) -> None:
        """Skip this number of keys at the front of the list. Shorten the list once more than half of it is skipped."""
        self._start += number
        if self._start > REFILL and 2 * self._start > len(self._sorted):
            del self._sorted[: self._start]
            self._start = 0

    def _refill(self) -> None:
        """Read the next keys from the watermark on."""
        assert self._watermark is not None
        keys = self._scan(self._watermark, REFILL)
        # The keys are sorted, and all are above the ones in memory.
        self._sorted += keys
        self._live.update(keys)
        if keys:
            self._highest = keys[-1]
        self._watermark = keys[-1] + b"\0" if len(keys) == REFILL else None

    def _drop_stale(self) -> None:
        """Drop removed keys from the list and the heap."""
        self._sorted, self._start, self._late = sorted(self._live), 0, []

    def _shrink(self) -> None:
        """Drop removed keys, and leave keys beyond the capacity to the disk."""
        self._drop_stale()
        if len(self._sorted) > CAPACITY:
            self._watermark = self._sorted[CAPACITY]
            self._live.difference_update(self._sorted[CAPACITY:])
            del self._sorted[CAPACITY:]
        self._highest = self._sorted[-1] if self._sorted else b""
