"""The FIFO groups of one queue: the Ready messages of each in order of id, and the head that the queue's order lists.

Of each group, only the head is in the queue's order of claims, and only while no message of the group is in flight.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.model.rules.claims import group_head, replace_head
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.window import Window

_POSITION = struct.Struct(">16sBQ")
_BUSY = struct.Struct(">I")
# Groups kept in memory. The others are read again when they are needed.
_MAX_LOADED = 10_000

# A head's position in the queue's order of claims: priority, visible_at, id.
ClaimPosition = tuple[int, int, bytes]


@dataclass(slots=True)
class _Group:
    """One group in memory."""

    # Ready messages: id 16 | priority 1 | visible_at 8.
    ready: Window
    # The number of messages in flight.
    busy: int
    # The head as the queue's order of claims lists it.
    listed: ClaimPosition | None

    def head(self) -> ClaimPosition | None:
        """Return the message that claims should see, or None."""
        return group_head(is_busy=self.busy > 0, first=self._first)

    def _first(self) -> ClaimPosition | None:
        position = self.ready.peek()
        if position is None:
            return None
        id16, priority, visible_at = _POSITION.unpack(position)
        return priority, visible_at, id16


class RocksGroups:
    """The FIFO groups of one queue."""

    def __init__(
        self,
        p: bytes,
        engine: Engine,
        scanner: Callable[[int, bytes], Callable[[bytes, int], list[bytes]]],
        *,
        is_empty: bool,
    ) -> None:
        """`scanner` makes a function that scans the keys of a family with a prefix. `is_empty`: the queue has no
        messages on disk."""
        self._p = p
        self._engine = engine
        self._scanner = scanner
        self._loaded: dict[str, _Group] = {}
        # All Ready messages in groups: visible_at 8 | id 16. The queue's own order of claims has only the heads.
        self._visible = Window(scanner(keys.INDEXES, keys.GROUP_VISIBLE + p), is_empty=is_empty)

    def prepare(self, name: str, changes: int = 1) -> None:
        """Read what this number of changes of a group needs. The changes then read nothing."""
        group = self._loaded.get(name)
        if group is None:
            group = self._loaded[name] = self._load(name)
        group.ready.ensure(changes)

    def start_empty(self, name: str) -> None:
        """Start a group that has no messages on disk."""
        self._loaded[name] = _Group(
            ready=Window(self._scanner(keys.INDEXES, self._name(keys.GROUPS, name)), is_empty=True), busy=0, listed=None
        )

    def forget_some(self) -> None:
        """Forget loaded groups if there are too many. Call it between operations only; everything is on disk too."""
        if len(self._loaded) > _MAX_LOADED:
            self._loaded.clear()

    def first_visible(self) -> bytes | None:
        """Return the first Ready message in any group, visible_at 8 | id 16."""
        return self._visible.peek()

    def ready_ids(self, name: str, limit: int) -> list[bytes]:
        """Return the ids of a group's first Ready messages, in order."""
        self.prepare(name, limit)
        return [key[: keys.ID_SIZE] for key in self._loaded[name].ready.first(limit)]

    def is_busy(self, name: str) -> bool:
        """Return whether any message of the group is in flight."""
        self.prepare(name)
        return self._loaded[name].busy > 0

    def is_head(self, name: str, id16: bytes) -> bool:
        """Return whether this message is the listed head of its group."""
        self.prepare(name)
        listed = self._loaded[name].listed
        return listed is not None and listed[2] == id16

    def join(self, name: str, priority: int, visible_at: int, id16: bytes) -> None:
        """Add a Ready message to its group. `update_head` must follow."""
        position = _POSITION.pack(id16, priority, visible_at)
        self._engine.insert(self._name(keys.GROUPS, name) + position, b"", keys.INDEXES)
        self._loaded[name].ready.push(position)
        key = keys.instant(visible_at) + id16
        self._engine.insert(keys.GROUP_VISIBLE + self._p + key, b"", keys.INDEXES)
        self._visible.push(key)

    def leave(self, name: str, priority: int, visible_at: int, id16: bytes) -> None:
        """Remove a Ready message from its group. `update_head` must follow."""
        position = _POSITION.pack(id16, priority, visible_at)
        self._engine.delete(self._name(keys.GROUPS, name) + position, keys.INDEXES)
        self._loaded[name].ready.discard(position)
        key = keys.instant(visible_at) + id16
        self._engine.delete(keys.GROUP_VISIBLE + self._p + key, keys.INDEXES)
        self._visible.discard(key)

    def count_busy(self, name: str, change: int) -> None:
        """Change the number of messages in flight. `update_head` must follow."""
        group = self._loaded[name]
        group.busy += change
        if group.busy:
            self._engine.put(self._name(keys.BUSY, name), _BUSY.pack(group.busy), keys.INDEXES)
        else:
            self._engine.delete(self._name(keys.BUSY, name), keys.INDEXES)

    def update_head(self, name: str) -> tuple[ClaimPosition | None, ClaimPosition | None]:
        """Return the head to remove from the queue's order and the one to add, after a group has changed."""
        group = self._loaded[name]
        head = group.head()
        turned = replace_head(group.listed, head)
        group.listed = head
        return turned

    def _load(self, name: str) -> _Group:
        self._engine.write()
        busy = self._engine.database.get(keys.INDEXES, self._name(keys.BUSY, name))
        group = _Group(
            ready=Window(self._scanner(keys.INDEXES, self._name(keys.GROUPS, name)), is_empty=False),
            busy=0 if busy is None else _BUSY.unpack(busy)[0],
            listed=None,
        )
        group.listed = group.head()
        return group

    def _name(self, space: bytes, name: str) -> bytes:
        return space + self._p + keys.hashed(name)
