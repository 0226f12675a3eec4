"""One queue: its counters, and the keys that each change of a message writes.

Only `put`, `change` and `drop`, and their counterparts for many plain messages, alter messages. Each is one complete
transition: it reads everything it needs before it writes the first key. A read hands the open commit to the log, so
a read in the middle would put half of a transition into a commit.
"""

import struct
from collections.abc import Iterable

from holdfast.model.message import Envelope, State
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.formats.message_record import encode_life, encode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.payloads.pieces import delete_pieces, store_large_payload
from holdfast.stores.rocks.queues.plain_messages import AddedForm
from holdfast.stores.rocks.queues.queue_reads import QueueReads
from holdfast.stores.rocks.queues.stored_message import StoredMessage

_KEY = struct.Struct(">Q16s")


class QueueState(QueueReads):
    """One queue of a shard."""

    __slots__ = ()

    # --- Before an operation -----------------------------------------------------------------------------------

    def start_empty(self, groups: Iterable[str]) -> None:
        """Prepare for changes of these groups of a new queue. Nothing of it is on disk, so nothing is read."""
        for name in groups:
            self._groups.start_empty(name)

    def begin(self, now_ms: int) -> None:
        """Begin an operation: make the windows, which changes of messages outside groups need, and count messages that
        are now due."""
        if self._levels is None:
            self._make_windows()
        counters = self.counters
        if counters.delayed:
            self.count_due(now_ms)
        elif now_ms > counters.counted_at:
            counters.counted_at = now_ms

    def prepare(self, groups: Iterable[str], changes: int = 1) -> None:
        """Read everything that this number of changes of each group needs. The changes themselves then read nothing."""
        self._groups.forget_some()
        for name in groups:
            self._groups.prepare(name, changes)

    # --- Counting ----------------------------------------------------------------------------------------------

    def count_due(self, now_ms: int) -> None:
        """Count delayed messages that are due now as ready, and remove them from the index of delayed messages."""
        counters = self.counters
        if now_ms > counters.counted_at:
            counters.counted_at = now_ms
        if not counters.delayed:
            return
        if self._levels is None:
            self._make_windows()
        window = self._delayed
        while (key := window.peek()) is not None and keys.parse_instant(key) <= now_ms:
            window.pop()
            self._engine.delete(keys.DELAYED + self.p + key, keys.INDEXES)
            counters.delayed -= 1
            self._dirty[self.p] = self

    # --- Changes -----------------------------------------------------------------------------------------------

    def put(self, entry: StoredMessage) -> None:
        """Add a message, either new or moved from another queue, with its current life.

        The pieces of a large payload must already be stored.
        """
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
            self._list_head(group)

    def change(self, entry: StoredMessage, life: Life) -> None:
        """Give a message its next life."""
        group = entry.envelope.group
        if group is not None:
            self._groups.prepare(group)
        self._dirty[self.p] = self
        self._engine.database.commit.make_keys(entry)
        self._unindex(entry)
        entry.life = life
        self._index(entry, keeps_life=life.state is not State.IN_FLIGHT)
        if group is not None:
            self._list_head(group)

    def drop(self, entry: StoredMessage, *, is_moved: bool = False) -> None:
        """Remove a message.

        `is_moved`: it goes to another queue of this shard, which keeps the pieces of its payload.
        """
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
            self._list_head(group)

    # --- Many plain messages at once ---------------------------------------------------------------------------
    # The following methods do for many messages what `put`, `change` and `drop` do for one. They take plain messages
    # only (`is_plain`). All keys of a plain message follow from its life and are made only when they are needed. Tests
    # compare both ways, key by key.

    def put_all(self, entries: list[StoredMessage], form: AddedForm) -> None:
        """Add new plain messages of one priority that are due now, in order of id."""
        p, engine, life = self.p, self._engine, entries[0].life
        self._dirty[p] = self
        engine.database.commit.add_plain(p, entries, form)
        count, size = len(entries), sum([entry.bytes for entry in entries])
        self.counters.ready += count
        self._count_bytes(size)
        self._totals.messages += count
        visible_at = keys.instant(life.visible_at)
        claimable = [visible_at + entry.id16 for entry in entries]
        if engine.is_os:
            self._changed[p] = self
            self.publish_all(life.priority, claimable)
        else:
            level = p + keys.PRIORITIES[life.priority]
            full_keys = [level + key for key in claimable]
            self._publisher.publish_all_after_commit(self, life.priority, claimable, full_keys)

    def claim_all(self, entries: list[StoredMessage], lives: list[Life]) -> None:
        """Take plain Ready messages into flight. `pop_due` has already removed their keys from the order of claims."""
        p, counters = self.p, self.counters
        self._dirty[p] = self
        self._engine.database.commit.claim_plain(p, entries, lives)
        expiries = _expiries(entries)
        expiries.sort()
        self._leases.push_all(expiries)
        counters.ready -= len(entries)
        counters.in_flight += len(entries)

    def drop_all(self, entries: list[StoredMessage]) -> None:
        """Remove plain messages in flight."""
        p = self.p
        self._dirty[p] = self
        self._engine.database.commit.finish_plain(p, entries)
        self._leases.discard_all(_expiries(entries))
        self.counters.in_flight -= len(entries)
        self._count_bytes(-sum([entry.bytes for entry in entries]))
        self._totals.messages -= len(entries)

    def is_plain(self, entry: StoredMessage) -> bool:
        """Return whether a message is plain, provided that it is Ready or in flight.

        A plain message has only the keys of its state: no group, delay, TTL, state document, payload in pieces, nor a
        separate life record.
        """
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
        """Replace the payload of a message that is not in flight."""
        self._dirty[self.p] = self
        self._engine.database.commit.make_keys(entry)
        if entry.envelope.pieces is not None:
            delete_pieces(self._engine, entry.envelope.pieces)
        self._count_bytes(envelope.bytes - entry.bytes)
        entry.envelope, entry.bytes = store_large_payload(self._engine, envelope), envelope.bytes
        self._engine.put(self.p + entry.id16, encode_message(entry.envelope, entry.life), keys.MESSAGES)

    def save_life(self, entry: StoredMessage) -> None:
        """Write the life of a message in flight again, because it now has a state document."""
        self._engine.database.commit.make_keys(entry)
        self._engine.put(self.p + entry.id16, encode_life(entry.life, has_state=entry.has_state), keys.LEASES)

    def _count_bytes(self, added: int) -> None:
        self.counters.bytes += added
        self._totals.bytes += added

    # --- Indexes -----------------------------------------------------------------------------------------------

    def _index(self, entry: StoredMessage, *, keeps_life: bool) -> None:
        """Write the keys of a message's state, and count it. `keeps_life`: also write a life record that outlasts this
        state."""
        engine, life, id16, counters = self._engine, entry.life, entry.id16, self.counters
        state = life.state
        if state is State.READY:
            counters.ready += 1
            if life.visible_at > counters.counted_at:
                self._put_delayed(_KEY.pack(life.visible_at, id16))
            if life.expires_at is not None:
                key = keys.instant(life.expires_at) + self.p + id16
                engine.insert(keys.TTLS + key, b"", keys.INDEXES)
                self._publisher.ttls.push(key)
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
            self._publisher.kept.push(key)
        if keeps_life:
            name = keys.LIVES + self.p + id16
            engine.put(name, encode_life(life, has_state=entry.has_state), keys.INDEXES)
            entry.has_life = True
        elif entry.has_life:
            engine.delete(keys.LIVES + self.p + id16, keys.INDEXES)
            entry.has_life = False

    def _unindex(self, entry: StoredMessage) -> None:
        """Delete the keys of a message's state, and count it out."""
        engine, life, id16, counters = self._engine, entry.life, entry.id16, self.counters
        state = life.state
        if state is State.READY:
            counters.ready -= 1
            if life.visible_at > counters.counted_at:
                self._delete_delayed(_KEY.pack(life.visible_at, id16))
            if life.expires_at is not None:
                key = keys.instant(life.expires_at) + self.p + id16
                engine.delete(keys.TTLS + key, keys.INDEXES)
                self._publisher.ttls.discard(key)
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
            self._publisher.kept.discard(key)

    def _put_delayed(self, key: bytes) -> None:
        self._engine.insert(keys.DELAYED + self.p + key, b"", keys.INDEXES)
        self._delayed.push(key)
        self.counters.delayed += 1

    def _delete_delayed(self, key: bytes) -> None:
        self._engine.delete(keys.DELAYED + self.p + key, keys.INDEXES)
        self._delayed.discard(key)
        self.counters.delayed -= 1

    def _put_visible(self, priority: int, key: bytes) -> None:
        """Add a message to the order of claims. `key` is visible_at 8 | id 16."""
        engine, p = self._engine, self.p
        engine.insert(p + keys.PRIORITIES[priority] + key, b"", keys.VISIBLE)
        if not engine.is_os:
            self._publisher.publish_after_commit(self, priority, key)
            return
        # With durability "os", claims may find a message before its commit.
        self._changed[p] = self
        levels = self._levels
        window = None if levels is None else levels.get(priority)
        if window is None:
            self.publish(priority, key)
        else:
            window.push(key)

    def _delete_visible(self, priority: int, visible_at: int, id16: bytes) -> None:
        key = _KEY.pack(visible_at, id16)
        self._engine.delete(self.p + keys.PRIORITIES[priority] + key, keys.VISIBLE)
        if not self._engine.is_os:
            self._publisher.unpublish(self, priority, key)
        levels = self._levels
        if levels is None:
            levels = self._make_windows()
        window = levels.get(priority)
        if window is not None:
            window.discard(key)

    def _list_head(self, name: str) -> None:
        """Keep only a group's head in the order of claims, and no message of the group while any of them is in
        flight."""
        delisted, listed = self._groups.update_head(name)
        if delisted is not None:
            self._delete_visible(*delisted)
        if listed is not None:
            priority, visible_at, id16 = listed
            self._put_visible(priority, _KEY.pack(visible_at, id16))


def _expiries(entries: list[StoredMessage]) -> list[bytes]:
    """Return keys of the leases' ends, expires_at 8 | id 16. Messages claimed together usually share the same end."""
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
