"""Changes of messages: each takes a message along the life cycle, with its indexes and its event."""

from holdfast.model import lifecycle
from holdfast.model.lifecycle import TRANSITIONS, Cause, Change
from holdfast.model.message import Draft, State, seal
from holdfast.model.requests import StateDocument
from holdfast.stores.contract import Listener
from holdfast.stores.pieces import PIECES_ABOVE
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.journal import RocksJournal
from holdfast.stores.rocks.pieces import in_pieces
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.shelf import Entry, Shelf
from holdfast.stores.rocks.staging import Staging
from holdfast.stores.rocks.window import Window

_ENQUEUED = TRANSITIONS[None, Cause.ENQUEUE].event


class Changes:
    def __init__(
        self,
        engine: Engine,
        board: Board,
        catalog: Catalog,
        entries: Entries,
        journal: RocksJournal,
        seen: SeenKeys,
        staging: Staging,
        listener: Listener,
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._entries = entries
        self._journal = journal
        self._seen = seen
        self._staging = staging
        self._listener = listener

    # --- One message -------------------------------------------------------------------------------------------

    def put_new(
        self, shelf: Shelf, draft: Draft, id: int, default_ttl_ms: int | None, now_ms: int, reason: str | None = None
    ) -> None:
        envelope = seal(draft, id, now_ms)
        if draft.pieces is not None:
            self._staging.take(draft.pieces)
        elif len(draft.payload) > PIECES_ABOVE:
            envelope = in_pieces(self._engine, envelope)
        life = lifecycle.first_life(draft, default_ttl_ms, now_ms)
        entry = Entry(shelf.p, envelope, life, keys.id_bytes(id), draft.bytes)
        if draft.group is not None:
            self._board.note_uncommitted(entry)
        shelf.put(entry)
        self._entries.remember(entry)
        assert _ENQUEUED is not None
        self._journal.append(shelf, entry, _ENQUEUED, now_ms, reason=reason)
        if life.expires_at is not None:
            self._listener.deadline(life.expires_at)
        if draft.key is not None:
            until = now_ms + shelf.row.policy.dedup_window_ms
            self._seen.remember(shelf, draft.key, entry, until)
            self._listener.deadline(until)

    def apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        """Take one step of a message: its life, its indexes and its event."""
        life = change.life
        engine = self._engine
        was_mid_change = engine.is_mid_change
        if entry.envelope.group is not None:
            shelf.prepare([entry.envelope.group])
        engine.is_mid_change = True
        if change.event is not None:
            self._journal.append(shelf, entry, change.event, now_ms, life, reason=change.reason, error=change.error)
        if life is None or life.is_gone:
            self._entries.forget(entry)
            shelf.drop(entry)
        else:
            shelf.change(entry, life)
            if life.expires_at is not None and life.state is State.READY:
                self._listener.deadline(life.expires_at)
            if life.keep_until is not None:
                self._listener.deadline(life.keep_until)
        engine.is_mid_change = was_mid_change

    def move(
        self, shelf: Shelf, target: Shelf, entry: Entry, state: StateDocument, change: Change, now_ms: int
    ) -> None:
        """Both queues' journals tell of it, so that each one's counts can be made up from its own events."""
        assert change.event is not None
        self._entries.forget(entry)
        shelf.drop(entry, is_moved=True)
        entry.has_life = False
        target.put(entry)
        if entry.has_state:
            self._entries.put_state(target, entry, state)
        self._journal.append(shelf, entry, change.event, now_ms, reason=f"to {target.row.ref}")
        self._journal.append(target, entry, change.event, now_ms, reason=f"from {shelf.row.ref}")

    # --- What time ends ----------------------------------------------------------------------------------------

    def end_by_time(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        """Return a queue's expired leases and end its TTLs."""
        self._board.ends_by_time = True
        changed = self._return_expired(shelf, limit, now_ms)
        for key in self._board.overdue_ttls(shelf, limit - changed, now_ms):
            self._end_ttl(key, now_ms)
            changed += 1
        self._board.ends_by_time = False
        return changed

    def end_ttls(self, overdue: list[bytes], now_ms: int) -> None:
        self._board.ends_by_time = True
        for key in overdue:
            self._end_ttl(key, now_ms)
        self._board.ends_by_time = False

    def _return_expired(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        returned = 0
        while returned < limit and (first := shelf.first_expiry()) is not None and first[0] <= now_ms:
            expires_at, id16 = first
            entry = self._entries.get(shelf, keys.parse_id(id16))
            lease = None if entry is None else entry.life.lease
            if entry is None or lease is None or lease.expires_at != expires_at:
                shelf.heal_expiry(expires_at, id16)
            else:
                change = lifecycle.expire(entry.life, entry.envelope, shelf.row.policy, now_ms)
                self.apply(shelf, entry, change, now_ms)
            returned += 1
        return returned

    def _end_ttl(self, key: bytes, now_ms: int) -> None:
        shelf, entry = self._owner_of(key)
        life = None if entry is None else entry.life
        if (
            shelf is None
            or entry is None
            or life is None
            or life.state is not State.READY
            or life.expires_at != keys.parse_instant(key)
        ):
            self._heal(self._board.ttls, keys.TTLS, key)
        else:
            shelf.prepare()
            shelf.count_due(now_ms)
            self.apply(shelf, entry, lifecycle.end_by_ttl(life, shelf.row.policy, now_ms), now_ms)

    def end_kept(self, limit: int, now_ms: int) -> int:
        """Forget what succeeded and was kept long enough."""
        ended = 0
        kept = self._board.kept
        while ended < limit and (key := kept.peek()) is not None and keys.parse_instant(key) <= now_ms:
            shelf, entry = self._owner_of(key)
            if shelf is None or entry is None or entry.life.keep_until != keys.parse_instant(key):
                self._heal(kept, keys.KEPT, key)
            else:
                shelf.prepare()
                self._entries.forget(entry)
                shelf.drop(entry)
            ended += 1
        return ended

    def _owner_of(self, key: bytes) -> tuple[Shelf | None, Entry | None]:
        """Queue and message behind a deadline: when 8 | P 8 | id 16."""
        shelf = self._catalog.of_prefix(key[8:16])
        return shelf, None if shelf is None else self._entries.get(shelf, keys.parse_id(key[16:]))

    def _heal(self, window: Window, space: bytes, key: bytes) -> None:
        """Drop an index entry that has no message behind it."""
        window.discard(key)
        self._engine.delete(space + key, self._engine.database.families.ix)

    # --- Queues being deleted ----------------------------------------------------------------------------------

    def delete_some(self, reader: Reader, shelf: Shelf, limit: int, now_ms: int) -> int:
        """Carry on the deletion of a queue; with its last message goes the queue."""
        doomed = reader.first(shelf, limit)
        for entry in doomed:
            self.apply(shelf, entry, lifecycle.remove(entry.life, "queue deleted"), now_ms)
        if not shelf.counters.messages and limit:
            ix = self._engine.database.families.ix
            for space in keys.PER_QUEUE_SPACES:
                self._engine.delete_range(space + shelf.p, keys.after(space + shelf.p), ix)
            self._board.forget(shelf)
            self._catalog.remove(shelf)
        return len(doomed) + 1
