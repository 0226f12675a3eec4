"""Idempotency keys: seen within their window, they answer the first message."""

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
    def __init__(self, engine: Engine, scan_ends: Callable[[bytes, int], list[bytes]]) -> None:
        self._engine = engine
        # until 8 | P 8 | key.
        self._ends = Window(scan_ends, is_empty=False)

    def known(self, shelf: QueueState, wanted: list[str], now_ms: int) -> dict[str, Enqueued]:
        """Return the first message of each of these keys whose window has not ended."""
        self._engine.write()
        raws = self._engine.database.get_many(keys.INDEXES, [self._name(shelf, key) for key in wanted])
        found = ((key, _answer(raw, now_ms)) for key, raw in zip(wanted, raws, strict=True))
        return {key: enqueued for key, enqueued in found if enqueued is not None}

    def remember(self, shelf: QueueState, key: str, entry: StoredMessage, until: int) -> None:
        """An older entry of the key may stand in the index of ends still: it is passed over when it comes up."""
        correlation_id = entry.envelope.given_correlation_id or ""
        value = _SEEN.pack(entry.envelope.id, until) + correlation_id.encode()
        self._engine.put(self._name(shelf, key), value, keys.INDEXES)
        end = keys.instant(until) + shelf.p + key.encode()
        self._engine.put(keys.SEEN_ENDS + end, b"", keys.INDEXES)
        self._ends.push(end)

    def forget_old(self, limit: int, now_ms: int) -> int:
        forgotten = 0
        while forgotten < limit and (end := self._ends.peek()) is not None and keys.parse_instant(end) <= now_ms:
            self._ends.pop()
            self._engine.write()  # the key may have been used anew, with a later end
            name = keys.SEEN + end[8:]
            raw = self._engine.database.get(keys.INDEXES, name)
            if raw is not None and _SEEN.unpack_from(raw)[1] == keys.parse_instant(end):
                self._engine.delete(name, keys.INDEXES)
            self._engine.delete(keys.SEEN_ENDS + end, keys.INDEXES)
            forgotten += 1
        return forgotten

    def next_at(self) -> int | None:
        end = self._ends.peek()
        return None if end is None else keys.parse_instant(end)

    def _name(self, shelf: QueueState, key: str) -> bytes:
        return keys.SEEN + shelf.p + key.encode()


def _answer(raw: bytes | None, now_ms: int) -> Enqueued | None:
    if raw is None:
        return None
    id, until = _SEEN.unpack_from(raw)
    if until <= now_ms:
        return None
    correlation_id = raw[_SEEN.size :].decode() or None
    return Enqueued(snowflake=id, given_correlation_id=correlation_id, duplicate=True)
