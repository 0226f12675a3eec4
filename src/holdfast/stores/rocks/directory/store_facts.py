"""What the store knows of itself: its node, the highest id it gave, and whether it was closed in order."""

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

# More claims of one message than a power cut can undo.
_JUMP = 1 << 20
# Ids are set aside in blocks of this many milliseconds, so that not every batch need write the highest one. A start
# that follows no orderly close goes on behind the block, at most so far ahead of the clock.
_BLOCK_MS = 1_000


class StoreIds:
    """The ids of new messages, which no two shards give twice."""

    def __init__(self, maker: IdMaker) -> None:
        self._maker = maker

    @property
    def highest(self) -> int:
        return self._maker.highest

    def take(self, number: int, now_ms: int) -> list[int]:
        return self._maker.take(number, now_ms)

    def skip(self, highest: int) -> None:
        """Give no id up to this one any more."""
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
        # The version that claims of messages up to this id must exceed.
        self.floor, self.floor_id = (0, 0) if raw is None else _PAIR.unpack(raw)

    def begin_session(self, ids: StoreIds, node: int, floor: int, floor_id: int) -> None:
        self.ids = ids
        if self.node is None:
            self._engine.put(_NODE, _NUMBER.pack(node), keys.DIRECTORY)
        if (floor, floor_id) != (self.floor, self.floor_id):
            self.floor, self.floor_id = floor, floor_id
            self._engine.put(_FLOOR, _PAIR.pack(floor, floor_id), keys.DIRECTORY)
        self._engine.put(_IN_USE, b"", keys.DIRECTORY)
        self._engine.write()

    def end_session(self) -> None:
        self._engine.put(_HIGHEST, _NUMBER.pack(self.ids.highest), keys.DIRECTORY)
        self._engine.delete(_IN_USE, keys.DIRECTORY)
        self._engine.write()

    def take_ids(self, number: int, now_ms: int) -> list[int]:
        """Return new ids. The first beyond those set aside puts a further block into the batch that they go with: the
        next start goes on above it."""
        taken = self.ids.take(number, now_ms)
        if taken and taken[-1] > self.written:
            self._set_aside(taken[-1])
        return taken

    def skip_ids(self, highest: int) -> None:
        """Give no id up to this one any more, which came from elsewhere."""
        if highest > self.ids.highest:
            self.ids.skip(highest)
            self._set_aside(highest)

    def _set_aside(self, highest: int) -> None:
        self.written = highest + (_BLOCK_MS << 22)
        self._engine.put(_HIGHEST, _NUMBER.pack(self.written), keys.DIRECTORY)

    def _number(self, key: bytes) -> int | None:
        raw = self._engine.database.get(keys.DIRECTORY, key)
        return None if raw is None else _NUMBER.unpack(raw)[0]


def begin_session(shards: list[ShardFacts], dice: Dice) -> None:
    """Mark all shards as in use.

    If one still is, the store was not closed in order: a power cut may have undone claims, so the versions of all
    messages of that time jump beyond any that was given. They jump in all shards, because a message may move from one
    to another."""
    node = next((each.node for each in shards if each.node is not None), None)
    if node is None:
        node = int(dice.roll() * NODES)
    highest = max(each.written for each in shards)
    floor, floor_id = max(each.floor for each in shards), max(each.floor_id for each in shards)
    if any(each.is_in_use for each in shards):
        floor, floor_id = floor + _JUMP, highest
    ids = StoreIds(IdMaker(node, highest))
    for each in shards:
        each.begin_session(ids, node, floor, floor_id)
