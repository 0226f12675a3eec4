"""The open commit: changes that will be committed together as one frame (`layers.py` describes its format).

A change is made in the active layer at once, and recorded for the frame. Plain messages are recorded together in one
part, and get keys in the layer only when these are needed.
"""

from typing import NamedTuple

import msgspec

from holdfast.model.rules.lifecycle import Life
from holdfast.stores.formats.message_record import encode_life
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.layers import ARRAY_SIZE, LARGE_VALUE, Layer, LogLocation, Part
from holdfast.stores.rocks.hot_prefixes import WRITE_GAP, PrefixSamples
from holdfast.stores.rocks.queues import plain_messages
from holdfast.stores.rocks.queues.stored_message import StoredMessage

_FAMILIES = len(keys.FAMILY_NAMES)
_encode = msgspec.msgpack.Encoder().encode


class LargeValue(NamedTuple):
    """A value that follows the array of a frame."""

    family: int
    key: bytes
    value: bytes


class Frame(NamedTuple):
    """The body of a frame, and the large values at its end."""

    body: bytes
    large: list[LargeValue]


class OpenCommit:
    """The changes that will be committed together, in order."""

    __slots__ = ("_parts", "frozen", "layer", "samples")

    def __init__(self, layer: Layer) -> None:
        # The layer that gets the changes at once, because operations of the same commit read them.
        self.layer = layer
        # The layer that a checkpoint is writing, if any.
        self.frozen: Layer | None = None
        self._parts: list[Part] = []
        self.samples = PrefixSamples(WRITE_GAP)

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def put(self, key: bytes, value: bytes, family: int) -> None:
        """Set a key, whether or not it exists."""
        self.layer.families[family].put(key, value)
        self._parts += (family, key, value)

    def insert(self, key: bytes, value: bytes, family: int) -> None:
        """Set a key that does not exist. See `FamilyLayer.insert`."""
        self.layer.families[family].insert(key, value)
        self._parts += (family, key, value)

    def delete(self, key: bytes, family: int) -> None:
        """Delete a key, whether or not it exists."""
        self.layer.families[family].delete(key)
        self._parts += (family, key, None)

    def delete_range(self, lower: bytes, upper: bytes, family: int) -> None:
        """Delete the keys from `lower` to before `upper`. Any number of keys costs one part."""
        self.layer.families[family].delete_range(lower, upper)
        self._parts += (-1 - family, lower, upper)

    # --- Plain messages ----------------------------------------------------------------------------------------

    def add_plain(self, p: bytes, entries: list[StoredMessage], form: plain_messages.AddedForm) -> None:
        """Add new plain messages of one priority that were enqueued together."""
        layer = self.layer
        if layer.takes_keyless:
            layer.keyless.update({entry.envelope.id: entry for entry in entries})
        else:
            names, records, visible = plain_messages.make_keys_of_added(p, entries, form)
            layer.families[keys.MESSAGES].insert_all(names, records)
            layer.families[keys.VISIBLE].insert_all(visible, b"")
        self._parts += plain_messages.encode_added(p, entries, form)

    def claim_plain(self, p: bytes, entries: list[StoredMessage], lives: list[Life]) -> None:
        """Take plain Ready messages into flight, and set their new lives."""
        self._parts += plain_messages.encode_claimed(p, entries, lives)
        families, keyless = self.layer.families, self.layer.keyless
        keyed: list[StoredMessage] = []
        for entry, life in zip(entries, lives, strict=True):
            if entry.envelope.id not in keyless:
                self.make_keys(entry)
                families[keys.VISIBLE].delete(plain_messages.visible_key(entry))
                keyed.append(entry)
            entry.life = life
        if keyed:
            names = [p + entry.id16 for entry in keyed]
            families[keys.EXPIRIES].insert_all([plain_messages.expiry_key(entry) for entry in keyed], b"")
            families[keys.LEASES].insert_all(names, [encode_life(entry.life, has_state=False) for entry in keyed])

    def finish_plain(self, p: bytes, entries: list[StoredMessage]) -> None:
        """Remove plain messages in flight."""
        self._parts += plain_messages.encode_finished(p, entries)
        families, keyless = self.layer.families, self.layer.keyless
        keyed: list[StoredMessage] = []
        for entry in entries:
            if keyless.pop(entry.envelope.id, None) is None:
                self.make_keys(entry)
                keyed.append(entry)
        if keyed:
            names = [p + entry.id16 for entry in keyed]
            families[keys.EXPIRIES].delete_all([plain_messages.expiry_key(entry) for entry in keyed])
            families[keys.LEASES].delete_all(names)
            families[keys.MESSAGES].delete_all(names)

    def keyless(self, id: int) -> StoredMessage | None:
        """Return the message with this id if it has no keys yet."""
        entry = self.layer.keyless.get(id)
        return self.frozen.keyless.get(id) if entry is None and self.frozen is not None else entry

    def make_keys(self, entry: StoredMessage) -> None:
        """Make the keys of a message if it has none yet. Call it before a change that needs them."""
        if entry.envelope.id in self.layer.keyless:
            self.layer.make_keys(entry.envelope.id)
        elif self.frozen is not None:
            self.frozen.make_keys(entry.envelope.id)

    def take(self) -> Frame:
        """Return the frame of this commit, and start the next commit."""
        parts, self._parts = self._parts, []
        samples = self.samples
        samples.left -= len(parts)
        if samples.left < 0:
            samples.note_parts(parts)
        encoded = _encode(parts)
        large: list[LargeValue] = []
        if len(encoded) > LARGE_VALUE:
            large = _take_large(parts)
            if large:
                encoded = _encode(parts)
        size = ARRAY_SIZE.pack(len(encoded))
        return Frame(b"".join([size, encoded, *[each.value for each in large]]) if large else size + encoded, large)

    def evict_to_log(self, frame: Frame, generation: int, offset: int) -> None:
        """Drop the large values of a frame from memory. Its body is at this offset of a segment."""
        offset += len(frame.body) - sum(len(each.value) for each in frame.large)
        for family, key, value in frame.large:
            self.layer.families[family].evict_to_log(key, value, LogLocation(generation, offset, len(value)))
            offset += len(value)


def _take_large(parts: list[Part]) -> list[LargeValue]:
    """Replace large values by their sizes, and return them."""
    large: list[LargeValue] = []
    for index in range(2, len(parts), 3):
        family, key, value = parts[index - 2 : index + 1]
        if isinstance(value, bytes) and len(value) > LARGE_VALUE:
            assert isinstance(family, int)
            assert isinstance(key, bytes)
            if 0 <= family < _FAMILIES:
                large.append(LargeValue(family, key, value))
                parts[index] = len(value)
    return large
