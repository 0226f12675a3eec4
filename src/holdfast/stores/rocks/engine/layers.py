"""Changes that RocksDB does not have yet, by column family. The log has them, or will have them with the next commit.

A change goes into the active layer, and is recorded for the frame of the next commit. A checkpoint freezes the active
layer, writes it to RocksDB, and drops it. A read looks at the active layer, then the frozen one, then RocksDB.

Each layer keeps two dictionaries for each family:

    fresh      keys that no lower layer has. A fresh key that is deleted leaves no trace, so a message that is
               enqueued and acked between two checkpoints never reaches RocksDB.
    overrides  all other changed keys, which hide the values of lower layers; None for a deleted key.

A layer may also hide whole ranges of the lower layers.

Plain messages (`plain_messages.py`) that were added to a layer have no keys at first: the layer keeps the messages
themselves. Their keys are made when a read or a change needs them, or else when a checkpoint writes them.

The body of a frame is the size 4 of a MessagePack array, the array, and large values. The array has three elements for
each change: the family's number, the key, and the value. The value is nil for a deleted key. For a large value it is
the size, and the value itself follows the array; large values are in the order of the array. For a deleted range, the
three elements are -1 minus the family's number, the lower end, and the upper end, which is not deleted. Numbers from
512 on describe plain messages.

Frames of formats 2 and 3 also describe changes of many keys of a family at once: 256 plus the family's number, an array
of keys, and an array of their values, or one value for all, or nil. Changes are replayed in order. Replaying them again
over a later state ends in that later state.

Large values, such as pieces of a large payload, do not stay in memory. Once the log has them, a layer keeps only their
location in the log.

How to change this format: use numbers that no frame has yet, keep reading the present ones, and raise the format of the
store (`marker.py`).
"""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from sortedcontainers import SortedList

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.queues import plain_messages
from holdfast.stores.rocks.queues.stored_message import StoredMessage

_FAMILIES = len(keys.FAMILY_NAMES)
# Keys that a scan takes from a layer at once. The layer may change between two such steps, but not within one.
_CHUNK = 256
# Number of deleted keys that may stay in the order of a small layer. A large layer may keep as many as it has keys.
_MAX_STALE = 1_000


class NotInLayer(msgspec.Struct, frozen=True):
    """The result of a lookup of a key that a layer does not change."""


MISSING: Final = NotInLayer()


class LogLocation(NamedTuple):
    """The location of a large value in the log."""

    generation: int
    offset: int
    size: int


Value = bytes | LogLocation

# In bytes. A larger value stays in the log until it is read or written to RocksDB.
LARGE_VALUE = 64 << 10

# The size of the array at the start of a frame's body.
ARRAY_SIZE = struct.Struct("<I")
_decode = msgspec.msgpack.Decoder(list[int | bytes | list[bytes] | None]).decode
# Added to a family's number for a change of many keys.
_MANY = 256
# The first number that describes plain messages.
_PLAIN = plain_messages.ADDED
# Maximum number of messages without keys in a layer. A read that needs the keys of all of them takes 20 ms longer.
_MAX_KEYLESS = 10_000
# A message without keys takes as much memory as this number of keys.
_KEYS_OF_KEYLESS = 2

Part = int | bytes | list[bytes] | None


