"""State that all queues of a shard share: TTL and retention deadlines, uncommitted keys, and notifications.

A claim must not find a message before the commit that made it ready is durable. So the key of such a message stays in
`_uncommitted` until the engine has finished that commit, and only then enters the window of its queue.
"""

from collections.abc import Callable

from holdfast.model.answers import Found
from holdfast.stores.contract import Listener
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import encode_counters
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.window import Window


class Publisher:
    """The publication of messages once they are committed, and the notification of their queues' waiters."""

    def __init__(self, engine: Engine, listener: Listener) -> None:
        self._engine = engine
        self._listener = listener
        # Queues, by their prefix, whose counters must be written with the next commit.
        self.dirty: dict[bytes, QueueState] = {}
        # Queues, by their prefix, in which a claim may find something new: their waiters must be notified.
        self.changed: dict[bytes, QueueState] = {}
        # Keys of the family `vi` that are not yet committed: no claim may find them.
        self._uncommitted: set[bytes] = set()
        # Ids of messages in groups that are not yet committed. Their keys alone do not protect them, because a claim of
        # a group's head takes the messages behind it along.
        self._uncommitted_ids: set[int] = set()
        # Set while messages become ready only because a lease or TTL has ended. After a crash the clock would make them
        # ready again, so claims need not wait for the commit.
        self.ends_by_time = False
        # Deadlines of all queues, instant 8 | P 8 | id 16: ends of TTLs, and of the retention of succeeded messages.
        self.ttls = Window(self.scanner(keys.INDEXES, keys.TTLS), is_empty=False)
        self.kept = Window(self.scanner(keys.INDEXES, keys.KEPT), is_empty=False)

    def scanner(self, family: int, prefix: bytes) -> Callable[[bytes, int], list[bytes]]:
        """Return a function that scans the keys with this prefix in order, for a `Window`.

        The function takes the key to begin at and a limit. It leaves out uncommitted keys, and strips the prefix.
        """
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

    def overdue_ttls(self, queue: QueueState | None, limit: int, now_ms: int) -> list[bytes]:
        """Return up to `limit` TTL deadlines that have passed, of one queue or, without one, of all queues.

        There are few at any time, because the sweeper ends TTLs soon after their deadline.
        """
        first = self.ttls.peek()
        if first is None or keys.parse_instant(first) > now_ms or limit <= 0:
            return []
        bound = keys.instant(now_ms + 1)
        return [key for key in self.ttls.first(limit) if key < bound and (queue is None or key[8:16] == queue.p)]

    # --- Counters ----------------------------------------------------------------------------------------------

    def write_counters(self) -> None:
        """Add the counters of all changed queues to the open commit."""
        for p, queue in self.dirty.items():
            self._engine.put(keys.COUNTERS + p, encode_counters(queue.counters), keys.DIRECTORY)
        self.dirty.clear()

    def close(self) -> None:
        """Drop all references to queues."""
        self.dirty.clear()
        self.changed.clear()

    def forget(self, queue: QueueState) -> None:
        """Write no more counters and send no more notifications for a queue that was removed."""
        self.dirty.pop(queue.p, None)
        self.changed.pop(queue.p, None)

    # --- Claimable messages ------------------------------------------------------------------------------------

    def publish_after_commit(self, queue: QueueState, priority: int, key: bytes) -> None:
        """Let claims find a message once it is committed.

        `key` is visible_at 8 | id 16. A message that becomes ready only because a lease or TTL has ended can be claimed
        at once, unless its enqueue is not yet committed.
        """
        if self.ends_by_time and keys.parse_id(key[8:]) not in self._uncommitted_ids:
            queue.publish(priority, key)
            self.changed[queue.p] = queue
            return
        full_key = keys.level(queue.p, priority) + key
        self._uncommitted.add(full_key)

        def publish() -> None:
            self.changed[queue.p] = queue
            # The key is missing if the message changed again before this commit.
            if full_key in self._uncommitted:
                self._uncommitted.discard(full_key)
                queue.publish(priority, key)

        self._engine.publish_after_commit(publish)

    def publish_all_after_commit(
        self, queue: QueueState, priority: int, claimable: list[bytes], full_keys: list[bytes]
    ) -> None:
        """Let claims find messages of one priority once they are committed.

        `claimable` are their keys as in `publish_after_commit`, in order; `full_keys` the same keys with the prefix of
        the queue and the priority, as stored in the family `vi`.
        """
        self._uncommitted.update(full_keys)

        def publish() -> None:
            self.changed[queue.p] = queue
            uncommitted = self._uncommitted
            if uncommitted.issuperset(full_keys):
                uncommitted.difference_update(full_keys)
                queue.publish_all(priority, claimable)
                return
            # Some of the messages changed again before this commit.
            remaining = [key for key, full_key in zip(claimable, full_keys, strict=True) if full_key in uncommitted]
            uncommitted.difference_update(full_keys)
            if remaining:
                queue.publish_all(priority, remaining)

        self._engine.publish_after_commit(publish)

    def unpublish(self, queue: QueueState, priority: int, key: bytes) -> None:
        """Cancel the publication of a message that changes again before its commit."""
        if self._uncommitted:
            self._uncommitted.discard(keys.level(queue.p, priority) + key)

    def note_uncommitted(self, entry: StoredMessage) -> None:
        """Keep claims of a group from taking this message along before it is committed."""
        if not self._engine.is_os:
            self._uncommitted_ids.add(entry.envelope.id)
            self._engine.publish_after_commit(lambda: self._uncommitted_ids.discard(entry.envelope.id))

    def is_committed(self, entry: StoredMessage) -> bool:
        """Return whether a claim of its group may take this message along."""
        return entry.envelope.id not in self._uncommitted_ids

    def is_published(self, queue: QueueState, found: Found) -> bool:
        """Return whether claims can find a message that is due, or whether its commit is still to be made durable."""
        life = found.life
        key = keys.instant(life.visible_at) + keys.id_bytes(found.envelope.id)
        return keys.level(queue.p, life.priority) + key not in self._uncommitted

    # --- Notifications -----------------------------------------------------------------------------------------

    def notify_after_commit(self, queue: QueueState) -> None:
        """Notify the queue's waiters after the commit, though no message was published: a claim may find more."""

        def note() -> None:
            self.changed[queue.p] = queue

        self._engine.publish_after_commit(note)

    def notify_waiters(self) -> None:
        """Notify the waiters of every changed queue, once for each queue."""
        if not self.changed:
            return
        changed = list(self.changed.values())
        self.changed.clear()
        for queue in changed:
            if self._listener.is_waited_for(queue.row.ref) and (next_at := self.next_at(queue)) is not None:
                self._listener.ready(queue.row.ref, next_at)

    def next_at(self, queue: QueueState) -> int | None:
        """Return when a claim may next find a message in the queue; in the past if it may find one now.

        Return None if time alone will not make one available.
        """
        next_at = queue.next_at()
        if queue.has_groups and not queue.row.is_paused and (ttl := self.ttls.peek()) is not None:
            # A delayed head blocks its group. When its TTL ends, the message behind it becomes the head.
            ends_at = keys.parse_instant(ttl)
            return ends_at if next_at is None else min(next_at, ends_at)
        return next_at
