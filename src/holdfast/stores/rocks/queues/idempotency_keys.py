"""Idempotency keys: within its window, a repeated key returns the first message."""

import struct
from collections.abc import Callable

from holdfast.model.answers import Enqueued
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.window import Window

# How to change this format: the value of a key is the message's id 8, the end of the window 8, and the correlation id
# as text up to the end, so it cannot be extended. Store a new form in a space of its own (`keys.py`), and look a key up
# in both until the longest deduplication window has passed.
_SEEN = struct.Struct(">QQ")


class SeenKeys:
    """The idempotency keys of all queues of a shard."""

    def __init__(self, engine: Engine, scan_ends: Callable[[bytes, int], list[bytes]]) -> None:
        self._engine = engine
        # Ends of windows: until 8 | P 8 | key.
        self._ends = Window(scan_ends, is_empty=False)

    def known(self, queue: QueueState, wanted: list[str], now_ms: int) -> dict[str, Enqueued]:
        """Return the first message of each of these keys whose window has not ended."""
        self._engine.write()
        raws = self._engine.database.get_many(keys.INDEXES, [self._name(queue, key) for key in wanted])
        found = ((key, _decode_enqueued(raw, now_ms)) for key, raw in zip(wanted, raws, strict=True))
        return {key: enqueued for key, enqueued in found if enqueued is not None}

    def remember(self, queue: QueueState, key: str, entry: StoredMessage, until: int) -> None:
        """Store the message of a key until its window ends.

        An older entry of the same key may remain in the index of ends. `forget_old` skips it.
        """
        correlation_id = entry.envelope.given_correlation_id or ""
        value = _SEEN.pack(entry.envelope.id, until) + correlation_id.encode()
        self._engine.put(self._name(queue, key), value, keys.INDEXES)
        end = keys.instant(until) + queue.p + key.encode()
        self._engine.put(keys.SEEN_ENDS + end, b"", keys.INDEXES)
        self._ends.push(end)

    def forget_old(self, limit: int, now_ms: int) -> int:
        """Delete up to `limit` keys whose window has ended. Return the number of index entries deleted."""
        forgotten = 0
        while forgotten < limit and (end := self._ends.peek()) is not None and keys.parse_instant(end) <= now_ms:
            self._ends.pop()
            self._engine.write()  # the key may have been used again, with a later end
            name = keys.SEEN + end[8:]
            raw = self._engine.database.get(keys.INDEXES, name)
            if raw is not None and _SEEN.unpack_from(raw)[1] == keys.parse_instant(end):
                self._engine.delete(name, keys.INDEXES)
            self._engine.delete(keys.SEEN_ENDS + end, keys.INDEXES)
            forgotten += 1
        return forgotten

    def next_at(self) -> int | None:
        """Return when the next window ends; None if there is none."""
        end = self._ends.peek()
        return None if end is None else keys.parse_instant(end)

    def _name(self, queue: QueueState, key: str) -> bytes:
        return keys.SEEN + queue.p + key.encode()


def _decode_enqueued(raw: bytes | None, now_ms: int) -> Enqueued | None:
    if raw is None:
        return None
    id, until = _SEEN.unpack_from(raw)
    if until <= now_ms:
        return None
    correlation_id = raw[_SEEN.size :].decode() or None
    return Enqueued(snowflake=id, given_correlation_id=correlation_id, duplicate=True)
