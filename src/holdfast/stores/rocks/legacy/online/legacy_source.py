"""The old database while its messages are moved: open for reading and deleting, and read in the order of the move.

    claimed    every message under `in_progress/`, first: the new layout keeps its lease
    visible    the others in the order of their visible times, as claims take them
    rest       messages that have no entry in the index of visible times

Nothing is written to the old database but deletions.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rocksdict import Checkpoint, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.engine.forks import never_free, note_rocksdb_starts
from holdfast.stores.rocks.legacy.entries import LegacyMessage, Oddity, OddityKind
from holdfast.stores.rocks.legacy.field_order import parse_order
from holdfast.stores.rocks.legacy.kept_keys import KEPT_KINDS
from holdfast.stores.rocks.legacy.keys import (
    AVAILABLE,
    IN_PROGRESS,
    LEASE_EXPIRY,
    LEASES,
    VISIBILITY,
    after_instant,
    instant_in,
)
from holdfast.stores.rocks.legacy.legacy_reads import LegacyReads
from holdfast.stores.rocks.legacy.message_import import own_id
from holdfast.stores.rocks.legacy.online.move_records import Moved, moved_from
from holdfast.stores.rocks.legacy.values import Unreadable, decode_fields

_SPACES = (AVAILABLE, VISIBILITY, IN_PROGRESS, LEASES, LEASE_EXPIRY)
# Deletions reach the files, and compactions remove what they delete, after about this many bytes. With RocksDB's
# default, the database would keep its size until the end of the move.
_WRITE_BUFFER = 4 << 20
# Messages read ahead, and the number of bytes after which no more are.
_AHEAD, _AHEAD_BYTES = 256, 1 << 20
# Index entries and keys without a message that one call passes over at most, so that a step stays short.
_PASSED_OVER = 2_000

_LAST = b"\xff" * 17


class Phase(IntEnum):
    """The part of the database that is moved next."""

    CLAIMED = 0
    VISIBLE = 1
    REST = 2
    DONE = 3


class OldMessage(NamedTuple):
    """A message to move, and the keys under which the old database has it."""

    message: LegacyMessage
    how: Moved
    keys: tuple[bytes, ...]

    @property
    def position(self) -> tuple[int, bytes]:
        """Return the position in the order of claims. A new id is above every other."""
        return self.message.visible_at, self.message.id if own_id(self.message.id) is not None else _LAST


class LegacySource(LegacyReads):
    """An old database that is being moved.

    `moved` has the messages that are already in the new layout, and are still to be deleted here.
    """

    def __init__(self, path: Path, order: str | None) -> None:
        """Open the database. `order` is the order of the fields as chosen before; None: choose it now.

        Raise `StoreUnavailable` if it cannot be opened.
        """
        super().__init__()
        self.path = path
        self.moved: dict[bytes, Moved] = {}
        self.phase = Phase.CLAIMED
        # The last keys that were read, by family, in the phases and in the index.
        self._after: dict[str, bytes] = {}
        self._ahead: deque[OldMessage] = deque()
        self._is_inherited = False
        note_rocksdb_starts()
        try:
            self._open()
        except Exception as error:  # RocksDB's binding raises nothing more precise
            raise StoreUnavailable(
                f"{path} cannot be opened: {error}; restore it, or restore a backup", path=str(path)
            ) from None
        listen_for_forks(self)
        try:
            by_space = {space: [name for name in self._names if self._has(name, space)] for space in _SPACES}
            self._names_by_space = by_space
            self.order = self.choose_order() if order is None else parse_order(order)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = str(self.path)
        self._names = sorted(Rdict.list_cf(path, _options()))
        others = {name: _options() for name in self._names if name != "default"}
        self._db = Rdict(path, _options(), column_families=others)
        self._families = {
            name: self._db if name == "default" else self._db.get_column_family(name) for name in self._names
        }
        self._handles = {
            name: None if name == "default" else self._db.get_column_family_handle(name) for name in self._names
        }

    def _has(self, name: str, space: bytes) -> bool:
        return any(True for _ in self._items(name, space, space))

    def close(self) -> None:
        """Close the database. Idempotent, and does nothing in a forked child."""
        if self._is_inherited or not self._families:
            return
        self._handles.clear()
        for name, family in self._families.items():
            if name != "default":
                family.close()
        self._families.clear()
        self._db.close()

    def forked(self) -> None:
        """Drop RocksDB in a forked child without closing it."""
        self._is_inherited = True
        for each in (self._db, *self._families.values(), *self._handles.values()):
            never_free(each)

    # --- Messages to move --------------------------------------------------------------------------------------

    def head(self) -> OldMessage | None:
        """Return the next message in the order of claims; None if the index of visible times has no more."""
        self._fill()
        return self._ahead[0] if self._ahead else None

    def take_visible(self, limit: int, until_ms: int | None = None) -> list[OldMessage]:
        """Return the next messages in the order of claims, up to a visible time. The caller moves them."""
        taken: list[OldMessage] = []
        size = 0
        while len(taken) < limit and size < _AHEAD_BYTES and (head := self.head()) is not None:
            if until_ms is not None and head.message.visible_at > until_ms:
                break
            taken.append(self._ahead.popleft())
            size += len(head.message.payload)
        return taken

    def take_next(self, limit: int) -> list[OldMessage]:
        """Return up to `limit` messages of the current phase, and enter the next phase if it has no more.

        The list may be empty before the end, after many keys without a message.
        """
        if self.phase is Phase.VISIBLE:
            if not (taken := self.take_visible(limit)):
                self._enter(Phase.REST)
            return taken
        if self.phase is Phase.DONE:
            return []
        prefix = IN_PROGRESS if self.phase is Phase.CLAIMED else AVAILABLE
        return self._take_keys(prefix, limit)

    def _take_keys(self, prefix: bytes, limit: int) -> list[OldMessage]:
        taken: list[OldMessage] = []
        size = passed_over = 0
        for name in self._names_by_space[prefix]:
            for key, value in self._items(name, self._next_key(name, prefix), prefix):
                self._after[name] = key
                found = self._to_move(key, value)
                if found is None:
                    passed_over += 1
                else:
                    taken.append(found)
                    size += len(found.message.payload)
                if len(taken) == limit or size >= _AHEAD_BYTES or passed_over == _PASSED_OVER:
                    return taken
        self._enter(Phase(self.phase + 1))
        return taken

    def _next_key(self, name: str, prefix: bytes) -> bytes:
        after = self._after.get(name)
        return prefix if after is None else after + b"\0"

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._after.clear()

    def _fill(self) -> None:
        """Read messages ahead by the index of visible times. Entries without their message are passed over."""
        if self._ahead or self.phase > Phase.VISIBLE:
            return
        size = 0
        for key in self._index_keys():
            self._index_after = key
            value = self._get(AVAILABLE + after_instant(VISIBILITY, key))
            found = None if value is None else self._to_move(AVAILABLE + after_instant(VISIBILITY, key), value)
            if found is not None and self._is_listed_by(found, key):
                self._ahead.append(found)
                size += len(found.message.payload)
                if len(self._ahead) == _AHEAD or size >= _AHEAD_BYTES:
                    return

    def _is_listed_by(self, found: OldMessage, index_key: bytes) -> bool:
        """Return whether an index entry has the visible time of its message. A value may lack it."""
        own = found.keys[1:]
        return not own or own[0] == index_key

    def _index_keys(self) -> Iterator[bytes]:
        first = self._index_after + b"\0" if self._index_after else VISIBILITY
        every = [self._items(name, first, VISIBILITY) for name in self._names_by_space[VISIBILITY]]
        return (key for key, _ in heapq.merge(*every) if instant_in(VISIBILITY, key) is not None)

    # The last key of the index of visible times that was read.
    _index_after = b""

    def find_old(self, id: bytes) -> OldMessage | None:
        """Return the message with this id, to be moved out of its turn; None if there is none."""
        if id in self.moved:
            return None
        for prefix in (IN_PROGRESS, AVAILABLE):
            value = self._get(prefix + id)
            found = None if value is None else self._to_move(prefix + id, value)
            if found is not None:
                return found
        return None

    def ids_between(self, after: bytes, upto: bytes | None, limit: int) -> list[bytes]:
        """Return the first ids of this version's form, above `after` and up to `upto`, that are not moved yet."""
        found: set[bytes] = set()
        for prefix in (AVAILABLE, IN_PROGRESS):
            for name in self._names_by_space[prefix]:
                ids = (key[len(prefix) :] for key, _ in self._items(name, prefix + after + b"\0", prefix))
                own = (id for id in ids if own_id(id) is not None and id not in self.moved)
                for id in islice(own, limit):
                    if upto is not None and id > upto:
                        break
                    found.add(id)
        return sorted(found)[:limit]

    def note_moved(self, moved: list[OldMessage]) -> None:
        """Take note that the open commit moves these messages. From here on they are not found any more."""
        ids = set()
        for each in moved:
            self.moved[each.message.id] = each.how
            ids.add(each.message.id)
        if any(each.message.id in ids for each in self._ahead):
            self._ahead = deque(each for each in self._ahead if each.message.id not in ids)

    def _to_move(self, key: bytes, value: bytes) -> OldMessage | None:
        """Return the message of a key; None if it has none, or one that is already moved."""
        prefix = AVAILABLE if key.startswith(AVAILABLE) else IN_PROGRESS
        id = key[len(prefix) :]
        if id in self.moved:
            return None
        found = self._judge(key, value)
        if not isinstance(found, LegacyMessage):
            return None
        has_copy = self._is_readable(IN_PROGRESS if prefix == AVAILABLE else AVAILABLE, id)
        return OldMessage(found, moved_from(prefix, has_copy=has_copy), self.keys_of(key, value))

    def keys_of(self, key: bytes, value: bytes) -> tuple[bytes, ...]:
        """Return the keys to delete for a message: its own, and that of its index entry."""
        if not key.startswith(AVAILABLE):
            return (key,)
        try:
            index_key = decode_fields(value)[self.order.index_key]
        except Unreadable:
            return (key,)
        return (key, index_key) if index_key.startswith(VISIBILITY) else (key,)

    # --- Everything else ---------------------------------------------------------------------------------------

    def left_over(self) -> list[Oddity] | None:
        """Return the keys that may have been messages, once every message is moved: those that cannot be read, and
        second copies of moved messages. Return None if a message was missed, and begin again with the first phase."""
        found: list[Oddity] = []
        for name in self._names:
            for key, value in self._items(name, b""):
                each = self._judge(key, value)
                if isinstance(each, LegacyMessage):
                    if each.id not in self.moved:
                        # The phase comes last: calls on other threads read the index only in its phases.
                        self._index_after = b""
                        self._enter(Phase.CLAIMED)
                        return None
                    each = Oddity(OddityKind.TWIN, key, value, "a second copy of a message")
                if each is not None and each.kind in KEPT_KINDS:
                    found.append(each)
        return found

    def estimate_messages(self) -> int:
        """Return the approximate number of messages that are not claimed."""
        names = self._names_by_space[AVAILABLE]
        count = sum(int(self._families[name].property_value("rocksdb.estimate-num-keys") or 0) for name in names)
        # With all keys in one family, each message has its entry in the index of visible times there.
        return max(0, count // 2 if names == self._names_by_space[VISIBILITY] else count)

    def cursors(self) -> list[RdictIter]:
        """Return cursors over the messages that are not claimed, as of this moment."""
        made = []
        for name in self._names_by_space[AVAILABLE]:
            cursor = self._families[name].iter(ReadOptions())
            cursor.seek(AVAILABLE)
            made.append(cursor)
        return made

    def copy_to(self, target: Path) -> None:
        """Copy the database into a new directory. Files are linked where the file system allows it. May run on another
        thread."""
        Checkpoint(self._db).create_checkpoint(str(target))

    def delete(self, doomed: list[bytes]) -> None:
        """Delete keys, and return once that is on disk. May run on another thread."""
        batch = WriteBatch(raw_mode=True)
        for key in doomed:
            space = key[: key.find(b"/") + 1]
            for name in self._names_by_space.get(space, self._names):
                batch.delete(key, self._handles[name])
        durable = WriteOptions()
        durable.sync = True
        self._db.write(batch, durable)

    def find_keys(self, id: bytes, how: Moved) -> list[bytes]:
        """Return the keys to delete for a message that was moved before a crash."""
        value = self._get(how.prefix + id)
        return [] if value is None else list(self.keys_of(how.prefix + id, value))

    def _get(self, key: bytes) -> bytes | None:
        for name in self._names_by_space.get(key[: key.find(b"/") + 1], self._names):
            value: bytes | None = self._families[name].get(key)
            if value is not None:
                return value
        return None


def _options() -> Options:
    chosen = Options(raw_mode=True)
    chosen.set_write_buffer_size(_WRITE_BUFFER)
    chosen.set_keep_log_file_num(2)
    # Files that contain mostly deletions are compacted early, so that the disk is freed while messages are moved.
    chosen.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    return chosen
