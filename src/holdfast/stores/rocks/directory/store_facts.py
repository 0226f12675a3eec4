"""The facts that a store keeps about itself: its node number, the highest id given, and whether it was closed cleanly.

How to change this format: each fact is a key of the space `keys.META` with a value of fixed width. Add a fact under a
new name, and list it with its width in `verify/directory_check.py`, and in `offline/resharding.py` with the way it is
carried over. To change a value, store it under a new name too, and read the old one where the new one is missing.
"""

import struct

from holdfast.dice import Dice
from holdfast.model.ids import NODES, IdMaker
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine

_NODE = keys.META + b"node"
_HIGHEST = keys.META + b"highest id"
_IN_USE = keys.META + b"in use"
_FLOOR = keys.META + b"version floor"

_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")

# By how much versions rise after an unclean shutdown: more claims of one message than a power cut can undo.
_JUMP = 1 << 20
# Ids are reserved in blocks of this many milliseconds, so that not every commit must write the highest id. After an
# unclean shutdown, ids continue behind the reserved block, so they may be ahead of the clock by at most this much.
_BLOCK_MS = 1_000


class StoreIds:
    """The ids of new messages. All shards share one object, so no id is given twice."""

    def __init__(self, maker: IdMaker) -> None:
        self._maker = maker

    @property
    def highest(self) -> int:
        """Return the highest id given so far."""
        return self._maker.highest

    def take(self, number: int, now_ms: int) -> list[int]:
        """Return new ids, in rising order."""
        return self._maker.take(number, now_ms)

    def skip(self, highest: int) -> None:
        """Give only ids above `highest` from now on."""
        if highest > self._maker.highest:
            self._maker = IdMaker(self._maker.node, highest)


class ShardFacts:
    """The facts of one shard."""

    ids: StoreIds

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.node = self._number(_NODE)
        self.written = self._number(_HIGHEST) or 0
        self.is_in_use = engine.database.get(keys.DIRECTORY, _IN_USE) is not None
        raw = engine.database.get(keys.DIRECTORY, _FLOOR)
        # The next claim of a message with an id up to `floor_id` must get a version above `floor`.
        self.floor, self.floor_id = (0, 0) if raw is None else _PAIR.unpack(raw)

    def begin_session(self, ids: StoreIds, node: int, floor: int, floor_id: int) -> None:
        """Mark the shard as in use, and write the facts that all shards agreed on."""
        self.ids = ids
        if self.node is None:
            self._engine.put(_NODE, _NUMBER.pack(node), keys.DIRECTORY)
        if (floor, floor_id) != (self.floor, self.floor_id):
            self.floor, self.floor_id = floor, floor_id
            self._engine.put(_FLOOR, _PAIR.pack(floor, floor_id), keys.DIRECTORY)
        self._engine.put(_IN_USE, b"", keys.DIRECTORY)
        self._engine.write()

    def end_session(self) -> None:
        """Mark the shard as closed cleanly, and write the exact highest id."""
        self._engine.put(_HIGHEST, _NUMBER.pack(self.ids.highest), keys.DIRECTORY)
        self._engine.delete(_IN_USE, keys.DIRECTORY)
        self._engine.write()

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        """Return new ids. If they exceed the reserved ones, reserve a further block in the open commit, so that the
        next start continues above it."""
        taken = self.ids.take(number, now_ms)
        if taken and taken[-1] > self.written:
            self._reserve(taken[-1])
        return taken

    def skip_ids(self, highest: int) -> None:
        """Give only ids above `highest` from now on, because a message with that id was moved or imported into the
        store."""
        if highest > self.ids.highest:
            self.ids.skip(highest)
            self._reserve(highest)

    def _reserve(self, highest: int) -> None:
        """Reserve the ids of one block above `highest`."""
        self.written = highest + (_BLOCK_MS << 22)
        self._engine.put(_HIGHEST, _NUMBER.pack(self.written), keys.DIRECTORY)

    def _number(self, key: bytes) -> int | None:
        raw = self._engine.database.get(keys.DIRECTORY, key)
        return None if raw is None else _NUMBER.unpack(raw)[0]


def begin_session(shards: list[ShardFacts], dice: Dice, node_offset: int = 0) -> None:
    """Mark all shards as in use, and give them their common ids.

    `node_offset` is added to the store's node number, so that each process with a part of the shards has its own.

    If a shard is still marked as in use, the store was not closed cleanly, and a power cut may have undone claims. Then
    the versions of all existing messages rise by `_JUMP` with their next claim, above every version that was given.
    They rise in all shards, because messages move between shards.
    """
    node = next((each.node for each in shards if each.node is not None), None)
    if node is None:
        node = int(dice.roll() * NODES)
    highest = max(each.written for each in shards)
    floor, floor_id = max(each.floor for each in shards), max(each.floor_id for each in shards)
    if any(each.is_in_use for each in shards):
        floor, floor_id = floor + _JUMP, highest
    ids = StoreIds(IdMaker((node + node_offset) % NODES, highest))
    for each in shards:
        each.begin_session(ids, node, floor, floor_id)
