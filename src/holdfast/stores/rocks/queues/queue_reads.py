"""Reading one queue: the order in which claims take its messages, its leases, its groups and its counts.

The head of each index is kept in memory, as a `Window`.
"""

from typing import TYPE_CHECKING

from holdfast.model.answers import Counts
from holdfast.model.message import State
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.groups import RocksGroups
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.window import Window
from holdfast.stores.values import QueueRow

if TYPE_CHECKING:
    from holdfast.stores.rocks.queues.publisher import Publisher
    from holdfast.stores.rocks.queues.queue_state import QueueState

# A module-level name, because looking up an enum member costs as much as the rest of a comparison.
_READY = State.READY


class QueueReads:
    """The indexes of one queue, as claims and sweeps read them."""

    __slots__ = (
        *("_changed", "_delayed", "_dirty", "_engine", "_groups", "_leases", "_levels", "_publisher", "_totals"),
        *("counters", "p", "row"),
    )

    # `_make_windows` makes these three along with the levels.
    # Ends of leases: expires_at 8 | id 16.
    _leases: Window
    # Delayed messages: visible_at 8 | id 16.
    _delayed: Window
    _groups: RocksGroups

    def __init__(
        self, row: QueueRow, engine: Engine, counters: Counters, totals: Totals, publisher: "Publisher"
    ) -> None:
        """`totals`: the counts of the queue's tenant."""
        self.row = row
        self.p = keys.prefix(row.tenant_id, row.queue_id)
        self.counters = counters
        self._totals = totals
        self._engine = engine
        self._publisher = publisher
        self._dirty: dict[bytes, QueueState] = publisher.dirty
        self._changed: dict[bytes, QueueState] = publisher.changed
        # For each priority in use, the messages that a claim may take: visible_at 8 | id 16. None as long as no window
        # has been made; the counters are then unchanged since they were read from disk.
        self._levels: dict[int, Window] | None = None

    # --- Windows -----------------------------------------------------------------------------------------------

    def _make_windows(self) -> dict[int, Window]:
        """Return the levels, after making all windows if there are none yet.

        They are made on first use, because a store may hold many queues that are never used.
        """
        if self._levels is None:
            counters, scanner = self.counters, self._publisher.scanner
            self._leases = Window(scanner(keys.EXPIRIES, self.p), is_empty=not counters.in_flight)
            self._delayed = Window(scanner(keys.INDEXES, keys.DELAYED + self.p), is_empty=not counters.delayed)
            self._groups = RocksGroups(self.p, self._engine, scanner, is_empty=not counters.messages)
            self._levels = self._find_levels() if counters.ready else {}
        return self._levels

    def _find_levels(self) -> dict[int, Window]:
        """Return a window for each priority in use. Finding them takes one seek for each."""
        self._engine.write()
        levels: dict[int, Window] = {}
        lower, upper = self.p, keys.after(self.p)
        while (key := next(self._engine.database.scan(keys.VISIBLE, lower, upper), None)) is not None:
            priority = key[keys.P_SIZE]
            levels[priority] = self._make_level(priority, is_empty=False)
            if priority == 255:
                break
            lower = keys.level(self.p, priority + 1)
        return levels

    def _make_level(self, priority: int, *, is_empty: bool) -> Window:
        return Window(self._publisher.scanner(keys.VISIBLE, keys.level(self.p, priority)), is_empty=is_empty)

    # --- The order of claims -----------------------------------------------------------------------------------

    def priorities(self) -> list[int]:
        """Return the priorities in use, the first to be claimed first."""
        levels = self._levels
        return sorted(self._make_windows() if levels is None else levels)

    def first_visible(self, priority: int) -> bytes | None:
        """Return the first key of a level, visible_at 8 | id 16. Remove the level if it is empty."""
        levels = self._make_windows()
        window = levels.get(priority)
        if window is None:
            return None
        key = window.peek()
        if key is None:
            del levels[priority]
        return key

    def pop_due(self, priority: int, limit: int, bound: bytes) -> list[bytes]:
        """Remove and return up to `limit` keys of a level that are below `bound`."""
        levels = self._levels
        window = (self._make_windows() if levels is None else levels).get(priority)
        return [] if window is None else window.pop_below(bound, limit)

    def publish(self, priority: int, key: bytes) -> None:
        """Let claims find this key, visible_at 8 | id 16."""
        levels = self._levels
        if levels is None:
            levels = self._make_windows()
        window = levels.get(priority)
        if window is None:
            window = levels[priority] = self._make_level(priority, is_empty=True)
        window.push(key)

    def publish_all(self, priority: int, claimable: list[bytes]) -> None:
        """Let claims find these keys, given in order."""
        levels = self._make_windows()
        window = levels.get(priority)
        if window is None:
            window = levels[priority] = self._make_level(priority, is_empty=True)
        window.push_all(claimable)

    def delete_stale_visible(self, priority: int, key: bytes) -> None:
        """Delete an index entry that points to no Ready message."""
        self._engine.delete(keys.level(self.p, priority) + key, keys.VISIBLE)

    def next_at(self) -> int | None:
        """Return when a claim may next find a message; in the past if it may find one now, None if there is none."""
        if self.row.is_paused:
            return None
        priorities = self.priorities()
        first = self._leases.peek()
        for priority in priorities:
            key = self.first_visible(priority)
            if key is not None and (first is None or key < first):
                first = key
        return None if first is None else keys.parse_instant(first)

    def is_listed(self, entry: StoredMessage, priority: int, visible_at: int) -> bool:
        """Return whether the message has this position in the order of claims."""
        life = entry.life
        return (
            life.state is _READY
            and life.priority == priority
            and life.visible_at == visible_at
            and (entry.envelope.group is None or self._groups.is_head(entry.envelope.group, entry.id16))
        )

    # --- Leases ------------------------------------------------------------------------------------------------

    def has_expired(self, now_ms: int) -> bool:
        """Return whether any lease has expired."""
        key = self._leases.peek()
        return key is not None and keys.parse_instant(key) <= now_ms

    def pop_expired(self, limit: int, now_ms: int) -> list[bytes]:
        """Remove and return the keys of up to `limit` expired leases, expires_at 8 | id 16, the earliest first."""
        return self._leases.pop_below(keys.instant(now_ms + 1), limit)

    def first_expiry_at(self) -> int | None:
        """Return the earliest end of a lease."""
        if self._levels is None:
            self._make_windows()
        key = self._leases.peek()
        return None if key is None else keys.parse_instant(key)

    def delete_stale_expiry(self, key: bytes) -> None:
        """Delete an index entry that points to no lease."""
        self._leases.discard(key)
        self._engine.delete(self.p + key, keys.EXPIRIES)

    # --- Groups ------------------------------------------------------------------------------------------------

    @property
    def has_groups(self) -> bool:
        """Return whether any group has a Ready message."""
        if self._levels is None:
            self._make_windows()
        return self._groups.first_visible() is not None

    def group_batch(self, name: str, limit: int) -> list[bytes]:
        """Return the ids of up to `limit` Ready messages of a group in order, the head first."""
        if self._levels is None:
            self._make_windows()
        return self._groups.ready_ids(name, limit)

    def is_busy(self, group: str) -> bool:
        """Return whether any message of the group is in flight."""
        if self._levels is None:
            self._make_windows()
        return self._groups.is_busy(group)

    # --- Counts ------------------------------------------------------------------------------------------------

    def counts(self, now_ms: int) -> Counts:
        """Return the queue's counts. `QueueState.count_due` must have brought them up to date."""
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
