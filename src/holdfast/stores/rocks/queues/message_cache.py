"""Messages read from disk, and those kept in memory because they will be wanted soon."""

from collections.abc import Iterable
from itertools import islice

import msgspec

from holdfast.model.requests import StateDocument
from holdfast.stores.formats.message_record import decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage

# Limits of the cache of messages, for all shards together. It keeps messages that were just enqueued or are in flight,
# and drops the oldest first.
_MAX_CACHED = 50_000
_MAX_CACHED_BYTES = 64 << 20

# How to change this format: a `StateDocument` is stored as a MessagePack map by field name. A new field needs a
# default, which documents without it decode to; never rename a field or change its type.
_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(StateDocument).decode


class MessageCache:
    def __init__(self, engine: Engine, shards: int) -> None:
        """`shards`: the number of shards that share the memory."""
        self._engine = engine
        self._most, self._most_bytes = _MAX_CACHED // shards, _MAX_CACHED_BYTES // shards
        self._cached: dict[int, StoredMessage] = {}
        self._cached_bytes = 0

    # --- Memory ------------------------------------------------------------------------------------------------

    def remember(self, entry: StoredMessage) -> None:
        cached = self._cached
        if entry.envelope.id not in cached:
            cached[entry.envelope.id] = entry
            self._cached_bytes += entry.bytes if entry.envelope.pieces is None else _weight(entry)
            while len(cached) > self._most or self._cached_bytes > self._most_bytes:
                self._forget_oldest()

    def remember_all(self, entries: list[StoredMessage]) -> None:
        """Remember messages that are whole in memory."""
        cached = self._cached
        new = [entry for entry in entries if entry.envelope.id not in cached]
        if not new:
            return
        cached.update({entry.envelope.id: entry for entry in new})
        self._cached_bytes += sum([entry.bytes for entry in new])
        while len(self._cached) > self._most or self._cached_bytes > self._most_bytes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """An eighth of them at once: to find the first entry of a dict is to look through all that was taken from its
        front since it last grew."""
        oldest = list(islice(self._cached.values(), max(1, len(self._cached) // 8)))
        for entry in oldest:
            self.forget(entry)

    def forget(self, entry: StoredMessage) -> None:
        if self._cached.pop(entry.envelope.id, None) is not None:
            self._cached_bytes -= _weight(entry)

    def forget_all(self, entries: list[StoredMessage]) -> None:
        """Forget messages that are whole in memory."""
        pop = self._cached.pop
        forgotten = [entry.bytes for entry in entries if pop(entry.envelope.id, None) is not None]
        self._cached_bytes -= sum(forgotten)

    # --- Disk --------------------------------------------------------------------------------------------------

    def get(self, shelf: QueueState, id: int) -> StoredMessage | None:
        entry = self._in_memory(shelf, id)
        return self._read(shelf, [id])[0] if entry is None else entry

    def _in_memory(self, shelf: QueueState, id: int) -> StoredMessage | None:
        """Return a message that is in memory: one that was kept, or has no keys yet and lies nowhere else."""
        entry = self._cached.get(id) or self._engine.database.commit.keyless(id)
        return entry if entry is not None and entry.p == shelf.p else None

    def load(self, shelf: QueueState, wanted: list[int]) -> list[StoredMessage | None]:
        """Entries of these ids, from memory or disk; None where there is none."""
        cached = self._cached
        found = [cached.get(id) for id in wanted]
        p = shelf.p
        for entry in found:
            if entry is None or entry.p != p:
                break
        else:
            return found
        found = [self._in_memory(shelf, id) for id in wanted]
        missing = [id for id, entry in zip(wanted, found, strict=True) if entry is None]
        read = dict(zip(missing, self._read(shelf, missing), strict=True)) if missing else {}
        return [read.get(id, entry) for id, entry in zip(wanted, found, strict=True)]

    def by_id(self, shelf: QueueState, wanted: Iterable[int]) -> dict[int, StoredMessage]:
        """Return the entries of these ids, from memory or disk; missing ones are left out."""
        cached, p = self._cached, shelf.p
        found: dict[int, StoredMessage] = {}
        # An id may be wanted twice. Read twice it would be two entries, and memory would keep the one that the caller
        # does not change.
        missing: dict[int, None] = {}
        for id in wanted:
            entry = cached.get(id)
            if entry is None or entry.p != p:
                entry = self._in_memory(shelf, id)
            if entry is not None:
                found[id] = entry
            else:
                missing[id] = None
        if missing:
            for id, entry in zip(missing, self._read(shelf, list(missing)), strict=True):
                if entry is not None:
                    found[id] = entry
                    self.remember(entry)
        return found

    def _read(self, shelf: QueueState, wanted: list[int]) -> list[StoredMessage | None]:
        self._engine.write()
        database = self._engine.database
        names = [shelf.p + keys.id_bytes(id) for id in wanted]
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
                    shelf.p,
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

    def state(self, shelf: QueueState, entry: StoredMessage) -> StateDocument:
        if not entry.has_state:
            return StateDocument()
        self._engine.write()
        raw = self._engine.database.get(keys.INDEXES, keys.STATES + shelf.p + entry.id16)
        return StateDocument() if raw is None else _decode_state(raw)

    def put_state(self, shelf: QueueState, entry: StoredMessage, state: StateDocument) -> None:
        self._engine.put(keys.STATES + shelf.p + entry.id16, _encode_state(state), keys.INDEXES)
        if not entry.has_state:
            entry.has_state = True
            shelf.save_life(entry)


def _weight(entry: StoredMessage) -> int:
    """What of a message is in memory: not a payload in pieces."""
    pieces = entry.envelope.pieces
    return entry.bytes if pieces is None else entry.bytes - pieces.size
