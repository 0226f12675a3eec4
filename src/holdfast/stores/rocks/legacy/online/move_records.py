"""The records that a store keeps while messages of the legacy layout are moved into it.

    m/legacy move      MoveState: how the old values are read, and how many messages were moved
    o/ | legacy id     written with the moved message, deleted once the old one is deleted on disk

While a message has its `o/` record, whatever the old database still has under its id is not a message. So a crash
between writing the new message and deleting the old one neither delivers it twice nor brings it back after its ack.

How to change this format: `MoveState` is a MessagePack array. Add a field at the end, with the default that earlier
versions imply. An `o/` record is one byte, and is written anew by every move: give a new form another byte.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.legacy.keys import AVAILABLE, IN_PROGRESS

MOVE_STATE = keys.META + b"legacy move"


class MoveState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The state of an unfinished move."""

    # The order of the fields of the old values. It is chosen once, because the last values alone may not show it.
    order: str
    begun_at: int
    # The number of messages moved so far.
    moved: int = 0


class Moved(Enum):
    """The old key that a message had, and whether a second copy of the message is under the other one.

    Such a copy stays in the old database until the end, and then goes to a file. So does its record.
    """

    AVAILABLE = b"a"
    IN_PROGRESS = b"p"
    AVAILABLE_WITH_COPY = b"A"
    IN_PROGRESS_WITH_COPY = b"P"

    @property
    def prefix(self) -> bytes:
        """Return the prefix of the old key."""
        return AVAILABLE if self in (Moved.AVAILABLE, Moved.AVAILABLE_WITH_COPY) else IN_PROGRESS

    @property
    def has_copy(self) -> bool:
        """Return whether there is a second copy."""
        return self in (Moved.AVAILABLE_WITH_COPY, Moved.IN_PROGRESS_WITH_COPY)


def moved_from(prefix: bytes, *, has_copy: bool) -> Moved:
    """Return the record of a message that had a key with this prefix."""
    if prefix == AVAILABLE:
        return Moved.AVAILABLE_WITH_COPY if has_copy else Moved.AVAILABLE
    return Moved.IN_PROGRESS_WITH_COPY if has_copy else Moved.IN_PROGRESS


_encode = msgspec.msgpack.Encoder().encode
decode_move_state = msgspec.msgpack.Decoder(MoveState).decode


class MoveRecords:
    """The records in the shard that has the moved messages. Each change is part of the open commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def state(self) -> MoveState | None:
        """Return the state, or None if no move has begun."""
        raw = self._engine.database.get(keys.DIRECTORY, MOVE_STATE)
        return None if raw is None else decode_move_state(raw)

    def put_state(self, state: MoveState) -> None:
        """Write the state."""
        self._engine.put(MOVE_STATE, _encode(state), keys.DIRECTORY)

    def moved(self) -> Iterator[tuple[bytes, Moved]]:
        """Yield the legacy ids with a record, and how each was moved."""
        space = keys.LEGACY_MOVED
        for key, raw in self._engine.database.items(keys.DIRECTORY, space, keys.after(space)):
            yield key[len(space) :], Moved(raw)

    def put_moved(self, id: bytes, how: Moved) -> None:
        """Write the record of a message that the open commit moves."""
        self._engine.put(keys.LEGACY_MOVED + id, how.value, keys.DIRECTORY)

    def forget_moved(self, id: bytes) -> None:
        """Delete the record of a message whose old copy is deleted on disk."""
        self._engine.delete(keys.LEGACY_MOVED + id, keys.DIRECTORY)

    def forget_state(self) -> None:
        """Delete the state, once nothing is left to move."""
        self._engine.delete(MOVE_STATE, keys.DIRECTORY)
