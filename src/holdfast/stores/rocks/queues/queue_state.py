"""One queue on disk: its counters, the windows on its indexes, and the keys that each change of a message writes.

`put`, `change` and `drop` are the only ways to alter a message. Each is one transition and complete in itself: whatever
it must read, it reads before it writes, so that a commit between two of them never parts one.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.model.answers import Counts
from holdfast.model.message import Envelope, State
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.contract import QueueRow
from holdfast.stores.formats.message_record import encode_life, encode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.payloads.pieces import delete_pieces, store_large_payload
from holdfast.stores.rocks.queues.groups import RocksGroups
from holdfast.stores.rocks.queues.plain_messages import AddedForm
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.window import Window

_KEY = struct.Struct(">Q16s")
# Read once: to find a member in its class costs as much as the rest of a comparison.
_READY = State.READY


class Surroundings(Protocol):
    """What a shelf needs of the store around it."""

    # Deadlines of all queues: ends of TTLs, and of keeping what succeeded.
    ttls: Window
    kept: Window
    # Queues, by their prefix, whose counters are to be written with the batch.
    dirty: "dict[bytes, QueueState]"
    # Queues, by their prefix, in which a claim may find something new: their waiters are to be told.
    shown: "dict[bytes, QueueState]"

    def scanner(self, family: int, prefix: bytes) -> Callable[[bytes, int], list[bytes]]:
        """Reads the keys of a space in order, without its prefix; not those that are not yet committed."""

    def show_after_commit(self, shelf: "QueueState", priority: int, key: bytes) -> None: ...

    def show_all_after_commit(
        self, shelf: "QueueState", priority: int, shown: list[bytes], visible: list[bytes]
    ) -> None: ...

    def hide(self, shelf: "QueueState", priority: int, key: bytes) -> None:
        """It goes before it was shown."""

    def hide_all(self, visible: list[bytes]) -> None:
        """They go, perhaps before they were shown."""


class QueueState:
    __slots__ = (
        *("_board", "_delayed", "_dirty", "_engine", "_groups", "_leases", "_levels", "_shown", "_totals"),
        *("counters", "p", "row"),
    )

    # Made with the levels, by `_in_use`.
    # expires_at 8 | id 16.
    _leases: Window
    # visible_at 8 | id 16 of what is ready later.
    _delayed: Window
    _groups: RocksGroups

    def __init__(self, row: QueueRow, engine: Engine, counters: Counters, totals: Totals, board: Surroundings) -> None:
        self.row = row
        self.p = keys.prefix(row.tenant_id, row.queue_id)
        self.counters = counters
        self._totals = totals
        self._engine = engine
        self._board = board
        self._dirty, self._shown = board.dirty, board.shown
        # Per priority in use: visible_at 8 | id 16 of what a claim may take. None: no window was made yet, and the
        # counters are those that lie on disk.
        self._levels: dict[int, Window] | None = None

    # --- Windows -----------------------------------------------------------------------------------------------

    def _in_use(self) -> dict[int, Window]:
        """Return the levels. They and all other windows are made when first needed: a store may hold many queues that
        nobody touches."""
        if self._levels is None:
            counters, scanner = self.counters, self._board.scanner
            self._leases = Window(scanner(keys.EXPIRIES, self.p), is_empty=not counters.in_flight)
            self._delayed = Window(scanner(keys.INDEXES, keys.DELAYED + self.p), is_empty=not counters.delayed)
            self._groups = RocksGroups(self.p, self._engine, scanner, is_empty=not counters.messages)
            self._levels = self._find_levels() if counters.ready else {}
        return self._levels

    def _find_levels(self) -> dict[int, Window]:
        """The priorities in use: one seek each, from the end of the one before."""
        self._engine.write()
        levels: dict[int, Window] = {}
        lower, upper = self.p, keys.after(self.p)
        while (key := next(self._engine.database.scan(keys.VISIBLE, lower, upper), None)) is not None:
            priority = key[keys.P_SIZE]
            levels[priority] = self._level_window(priority, is_empty=False)
            if priority == 255:
                break
            lower = keys.level(self.p, priority + 1)
        return levels

    def _level_window(self, priority: int, *, is_empty: bool) -> Window:
        return Window(self._board.scanner(keys.VISIBLE, keys.level(self.p, priority)), is_empty=is_empty)

    # --- What a claim takes ------------------------------------------------------------------------------------

    def priorities(self) -> list[int]:
        levels = self._levels
        return sorted(self._in_use() if levels is None else levels)

    def first_visible(self, priority: int) -> bytes | None:
        """The level's first key, visible_at 8 | id 16; an empty level is forgotten."""
        levels = self._in_use()
        window = levels.get(priority)
        if window is None:
            return None
        key = window.peek()
        if key is None:
            del levels[priority]
        return key

    def pop_due(self, priority: int, limit: int, bound: bytes) -> list[bytes]:
        """Take up to `limit` keys below the bound out of a level."""
        levels = self._levels
        window = (self._in_use() if levels is None else levels).get(priority)
        return [] if window is None else window.pop_below(bound, limit)

    def show(self, priority: int, key: bytes) -> None:
        """From now on a claim may find this key."""
        levels = self._levels
        if levels is None:
            levels = self._in_use()
        window = levels.get(priority)
        if window is None:
            window = levels[priority] = self._level_window(priority, is_empty=True)
        window.push(key)

    def show_all(self, priority: int, shown: list[bytes]) -> None:
        """From now on a claim may find these keys, which are in order."""
        levels = self._in_use()
        window = levels.get(priority)
        if window is None:
            window = levels[priority] = self._level_window(priority, is_empty=True)
        window.push_all(shown)

    def heal_visible(self, priority: int, key: bytes) -> None:
        """Drop an index entry that has no Ready message behind it."""
        self._engine.delete(keys.level(self.p, priority) + key, keys.VISIBLE)

    @property
    def has_groups(self) -> bool:
        if self._levels is None:
            self._in_use()
        return self._groups.first_visible() is not None

    def next_at(self) -> int | None:
        """When a claim may next find something; in the past if it would now."""
        if self.row.is_paused:
            return None
        priorities = self.priorities()
        first = self._leases.peek()
        for priority in priorities:
            key = self.first_visible(priority)
            if key is not None and (first is None or key < first):
                first = key
        return None if first is None else keys.parse_instant(first)

    def has_expired(self, now_ms: int) -> bool:
        key = self._leases.peek()
        return key is not None and keys.parse_instant(key) <= now_ms

    def pop_expired(self, limit: int, now_ms: int) -> list[bytes]:
        """Take the keys of up to `limit` expired leases out of the index, expires_at 8 | id 16; the earliest first."""
        return self._leases.pop_below(keys.instant(now_ms + 1), limit)

    def first_expiry(self) -> tuple[int, bytes] | None:
        """The lease that ends first: when, and whose."""
        if self._levels is None:
            self._in_use()
        key = self._leases.peek()
        return None if key is None else (keys.parse_instant(key), key[8:])

    def heal_expiry(self, key: bytes) -> None:
        """Drop an index entry that has no lease behind it."""
        self._leases.discard(key)
        self._engine.delete(self.p + key, keys.EXPIRIES)

    def group_batch(self, name: str, limit: int) -> list[bytes]:
        """Ids of a group's first Ready messages in order, its head first."""
        if self._levels is None:
            self._in_use()
        return self._groups.ready_ids(name, limit)

    def is_busy(self, group: str) -> bool:
        if self._levels is None:
            self._in_use()
        return self._groups.is_busy(group)

    def is_shown(self, entry: StoredMessage, priority: int, visible_at: int) -> bool:
        """Return whether the message has this place in the queue's order."""
        life = entry.life
        return (
            life.state is _READY
            and life.priority == priority
            and life.visible_at == visible_at
            and (entry.envelope.group is None or self._groups.is_head(entry.envelope.group, entry.id16))
        )

    # --- Before an operation -----------------------------------------------------------------------------------

    def start_empty(self, groups: Iterable[str]) -> None:
        """Of a queue that was just made: its windows are empty, and no read need say so."""
        for name in groups:
            self._groups.start_empty(name)

    def begin(self, now_ms: int) -> None:
        """Begin an operation: read what changes of messages without a group will need, and count what has come due."""
        if self._levels is None:
            self._in_use()
        counters = self.counters
        if counters.delayed:
            self.count_due(now_ms)
        elif now_ms > counters.counted_at:
            counters.counted_at = now_ms

    def prepare(self, groups: Iterable[str], changes: int = 1) -> None:
        """Read all that changes of these groups will need, so that nothing is read once the first key is written."""
        self._groups.forget_some()
        for name in groups:
            self._groups.prepare(name, changes)

    # --- Counting ----------------------------------------------------------------------------------------------

    def count_due(self, now_ms: int) -> None:
        """Take what has come due since out of the index of the delayed."""
        counters = self.counters
        if now_ms > counters.counted_at:
            counters.counted_at = now_ms
        if not counters.delayed:
            return
        if self._levels is None:
            self._in_use()
        window = self._delayed
        while (key := window.peek()) is not None and keys.parse_instant(key) <= now_ms:
            window.pop()
            self._engine.delete(keys.DELAYED + self.p + key, keys.INDEXES)
            counters.delayed -= 1
            self._dirty[self.p] = self

    def counts(self, now_ms: int) -> Counts:
        counters = self.counters
        oldest_at = None
        if counters.ready:
            firsts = [self.first_visible(priority) for priority in self.priorities()]
            firsts.append(self._groups.first_visible())
            oldest_at = min((keys.parse_instant(key) for key in firsts if key is not None), default=None)
        return Counts(
            ready=counters.ready - counters.delayed,
            delayed=counters.delayed,
            in_flight=counters.in_flight,
            failed=counters.failed,
            bytes=counters.bytes,
            oldest_ready_at=oldest_at if oldest_at is not None and oldest_at <= now_ms else None,
        )

    # --- Changes -----------------------------------------------------------------------------------------------

    def put(self, entry: StoredMessage) -> None:
        """Add a message, fresh or moved here. Its header carries the life it has now. A payload in pieces is there
        already."""
        group = entry.envelope.group
        if group is not None:
            self._groups.prepare(group)
        self._engine.insert(self.p + entry.id16, encode_message(entry.envelope, entry.life), keys.MESSAGES)
        entry.p = self.p
        self._dirty[self.p] = self
        totals, size = self._totals, entry.bytes
        self.counters.bytes += size
        totals.bytes += size
        totals.messages += 1
        life = entry.life
        self._index(entry, keeps_life=life.version > 0 or life.state is not State.READY)
        if group is not None:
            self._show_head(group)

    def change(self, entry: StoredMessage, life: Life) -> None:
        group = entry.envelope.group
        if group is not None:
            self._groups.prepare(group)
        self._dirty[self.p] = self
        self._engine.database.commit.make_keys(entry)
        self._unindex(entry)
        entry.life = life
        self._index(entry, keeps_life=life.state is not State.IN_FLIGHT)
        if group is not None:
            self._show_head(group)

    def drop(self, entry: StoredMessage, *, is_moved: bool = False) -> None:
        """A message that is moved keeps its payload, wherever that lies."""
        engine, name, group = self._engine, self.p + entry.id16, entry.envelope.group
        if group is not None:
            self._groups.prepare(group)
        self._dirty[self.p] = self
        engine.database.commit.make_keys(entry)
        self._unindex(entry)
        engine.delete(name, keys.MESSAGES)
        if entry.has_life:
            engine.delete(keys.LIVES + name, keys.INDEXES)
        if entry.has_state:
            engine.delete(keys.STATES + name, keys.INDEXES)
        if entry.envelope.pieces is not None and not is_moved:
            delete_pieces(engine, entry.envelope.pieces)
        self._count_bytes(-entry.bytes)
        self._totals.messages -= 1
        if group is not None:
            self._show_head(group)

    # --- Many plain messages at once -------------------------------------------------------------------------
    #
    # These do for many messages what `put`, `change` and `drop` do for one. They are for plain messages (`is_plain`),
    # whose keys follow from their lives alone, and are not made before they are needed. Tests compare both ways, key by
    # key.

    def put_all(self, entries: list[StoredMessage], form: AddedForm) -> None:
        """Add fresh plain messages of one priority, in order of id, that are due now."""
        p, engine, life = self.p, self._engine, entries[0].life
        self._dirty[p] = self
        engine.database.commit.add_plain(p, entries, form)
        count, size = len(entries), sum([entry.bytes for entry in entries])
        self.counters.ready += count
        self._count_bytes(size)
        self._totals.messages += count
        visible_at = keys.instant(life.visible_at)
        shown = [visible_at + entry.id16 for entry in entries]
        if engine.is_os:
            self._shown[p] = self
            self.show_all(life.priority, shown)
        else:
            level = p + keys.PRIORITIES[life.priority]
            self._board.show_all_after_commit(self, life.priority, shown, [level + key for key in shown])

    def claim_all(self, entries: list[StoredMessage], lives: list[Life]) -> None:
        """Take plain Ready messages into flight. Their keys have been taken out of the order of claims (`pop_due`)."""
        p, counters = self.p, self.counters
        self._dirty[p] = self
        self._engine.database.commit.claim_plain(p, entries, lives)
        expiries = _expiries(entries)
        expiries.sort()
        self._leases.push_all(expiries)
        counters.ready -= len(entries)
        counters.in_flight += len(entries)

    def drop_all(self, entries: list[StoredMessage]) -> None:
        """Forget plain messages in flight."""
        p = self.p
        self._dirty[p] = self
        self._engine.database.commit.finish_plain(p, entries)
        self._leases.discard_all(_expiries(entries))
        self.counters.in_flight -= len(entries)
        self._count_bytes(-sum([entry.bytes for entry in entries]))
        self._totals.messages -= len(entries)

    def is_plain(self, entry: StoredMessage) -> bool:
        """Return whether a message that is not delayed has no keys but those of its state: no group, TTL, state
        document, payload in pieces, nor a life of its own."""
        envelope, life = entry.envelope, entry.life
        return (
            envelope.group is None
            and envelope.pieces is None
            and life.expires_at is None
            and not entry.has_life
            and not entry.has_state
            and (life.lease is not None or life.visible_at <= self.counters.counted_at)
        )

    def edit(self, entry: StoredMessage, envelope: Envelope) -> None:
        """Give a message that is not in flight another payload."""
        self._dirty[self.p] = self
        self._engine.database.commit.make_keys(entry)
        if entry.envelope.pieces is not None:
            delete_pieces(self._engine, entry.envelope.pieces)
        self._count_bytes(envelope.bytes - entry.bytes)
        entry.envelope, entry.bytes = store_large_payload(self._engine, envelope), envelope.bytes
        self._engine.put(self.p + entry.id16, encode_message(entry.envelope, entry.life), keys.MESSAGES)

    def save_life(self, entry: StoredMessage) -> None:
        """Write the life of a message in flight anew: it has a state document now."""
        self._engine.database.commit.make_keys(entry)
        self._engine.put(self.p + entry.id16, encode_life(entry.life, has_state=entry.has_state), keys.LEASES)

    def _count_bytes(self, added: int) -> None:
        self.counters.bytes += added
        self._totals.bytes += added

    # --- Indexes -----------------------------------------------------------------------------------------------

    def _index(self, entry: StoredMessage, *, keeps_life: bool) -> None:
        engine, life, id16, counters = self._engine, entry.life, entry.id16, self.counters
        state = life.state
        if state is State.READY:
            counters.ready += 1
            if life.visible_at > counters.counted_at:
                self._put_delayed(_KEY.pack(life.visible_at, id16))
            if life.expires_at is not None:
                key = keys.instant(life.expires_at) + self.p + id16
                engine.insert(keys.TTLS + key, b"", keys.INDEXES)
                self._board.ttls.push(key)
            if entry.envelope.group is None:
                self._put_visible(life.priority, _KEY.pack(life.visible_at, id16))
            else:
                self._groups.join(entry.envelope.group, life.priority, life.visible_at, id16)
        elif state is State.IN_FLIGHT:
            assert life.lease is not None
            counters.in_flight += 1
            key = _KEY.pack(life.lease.expires_at, id16)
            engine.insert(self.p + key, b"", keys.EXPIRIES)
            engine.insert(self.p + id16, encode_life(life, has_state=entry.has_state), keys.LEASES)
            self._leases.push(key)
            if entry.envelope.group is not None:
                self._groups.count_busy(entry.envelope.group, +1)
        elif state is State.FAILED:
            counters.failed += 1
            engine.insert(keys.DEAD + self.p + id16, b"", keys.INDEXES)
        else:
            counters.kept += 1
            key = keys.instant(life.keep_until or 0) + self.p + id16
            engine.insert(keys.KEPT + key, b"", keys.INDEXES)
            self._board.kept.push(key)
        if keeps_life:
            name = keys.LIVES + self.p + id16
            engine.put(name, encode_life(life, has_state=entry.has_state), keys.INDEXES)
            entry.has_life = True
        elif entry.has_life:
            engine.delete(keys.LIVES + self.p + id16, keys.INDEXES)
            entry.has_life = False

    def _unindex(self, entry: StoredMessage) -> None:
        engine, life, id16, counters = self._engine, entry.life, entry.id16, self.counters
        state = life.state
        if state is State.READY:
            counters.ready -= 1
            if life.visible_at > counters.counted_at:
                self._delete_delayed(_KEY.pack(life.visible_at, id16))
            if life.expires_at is not None:
                key = keys.instant(life.expires_at) + self.p + id16
                engine.delete(keys.TTLS + key, keys.INDEXES)
                self._board.ttls.discard(key)
            if entry.envelope.group is None:
                self._delete_visible(life.priority, life.visible_at, id16)
            else:
                self._groups.leave(entry.envelope.group, life.priority, life.visible_at, id16)
        elif state is State.IN_FLIGHT:
            assert life.lease is not None
            counters.in_flight -= 1
            key = _KEY.pack(life.lease.expires_at, id16)
            engine.delete(self.p + key, keys.EXPIRIES)
            engine.delete(self.p + id16, keys.LEASES)
            self._leases.discard(key)
            if entry.envelope.group is not None:
                self._groups.count_busy(entry.envelope.group, -1)
        elif state is State.FAILED:
            counters.failed -= 1
            engine.delete(keys.DEAD + self.p + id16, keys.INDEXES)
        else:
            counters.kept -= 1
            key = keys.instant(life.keep_until or 0) + self.p + id16
            engine.delete(keys.KEPT + key, keys.INDEXES)
            self._board.kept.discard(key)

    def _put_delayed(self, key: bytes) -> None:
        self._engine.insert(keys.DELAYED + self.p + key, b"", keys.INDEXES)
        self._delayed.push(key)
        self.counters.delayed += 1

    def _delete_delayed(self, key: bytes) -> None:
        self._engine.delete(keys.DELAYED + self.p + key, keys.INDEXES)
        self._delayed.discard(key)
        self.counters.delayed -= 1

    def _put_visible(self, priority: int, key: bytes) -> None:
        """`key`: visible_at 8 | id 16."""
        engine, p = self._engine, self.p
        engine.insert(p + keys.PRIORITIES[priority] + key, b"", keys.VISIBLE)
        if not engine.is_os:
            self._board.show_after_commit(self, priority, key)
            return
        # Nobody waits for a commit.
        self._shown[p] = self
        levels = self._levels
        window = None if levels is None else levels.get(priority)
        if window is None:
            self.show(priority, key)
        else:
            window.push(key)

    def _delete_visible(self, priority: int, visible_at: int, id16: bytes) -> None:
        key = _KEY.pack(visible_at, id16)
        self._engine.delete(self.p + keys.PRIORITIES[priority] + key, keys.VISIBLE)
        if not self._engine.is_os:
            self._board.hide(self, priority, key)
        levels = self._levels
        if levels is None:
            levels = self._in_use()
        window = levels.get(priority)
        if window is not None:
            window.discard(key)

    def _show_head(self, name: str) -> None:
        """Keep exactly the head of a group in the queue's order, and nothing of it while a batch is in flight."""
        hidden, shown = self._groups.turn_head(name)
        if hidden is not None:
            self._delete_visible(*hidden)
        if shown is not None:
            priority, visible_at, id16 = shown
            self._put_visible(priority, _KEY.pack(visible_at, id16))


def _expiries(entries: list[StoredMessage]) -> list[bytes]:
    """Return the keys of the ends of leases, expires_at 8 | id 16. Those that were claimed together end together."""
    found: list[bytes] = []
    last_at, head = -1, b""
    for entry in entries:
        lease = entry.life.lease
        assert lease is not None
        if lease.expires_at != last_at:
            last_at = lease.expires_at
            head = keys.instant(last_at)
        found.append(head + entry.id16)
    return found