class FamilyLayer:
    """The part of a layer for one family."""

    __slots__ = ("_added", "_order", "fresh", "overrides", "ranges")

    def __init__(self) -> None:
        self.fresh: dict[bytes, Value] = {}
        self.overrides: dict[bytes, Value | None] = {}
        # Hidden ranges of the lower layers: (lower, upper).
        self.ranges: list[tuple[bytes, bytes]] = []
        # All keys in order, and some deleted ones. Made when the first scan needs it.
        self._order: SortedList[bytes] | None = None
        # Keys added since the last scan.
        self._added: list[bytes] = []

    def __len__(self) -> int:
        return len(self.fresh) + len(self.overrides)

    def get(self, key: bytes) -> Value | NotInLayer | None:
        """Return the key's value, None if it is deleted, or `MISSING`."""
        value = self.fresh.get(key)
        if value is not None:
            return value
        if key in self.overrides:
            return self.overrides[key]
        return None if self.ranges and self.hides(key) else MISSING

    def hides(self, key: bytes) -> bool:
        """Return whether a deleted range contains a key of the lower layers."""
        return any(lower <= key < upper for lower, upper in self.ranges)

    # --- Changes -----------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: Value) -> None:
        """Set a key, whether or not it exists."""
        if key in self.fresh:
            self.fresh[key] = value
            return
        if self._order is not None and key not in self.overrides:
            self._added.append(key)
        self.overrides[key] = value

    def insert(self, key: bytes, value: bytes) -> None:
        """Set a key that does not exist.

        If it is deleted before the next checkpoint, it never reaches RocksDB. If a lower layer had the key after all,
        its value would then reappear.
        """
        if key in self.overrides:
            self.overrides[key] = value
            return
        if self._order is not None:
            self._added.append(key)
        self.fresh[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key, whether or not it exists."""
        if self.fresh.pop(key, None) is None:
            if self._order is not None and key not in self.overrides:
                self._added.append(key)
            self.overrides[key] = None

    def put_all(self, keys: list[bytes], values: list[bytes] | bytes) -> None:
        """Set many keys, whether or not they exist."""
        pairs = dict.fromkeys(keys, values) if isinstance(values, bytes) else dict(zip(keys, values, strict=True))
        if self.fresh or self._order is not None:
            for key, value in pairs.items():
                self.put(key, value)
        else:
            self.overrides.update(pairs)

    def insert_all(self, keys: list[bytes], values: list[bytes] | bytes) -> None:
        """Set many keys that do not exist."""
        if self._order is not None:
            self._added += keys
        pairs = dict.fromkeys(keys, values) if isinstance(values, bytes) else dict(zip(keys, values, strict=True))
        if self.overrides and not self.overrides.keys().isdisjoint(keys):
            for key, value in pairs.items():
                if key in self.overrides:
                    self.overrides[key] = value
                else:
                    self.fresh[key] = value
        else:
            self.fresh.update(pairs)

    def delete_all(self, keys: list[bytes]) -> None:
        """Delete many keys, whether or not they exist."""
        fresh, overrides = self.fresh, self.overrides
        for key in keys:
            if fresh.pop(key, None) is None:
                if self._order is not None and key not in overrides:
                    self._added.append(key)
                overrides[key] = None

    def evict_to_log(self, key: bytes, value: bytes, location: LogLocation) -> None:
        """Replace a large value by its location in the log, if it is still the value of this key."""
        for values in (self.fresh, self.overrides):
            if values.get(key) is value:
                values[key] = location

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Delete the keys from `lower` to before `upper`."""
        for key in list(self.keys(lower, upper)):
            if self.fresh.pop(key, None) is None:
                del self.overrides[key]
        if self.ranges and self.ranges[-1][1] == lower:
            # Adjacent ranges, such as the journal's, are merged.
            self.ranges[-1] = self.ranges[-1][0], upper
        else:
            self.ranges.append((lower, upper))

    # --- Keys in order -----------------------------------------------------------------------------------------

    def keys(self, lower: bytes, upper: bytes) -> Iterator[bytes]:
        """Yield the changed keys of a range in order, including deleted ones. The layer may change meanwhile."""
        inclusive = True
        while True:
            order = self._sort()
            chunk = list(islice(order.irange(lower, upper, inclusive=(inclusive, False)), _CHUNK))
            for key in chunk:
                if key != lower or inclusive:
                    lower, inclusive = key, False
                    if key in self.fresh or key in self.overrides:
                        yield key
            if len(chunk) < _CHUNK:
                return

    def keys_down(self, upper: bytes) -> Iterator[bytes]:
        """Yield the changed keys up to and including `upper`, the highest first, including deleted ones. The layer must
        not change meanwhile."""
        for key in self._sort().irange(maximum=upper, reverse=True):
            if key in self.fresh or key in self.overrides:
                yield key

    def _sort(self) -> "SortedList[bytes]":
        """Return the order of keys, up to date."""
        order = self._order
        if order is None or len(order) + len(self._added) > 2 * len(self) + _MAX_STALE:
            order = self._order = SortedList(self.fresh)
            order.update(self.overrides)
            self._added = []
        elif self._added:
            order.update(self._added)
            self._added = []
        return order


class Layer:
    """A set of changes, of all families."""

    def __init__(self) -> None:
        self.families = [FamilyLayer() for _ in range(_FAMILIES)]
        # Plain messages that were added to this layer and have no keys yet, by id. They change in place, so all other
        # parts of the store must use these very objects.
        self.keyless: dict[int, StoredMessage] = {}

    def __len__(self) -> int:
        return sum(map(len, self.families)) + _KEYS_OF_KEYLESS * len(self.keyless)

    # --- Messages without keys ---------------------------------------------------------------------------------

    @property
    def takes_keyless(self) -> bool:
        """Return whether there is room for more messages without keys."""
        return len(self.keyless) < _MAX_KEYLESS

    def make_keys(self, id: int) -> None:
        """Make the keys of a message if it has none yet."""
        entry = self.keyless.pop(id, None)
        if entry is not None:
            self._insert_keys(entry)

    def make_some_keys(self, limit: int) -> None:
        """Make the keys of up to `limit` messages that have none yet."""
        keyless = self.keyless
        for _ in range(min(limit, len(keyless))):
            self._insert_keys(keyless.popitem()[1])

    def make_keys_for(self, family: int) -> None:
        """Make the keys of all messages that have none yet, if a plain message has keys in this family."""
        if self.keyless and family in plain_messages.FAMILIES:
            self.make_some_keys(len(self.keyless))

    def _insert_keys(self, entry: StoredMessage) -> None:
        families = self.families
        for family, key, value in plain_messages.iterate_keys(entry):
            families[family].insert(key, value)

    # --- Frames ------------------------------------------------------------------------------------------------

    def replay(self, body: bytes, generation: int, offset: int) -> None:
        """Apply the changes of a frame whose body is at this offset of a segment.

        The lower layers may have later changes of the same keys already, so no key is treated as fresh.
        """
        [size] = ARRAY_SIZE.unpack_from(body)
        end = ARRAY_SIZE.size + size
        parts = iter(_decode(body[ARRAY_SIZE.size : end]))
        for number, key, value in zip(parts, parts, parts, strict=True):
            assert isinstance(number, int)
            if number >= _PLAIN:
                assert isinstance(key, bytes)
                assert isinstance(value, list | bytes)
                self._replay_plain(number, key, value)
                continue
            if isinstance(key, list):
                assert not isinstance(value, int)
                self._replay_many(self.families[number - _MANY], key, value)
                continue
            assert isinstance(key, bytes)
            assert not isinstance(value, list)
            if number < 0:
                assert isinstance(value, bytes)
                self.families[-1 - number].delete_range(key, value)
            elif value is None:
                self.families[number].delete(key)
            elif isinstance(value, int):
                self.families[number].put(key, LogLocation(generation, offset + end, value))
                end += value
            else:
                self.families[number].put(key, value)

    def _replay_plain(self, number: int, key: bytes, value: list[bytes] | bytes) -> None:
        for family, changed, values in plain_messages.decode_part(number, key, value):
            self._replay_many(self.families[family], changed, values)

    def _replay_many(self, family: FamilyLayer, keys: list[bytes], values: list[bytes] | bytes | None) -> None:
        if values is None:
            for key in keys:
                family.delete(key)
            return
        family.put_all(keys, values)
