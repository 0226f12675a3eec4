"""FIFO groups of one queue: which messages are ready in each, in order of id, and which head stands in the queue."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.model.rules.claims import group_head, replace_head
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.window import Window

_PLACE = struct.Struct(">16sBQ")
_BUSY = struct.Struct(">I")
# Groups kept in memory; the rest is read again when it is needed.
_MAX_LOADED = 10_000

# A head's place in the queue's order: priority, visible_at, id.
Place = tuple[int, int, bytes]


@dataclass(slots=True)
class _Group:
    # id 16 | priority 1 | visible_at 8 of the ready ones.
    ready: Window
    busy: int
    shown: Place | None

    def head(self) -> Place | None:
        return group_head(is_busy=self.busy > 0, first=self._first)

    def _first(self) -> Place | None:
        place = self.ready.peek()
        if place is None:
            return None
        id16, priority, visible_at = _PLACE.unpack(place)
        return priority, visible_at, id16


class RocksGroups:
    def __init__(
        self,
        p: bytes,
        engine: Engine,
        scanner: Callable[[int, bytes], Callable[[bytes, int], list[bytes]]],
        *,
        is_empty: bool,
    ) -> None:
        self._p = p
        self._engine = engine
        self._scanner = scanner
        self._loaded: dict[str, _Group] = {}
        # visible_at 8 | id 16 of everything ready in some group: the queue's own order has only the heads.
        self._visible = Window(scanner(keys.INDEXES, keys.GROUP_VISIBLE + p), is_empty=is_empty)

    def prepare(self, name: str, changes: int = 1) -> None:
        """Read what so many changes of this group will need: after it, the changes themselves read nothing."""
        group = self._loaded.get(name)
        if group is None:
            group = self._loaded[name] = self._load(name)
        group.ready.ensure(changes)

    def start_empty(self, name: str) -> None:
        self._loaded[name] = _Group(
            ready=Window(self._scanner(keys.INDEXES, self._name(keys.GROUPS, name)), is_empty=True), busy=0, shown=None
        )

    def forget_some(self) -> None:
        """Between operations: keep memory bounded. Everything is on disk too."""
        if len(self._loaded) > _MAX_LOADED:
            self._loaded.clear()

    def first_visible(self) -> bytes | None:
        return self._visible.peek()

    def ready_ids(self, name: str, limit: int) -> list[bytes]:
        """The first ready ones, in order of id."""
        self.prepare(name, limit)
        return [key[: keys.ID_SIZE] for key in self._loaded[name].ready.first(limit)]

    def is_busy(self, name: str) -> bool:
        self.prepare(name)
        return self._loaded[name].busy > 0

    def is_head(self, name: str, id16: bytes) -> bool:
        self.prepare(name)
        shown = self._loaded[name].shown
        return shown is not None and shown[2] == id16

    def join(self, name: str, priority: int, visible_at: int, id16: bytes) -> None:
        place = _PLACE.pack(id16, priority, visible_at)
        self._engine.insert(self._name(keys.GROUPS, name) + place, b"", keys.INDEXES)
        self._loaded[name].ready.push(place)
        key = keys.instant(visible_at) + id16
        self._engine.insert(keys.GROUP_VISIBLE + self._p + key, b"", keys.INDEXES)
        self._visible.push(key)

    def leave(self, name: str, priority: int, visible_at: int, id16: bytes) -> None:
        place = _PLACE.pack(id16, priority, visible_at)
        self._engine.delete(self._name(keys.GROUPS, name) + place, keys.INDEXES)
        self._loaded[name].ready.discard(place)
        key = keys.instant(visible_at) + id16
        self._engine.delete(keys.GROUP_VISIBLE + self._p + key, keys.INDEXES)
        self._visible.discard(key)

    def count_busy(self, name: str, change: int) -> None:
        group = self._loaded[name]
        group.busy += change
        if group.busy:
            self._engine.put(self._name(keys.BUSY, name), _BUSY.pack(group.busy), keys.INDEXES)
        else:
            self._engine.delete(self._name(keys.BUSY, name), keys.INDEXES)

    def replace_head(self, name: str) -> tuple[Place | None, Place | None]:
        """After a change: the head that must go from the queue's order, and the one that must stand there."""
        group = self._loaded[name]
        head = group.head()
        turned = replace_head(group.shown, head)
        group.shown = head
        return turned

    def _load(self, name: str) -> _Group:
        self._engine.write()
        busy = self._engine.database.get(keys.INDEXES, self._name(keys.BUSY, name))
        group = _Group(
            ready=Window(self._scanner(keys.INDEXES, self._name(keys.GROUPS, name)), is_empty=False),
            busy=0 if busy is None else _BUSY.unpack(busy)[0],
            shown=None,
        )
        group.shown = group.head()
        return group

    def _name(self, space: bytes, name: str) -> bytes:
        return space + self._p + keys.hashed(name)
