"""What all queues of a store share: deadlines, what is not yet committed, and who must be told of what."""

from collections.abc import Callable

from holdfast.stores.contract import Listener
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import encode_counters
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.window import Window


class Publisher:
    def __init__(self, engine: Engine, listener: Listener) -> None:
        self._engine = engine
        self._listener = listener
        # Queues whose counters the open batch must carry.
        self.dirty: dict[bytes, QueueState] = {}
        # Queues in which something was shown since the last commit: their waiters are to be told.
        self.shown: dict[bytes, QueueState] = {}
        # Keys of `vi` that are written but not committed: no claim may find them yet.
        self._uncommitted: set[bytes] = set()
        # The same for messages of groups, which would be taken along behind their head.
        self._uncommitted_ids: set[int] = set()
        # What is shown now is so by the clock alone: the end of a lease or a TTL.
        self.ends_by_time = False
        # Deadlines of all queues, when 8 | P 8 | id 16: ends of TTLs, and of keeping what succeeded.
        self.ttls = Window(self.scanner(keys.INDEXES, keys.TTLS), is_empty=False)
        self.kept = Window(self.scanner(keys.INDEXES, keys.KEPT), is_empty=False)

    def scanner(self, family: int, prefix: bytes) -> Callable[[bytes, int], list[bytes]]:
        """Reads the keys of a space in order, without its prefix; not those that are not yet committed."""
        upper, size = keys.after(prefix), len(prefix)

        def scan(from_key: bytes, limit: int) -> list[bytes]:
            self._engine.write()
            found: list[bytes] = []
            for key in self._engine.database.scan(family, prefix + from_key, upper):
                if key not in self._uncommitted:
                    found.append(key[size:])
                    if len(found) == limit:
                        break
            return found

        return scan

    def overdue_ttls(self, shelf: QueueState | None, limit: int, now_ms: int) -> list[bytes]:
        """Ends of TTLs that have come, of one queue or of all. Seldom any: the sweeper sees to them."""
        first = self.ttls.peek()
        if first is None or keys.parse_instant(first) > now_ms or limit <= 0:
            return []
        bound = keys.instant(now_ms + 1)
        return [key for key in self.ttls.first(limit) if key < bound and (shelf is None or key[8:16] == shelf.p)]

    # --- Counters ----------------------------------------------------------------------------------------------

    def write_counters(self) -> None:
        for p, shelf in self.dirty.items():
            self._engine.put(keys.COUNTERS + p, encode_counters(shelf.counters), keys.DIRECTORY)
        self.dirty.clear()

    def close(self) -> None:
        self.dirty.clear()
        self.shown.clear()

    def forget(self, shelf: QueueState) -> None:
        """The queue is gone: nothing of it is to be written or told any more."""
        self.dirty.pop(shelf.p, None)
        self.shown.pop(shelf.p, None)

    # --- What may be claimed -----------------------------------------------------------------------------------

    def show_after_commit(self, shelf: QueueState, priority: int, key: bytes) -> None:
        if self.ends_by_time and keys.parse_id(key[8:]) not in self._uncommitted_ids:
            # The clock alone says it, and says it again after a crash.
            shelf.show(priority, key)
            self.shown[shelf.p] = shelf
            return
        full_key = keys.level(shelf.p, priority) + key
        self._uncommitted.add(full_key)

        def show() -> None:
            self.shown[shelf.p] = shelf
            if full_key in self._uncommitted:  # else it went before it was ever seen
                self._uncommitted.discard(full_key)
                shelf.show(priority, key)

        self._engine.publish_after_commit(show)

    def show_all_after_commit(self, shelf: QueueState, priority: int, shown: list[bytes], visible: list[bytes]) -> None:
        """Let claims find messages once they are committed. `visible` are their whole keys in the family `vi`, `shown`
        the same without the level."""
        self._uncommitted.update(visible)

        def show() -> None:
            self.shown[shelf.p] = shelf
            uncommitted = self._uncommitted
            if uncommitted.issuperset(visible):
                uncommitted.difference_update(visible)
                shelf.show_all(priority, shown)
                return
            # Some went before they were ever seen.
            remaining = [key for key, whole in zip(shown, visible, strict=True) if whole in uncommitted]
            uncommitted.difference_update(visible)
            if remaining:
                shelf.show_all(priority, remaining)

        self._engine.publish_after_commit(show)

    def hide_all(self, visible: list[bytes]) -> None:
        """They go, perhaps before they were shown."""
        if self._uncommitted:
            self._uncommitted.difference_update(visible)

    def hide(self, shelf: QueueState, priority: int, key: bytes) -> None:
        """It goes before it was shown."""
        if self._uncommitted:
            self._uncommitted.discard(keys.level(shelf.p, priority) + key)

    def note_uncommitted(self, entry: StoredMessage) -> None:
        """A message of a group that no batch may take along before it is committed."""
        if not self._engine.is_os:
            self._uncommitted_ids.add(entry.envelope.id)
            self._engine.publish_after_commit(lambda: self._uncommitted_ids.discard(entry.envelope.id))

    def is_committed(self, entry: StoredMessage) -> bool:
        return entry.envelope.id not in self._uncommitted_ids

    # --- Who is told -------------------------------------------------------------------------------------------

    def tell_after_commit(self, shelf: QueueState) -> None:
        """Something about the queue changes what a claim finds, though nothing new is shown."""

        def note() -> None:
            self.shown[shelf.p] = shelf

        self._engine.publish_after_commit(note)

    def tell_shown(self) -> None:
        """Those who wait for what was shown, once per queue."""
        if not self.shown:
            return
        shown = list(self.shown.values())
        self.shown.clear()
        for shelf in shown:
            self.tell(shelf)

    def tell(self, shelf: QueueState) -> None:
        if self._listener.is_waited_for(shelf.row.ref) and (next_at := self.next_at(shelf)) is not None:
            self._listener.ready(shelf.row.ref, next_at)

    def next_at(self, shelf: QueueState) -> int | None:
        """When a claim on the queue may next find something."""
        next_at = shelf.next_at()
        if shelf.has_groups and not shelf.row.is_paused and (ttl := self.ttls.peek()) is not None:
            # The end of a head that is not due yet frees its group.
            ends_at = keys.parse_instant(ttl)
            return ends_at if next_at is None else min(next_at, ends_at)
        return next_at
