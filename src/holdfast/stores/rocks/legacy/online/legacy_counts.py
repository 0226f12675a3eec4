"""The exact counts of the messages that are still in the old layout."""

import heapq
from collections.abc import Callable

from rocksdict import RdictIter

from holdfast.model.answers import Counts
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import headers_bytes
from holdfast.stores.rocks.legacy.field_order import FieldOrder
from holdfast.stores.rocks.legacy.keys import AVAILABLE, VISIBILITY, instant_in
from holdfast.stores.rocks.legacy.message_import import LEGACY_ID, own_id
from holdfast.stores.rocks.legacy.values import Unreadable, decode_item


class LegacyCounts:
    """Counts of ready messages: those that are due, and the delayed ones by their visible time.

    The times have whole seconds, so memory grows with the number of different seconds and not with that of messages.
    """

    def __init__(self, counted_at: int) -> None:
        """`counted_at` is the instant that divides due messages from delayed ones at first."""
        self._counted_at = counted_at
        self._due = 0
        self._delayed: dict[int, int] = {}
        self._next: list[int] | None = None
        self.messages = 0
        self.bytes = 0
        # The number of messages whose id remains the same.
        self.with_own_id = 0

    def add(self, id: bytes, visible_at: int, payload_bytes: int, *, count: int = 1) -> None:
        """Count a message, or with -1 count it out."""
        is_own = own_id(id) is not None
        self.messages += count
        self.bytes += count * size_of(id, payload_bytes, is_own=is_own)
        self.with_own_id += count * is_own
        if visible_at <= self._counted_at:
            self._due += count
        else:
            self._delayed[visible_at] = self._delayed.get(visible_at, 0) + count
            self._next = None

    def plus(self, other: "LegacyCounts") -> None:
        """Add counts that began at the same instant."""
        self._due += other._due
        self.messages += other.messages
        self.bytes += other.bytes
        self.with_own_id += other.with_own_id
        for at, count in other._delayed.items():
            self._delayed[at] = self._delayed.get(at, 0) + count
        self._next = None

    def at(self, now_ms: int, oldest_ready_at: int | None) -> Counts:
        """Return the counts as of now."""
        if self._next is None:
            self._next = list(self._delayed)
            heapq.heapify(self._next)
        while self._next and self._next[0] <= now_ms:
            self._due += self._delayed.pop(heapq.heappop(self._next), 0)
        self._counted_at = max(self._counted_at, now_ms)
        return Counts(
            ready=self._due,
            delayed=self.messages - self._due,
            bytes=self.bytes,
            oldest_ready_at=oldest_ready_at,
            legacy_left=self.messages,
        )


def size_of(id: bytes, payload_bytes: int, *, is_own: bool) -> int:
    """Return the size of a message as quotas count it once it is moved: an id of another form becomes a header."""
    return payload_bytes if is_own else payload_bytes + headers_bytes({LEGACY_ID: id.hex()})


def count_messages(
    cursors: list[RdictIter],
    order: FieldOrder,
    excluded: frozenset[bytes],
    counts: LegacyCounts,
    is_cancelled: Callable[[], bool],
) -> None:
    """Add all messages under `available/` to `counts`, except those that are moved. May run on another thread."""
    size = len(AVAILABLE)
    for cursor in cursors:
        while cursor.valid() and (key := cursor.key()).startswith(AVAILABLE) and not is_cancelled():
            id = key[size:]
            if id not in excluded:
                try:
                    item = decode_item(cursor.value(), id, order)
                except Unreadable:
                    pass  # reported once all messages are moved
                else:
                    counts.add(id, instant_in(VISIBILITY, item.index_key) or 0, len(item.contents))
            cursor.next()
        try:
            cursor.status()
        except Exception as error:
            raise StoreUnavailable(f"the old database cannot be read: {error}; restore it first") from None
