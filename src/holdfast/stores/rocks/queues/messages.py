"""Messages of a queue: loaded from disk, cached in memory, and selected for reads."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile

import msgspec

from holdfast.model.message import State
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import is_over
from holdfast.stores.formats.message_record import decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage

# Limits of the cache, for all shards of a store together.
_MAX_CACHED = 50_000
_MAX_CACHED_BYTES = 64 << 20

# Messages loaded at once.
_CHUNK = 500

_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(StateDocument).decode


class MessageCache:
    """A loader of messages with a cache of the ones likely to be needed soon: just enqueued, or in flight.

    When a limit is exceeded, the messages that were added first are removed.
    """

    def __init__(self, engine: Engine, shards: int) -> None:
        """`shards`: the number of shards that share the memory."""
        self._engine = engine
        self._max_cached, self._max_cached_bytes = _MAX_CACHED // shards, _MAX_CACHED_BYTES // shards
        self._cached: dict[int, StoredMessage] = {}
        self._cached_bytes = 0

    # --- Memory ------------------------------------------------------------------------------------------------

    def remember(self, entry: StoredMessage) -> None:
        """Add a message to the cache."""
        cached = self._cached
        if entry.envelope.id not in cached:
            cached[entry.envelope.id] = entry
            self._cached_bytes += entry.bytes if entry.envelope.pieces is None else _weight(entry)
            while len(cached) > self._max_cached or self._cached_bytes > self._max_cached_bytes:
                self._forget_oldest()

    def remember_all(self, entries: list[StoredMessage]) -> None:
        """Add messages whose payloads are all in memory."""
        cached = self._cached
        new = [entry for entry in entries if entry.envelope.id not in cached]
        if not new:
            return
        cached.update({entry.envelope.id: entry for entry in new})
        self._cached_bytes += sum([entry.bytes for entry in new])
        while len(self._cached) > self._max_cached or self._cached_bytes > self._max_cached_bytes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remove the oldest eighth of the messages at once.

        Removing them one by one would be slow: finding a dict's first entry scans all entries deleted from its front
        since it last grew.
        """
        oldest = list(islice(self._cached.values(), max(1, len(self._cached) // 8)))
        for entry in oldest:
            self.forget(entry)

    def forget(self, entry: StoredMessage) -> None:
        """Remove a message from the cache. It stays in the store."""
        if self._cached.pop(entry.envelope.id, None) is not None:
            self._cached_bytes -= _weight(entry)

    def forget_all(self, entries: list[StoredMessage]) -> None:
        """Remove messages whose payloads are all in memory."""
        pop = self._cached.pop
        forgotten = [entry.bytes for entry in entries if pop(entry.envelope.id, None) is not None]
        self._cached_bytes -= sum(forgotten)

    # --- Disk --------------------------------------------------------------------------------------------------

    def get(self, queue: QueueState, id: int) -> StoredMessage | None:
        """Return the message with this id, from memory or disk; None if the queue has none."""
        entry = self._in_memory(queue, id)
        return self._read(queue, [id])[0] if entry is None else entry

    def _in_memory(self, queue: QueueState, id: int) -> StoredMessage | None:
        """Return a message that is cached, or that has no keys yet and therefore exists in memory only."""
        entry = self._cached.get(id) or self._engine.database.commit.keyless(id)
        return entry if entry is not None and entry.p == queue.p else None

    def load(self, queue: QueueState, wanted: list[int]) -> list[StoredMessage | None]:
        """Return the messages with these ids in order, from memory or disk; None for a missing one."""
        cached = self._cached
        found = [cached.get(id) for id in wanted]
        p = queue.p
        for entry in found:
            if entry is None or entry.p != p:
                break
        else:
            return found
        found = [self._in_memory(queue, id) for id in wanted]
        missing = [id for id, entry in zip(wanted, found, strict=True) if entry is None]
        read = dict(zip(missing, self._read(queue, missing), strict=True)) if missing else {}
        return [read.get(id, entry) for id, entry in zip(wanted, found, strict=True)]

    def by_id(self, queue: QueueState, wanted: Iterable[int]) -> dict[int, StoredMessage]:
        """Return the messages with these ids by id, from memory or disk, and cache them. Missing ones are left out."""
        cached, p = self._cached, queue.p
        found: dict[int, StoredMessage] = {}
        # An id may occur twice. Reading it twice would make two objects, and the cached one might not be the one that
        # the caller changes.
        missing: dict[int, None] = {}
        for id in wanted:
            entry = cached.get(id)
            if entry is None or entry.p != p:
                entry = self._in_memory(queue, id)
            if entry is not None:
                found[id] = entry
            else:
                missing[id] = None
        if missing:
            for id, entry in zip(missing, self._read(queue, list(missing)), strict=True):
                if entry is not None:
                    found[id] = entry
                    self.remember(entry)
        return found

    def _read(self, queue: QueueState, wanted: list[int]) -> list[StoredMessage | None]:
        """Read messages from disk. A lease's record has the life of a message in flight, a life record that of any
        other message which has changed since it was enqueued."""
        self._engine.write()
        database = self._engine.database
        names = [queue.p + keys.id_bytes(id) for id in wanted]
        records = database.get_many(keys.MESSAGES, names)
        leased = database.get_many(keys.LEASES, names)
        lives = database.get_many(keys.INDEXES, [keys.LIVES + name for name in names])
        entries: list[StoredMessage | None] = []
        for id, name, record, lease, own in zip(wanted, names, records, leased, lives, strict=True):
            if record is None:
                entries.append(None)
                continue
            message = decode_message(id, record)
            envelope, life, has_state = message.envelope, message.first, False
            if lease is not None:
                has_state, life = decode_life(lease)
            elif own is not None:
                has_state, life = decode_life(own)
            entries.append(
                StoredMessage(
                    queue.p,
                    envelope,
                    life,
                    name[keys.P_SIZE :],
                    envelope.bytes,
                    has_life=own is not None,
                    has_state=has_state,
                )
            )
        return entries

    # --- State documents ---------------------------------------------------------------------------------------

    def state(self, queue: QueueState, entry: StoredMessage) -> StateDocument:
        """Return the state document of a message."""
        if not entry.has_state:
            return StateDocument()
        self._engine.write()
        raw = self._engine.database.get(keys.INDEXES, keys.STATES + queue.p + entry.id16)
        return StateDocument() if raw is None else _decode_state(raw)

    def put_state(self, queue: QueueState, entry: StoredMessage, state: StateDocument) -> None:
        """Replace the state document of a message."""
        self._engine.put(keys.STATES + queue.p + entry.id16, _encode_state(state), keys.INDEXES)
        if not entry.has_state:
            entry.has_state = True
            queue.save_life(entry)


class MessageReads:
    """Selections of a queue's messages by id, by filter, or in the order of claims."""

    def __init__(self, engine: Engine, cache: MessageCache) -> None:
        self._engine = engine
        self._cache = cache

    def first(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        """Return the queue's first messages by id, in any state."""
        return list(islice(self._loaded(queue, self._ids(queue, keys.MESSAGES, queue.p, None)), limit))

    def matching(
        self, queue: QueueState, states: frozenset[State], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[StoredMessage]:
        """Return up to `limit` messages in one of the states that the filter matches, by id, starting after the id
        `after`."""
        ids: Iterable[int]
        if which.ids is not None:
            ids = sorted(id for id in which.ids if after is None or id > after)
        elif states == {State.FAILED}:
            ids = self._ids(queue, keys.INDEXES, keys.DEAD + queue.p, after)
        elif states == {State.IN_FLIGHT}:
            ids = self._ids(queue, keys.LEASES, queue.p, after)
        else:
            ids = self._ids(queue, keys.MESSAGES, queue.p, after)
        found = (
            entry
            for entry in self._loaded(queue, ids)
            if entry.life.state in states and which.matches(entry.envelope, entry.life, now_ms)
        )
        return list(islice(found, limit))

    def peek_due(self, queue: QueueState, limit: int, now_ms: int) -> list[StoredMessage]:
        """Return the messages that claims would take next, in their order.

        A claim first ends the TTLs that have passed. So such messages are left out here, and a group whose head's TTL
        has ended takes the position of its first remaining message.
        """
        ended = self._groups_of_overdue(queue, now_ms)
        moved = sorted(
            (batch for group in ended if (batch := self._due_of_group(queue, group, now_ms))),
            key=lambda batch: _claim_position(batch[0]),
        )
        listed = self._listed_batches(queue, ended, now_ms)
        batches = heapq.merge(listed, moved, key=lambda batch: _claim_position(batch[0]))
        return list(islice(chain.from_iterable(batches), limit))

    def _listed_batches(self, queue: QueueState, excluded: set[str], now_ms: int) -> Iterator[list[StoredMessage]]:
        """Yield the due messages that the order of claims lists. A group's head brings its batch; the groups in
        `excluded` are skipped."""
        self._engine.write()
        due = keys.instant(now_ms + 1)
        for priority in queue.priorities():
            level = keys.level(queue.p, priority)
            visible = self._engine.database.scan(keys.VISIBLE, level, level + due)
            for entry in self._loaded(queue, (keys.parse_id(key[-keys.ID_SIZE :]) for key in visible)):
                group = entry.envelope.group
                if group is None and not is_over(entry.life, now_ms):
                    yield [entry]
                elif group is not None and group not in excluded:
                    yield self._due_of_group(queue, group, now_ms)

    def _due_of_group(self, queue: QueueState, group: str, now_ms: int) -> list[StoredMessage]:
        """Return the messages that a claim of the group's head would take."""
        if queue.is_busy(group):
            return []
        ids = [keys.parse_id(id16) for id16 in queue.group_batch(group, _CHUNK)]
        living = (entry for entry in self._loaded(queue, ids) if not is_over(entry.life, now_ms))
        return list(takewhile(lambda entry: entry.life.visible_at <= now_ms, living))

    def _groups_of_overdue(self, queue: QueueState, now_ms: int) -> set[str]:
        """Return the groups in which a TTL has passed and the sweep has not yet ended it.

        There are few of them unless the sweeper is behind.
        """
        self._engine.write()
        upper = keys.TTLS + keys.instant(now_ms + 1)
        overdue = (
            keys.parse_id(key[-keys.ID_SIZE :])
            for key in self._engine.database.scan(keys.INDEXES, keys.TTLS, upper)
            if key[9:17] == queue.p
        )
        return {entry.envelope.group for entry in self._loaded(queue, overdue) if entry.envelope.group is not None}

    def _ids(self, queue: QueueState, family: int, space: bytes, after: int | None) -> Iterator[int]:
        """Yield the ids at the end of a space's keys, starting after `after`."""
        self._engine.write()
        lower = space if after is None else space + keys.id_bytes(after) + b"\0"
        for key in self._engine.database.scan(family, lower, keys.after(space)):
            yield keys.parse_id(key[-keys.ID_SIZE :])

    def _loaded(self, queue: QueueState, ids: Iterable[int]) -> Iterator[StoredMessage]:
        """Yield the messages with these ids; missing ones are skipped."""
        remaining = iter(ids)
        while chunk := list(islice(remaining, _CHUNK)):
            for entry in self._cache.load(queue, chunk):
                if entry is not None:
                    yield entry


def _claim_position(entry: StoredMessage) -> tuple[int, int, bytes]:
    return entry.life.priority, entry.life.visible_at, entry.id16


def _weight(entry: StoredMessage) -> int:
    """Return how many bytes of a message are in memory. A payload in pieces is not."""
    pieces = entry.envelope.pieces
    return entry.bytes if pieces is None else entry.bytes - pieces.size
