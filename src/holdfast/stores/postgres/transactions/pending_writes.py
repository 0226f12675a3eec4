"""The changes that a transaction has decided on: gathered in memory and written together."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.schema.rows import (
    BEHIND,
    DELAYED,
    EVENT_NUMBERS,
    FAILED,
    IN_FLIGHT,
    READY,
    SUCCEEDED,
    WAITING,
    MessageRow,
    encode_error,
    encode_lives,
)
from holdfast.stores.postgres.schema.statements import SQL

# waiting, delayed, in flight, failed, kept, bytes
_COUNTED = {READY: 0, BEHIND: 0, DELAYED: 0, IN_FLIGHT: 2, FAILED: 3, SUCCEEDED: 4}


class PendingWrites:
    """The changes that a transaction has decided on so far, to any number of queues of one database. `write` writes
    them."""

    def __init__(self, connection: Any, given_now: int | None) -> None:
        self.connection = connection
        # The time that is passed to statements: None for the database's own time, or a fixed time in tests.
        self.given_now = given_now
        # The database's time, once the first queue was opened.
        self.now_ms = 0
        self.notices = Notices()
        self._lives: defaultdict[int, dict[int, tuple[int, Life]]] = defaultdict(dict)
        self._gone: defaultdict[int, list[int]] = defaultdict(list)
        self._counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 6)
        self._groups: defaultdict[int, set[str]] = defaultdict(set)
        self._events: list[tuple[Any, ...]] = []
        self._event_count = 0

    def apply(self, queue: QueueInfo, changes: Collection[tuple[MessageRow, Change]], *, by_time: bool = False) -> None:
        """Take each message one step along its life."""
        for entry, change in changes:
            self._apply(queue, entry, change)

    def _apply(self, info: QueueInfo, entry: MessageRow, change: Change) -> None:
        if change.event is not None:
            self.add_event(info, entry, change, reason=change.reason)
        key, id, group = info.key, entry.envelope.id, entry.envelope.group
        was, life = entry.status, change.life
        if group is not None:
            self._groups[key].add(group)
        if life is None or life.is_gone:
            self._lives[key].pop(id, None)
            self._remove(info, entry)
        else:
            entry.status = self.status_of(life, group)
            entry.life = life
            self._lives[key][id] = (entry.status, life)
            self.count(key, was, entry.status, entry.bytes)
        self._note_for_listener(info.ref, life, group, was)

    def drop(self, queue: QueueInfo, entries: Sequence[MessageRow]) -> None:
        """Forget messages without an event."""
        for entry in entries:
            self._remove(queue, entry)

    def remove_moved(self, info: QueueInfo, entry: MessageRow) -> None:
        """Remove a message that moves to another database. Its event was added already."""
        self._remove(info, entry)
        if entry.envelope.group is not None:
            self._groups[info.key].add(entry.envelope.group)
            self.notices.ready(info.ref, self.now_ms)

    def _remove(self, info: QueueInfo, entry: MessageRow) -> None:
        """Delete a message."""
        self._gone[info.key].append(entry.envelope.id)
        self.count(info.key, entry.status, None, entry.bytes)
        if entry.envelope.pieces is not None:
            self.notices.deadline(self.now_ms)  # sweeps delete its payload

    def add_moved(self, info: QueueInfo | None, target: QueueInfo, entry: MessageRow) -> None:
        """Add a message, with its unchanged row, to the counts and groups of its new queue. `info` is the old queue, or
        None if the message comes from another database."""
        was = entry.status
        entry.status = self.status_of(entry.life, entry.envelope.group)
        if info is not None:
            self.count(info.key, was, None, entry.bytes)
        self.count(target.key, None, entry.status, entry.bytes)
        if entry.status != was:
            self._lives[target.key][entry.envelope.id] = (entry.status, entry.life)
        if entry.envelope.group is not None:
            self._groups[target.key].add(entry.envelope.group)
        if entry.life.state is State.READY:
            self.notices.ready(target.ref, entry.life.visible_at)
            if entry.life.expires_at is not None:
                self.notices.deadline(entry.life.expires_at)

    def status_of(self, life: Life, group: str | None) -> int:
        """Return the status that a message with this life is stored with."""
        match life.state:
            case State.READY if group is not None:
                return BEHIND  # until `show_heads` makes the group's head claimable
            case State.READY:
                return READY if life.visible_at <= self.now_ms else DELAYED
            case State.IN_FLIGHT:
                return IN_FLIGHT
            case State.SUCCEEDED:
                return SUCCEEDED
            case State.FAILED:
                return FAILED

    def count(self, key: int, was: int | None, becomes: int | None, size: int) -> None:
        """Change the counts of a queue for a message that goes from one status to another."""
        counts = self._counts[key]
        if was is not None:
            counts[_COUNTED[was]] -= 1
            counts[1] -= was == DELAYED
            counts[5] -= size
        if becomes is not None:
            counts[_COUNTED[becomes]] += 1
            counts[1] += becomes == DELAYED
            counts[5] += size

    def count_bytes(self, key: int, size: int) -> None:
        """Change the stored bytes of a queue."""
        self._counts[key][5] += size

    def touch_groups(self, key: int, groups: Iterable[str]) -> None:
        """Make the heads of these groups claimable when the changes are written."""
        self._groups[key].update(groups)

    def add_event(self, info: QueueInfo, entry: MessageRow, change: Change, *, reason: str | None) -> None:
        """Add an event for the journal."""
        assert change.event is not None
        life = change.life or entry.life
        lease = life.lease or entry.life.lease
        self._events.append(
            (
                *(self.now_ms, info.key, entry.envelope.id, EVENT_NUMBERS[change.event], life.priority, life.attempt),
                *(life.version, entry.envelope.enqueued_at, lease and lease.claimed_at, entry.bytes),
                *(encode_error(change.error), reason, entry.envelope.given_correlation_id),
            )
        )
        self.notices.tally(info.ref, change.event)

    async def write(self) -> None:
        """Write all changes that were gathered since the last write."""
        for key, lives in self._lives.items():
            if lives:
                columns = encode_lives([(id, status, life) for id, (status, life) in sorted(lives.items())])
                await self.connection.execute(SQL["change"], key, *columns)
        for key, gone in self._gone.items():
            await self.connection.execute(SQL["delete"], key, sorted(gone))
        for key, groups in self._groups.items():
            if groups:
                await self.connection.execute(SQL["show_heads"], key, self.given_now, sorted(groups))
        counts = [(key, *line) for key, line in self._counts.items() if any(line)]
        if self._events or counts:
            await self.connection.execute(
                SQL["record"],
                self._event_count,
                *_columns(self._events, 13),
                *_columns(counts, 7),
            )
            self._event_count += len(self._events)
        self._lives.clear()
        self._gone.clear()
        self._groups.clear()
        self._counts.clear()
        self._events.clear()

    def _note_for_listener(self, ref: QueueRef, life: Life | None, group: str | None, was: int) -> None:
        """Add notices for a changed message."""
        notices = self.notices
        if life is not None and life.state is State.READY:
            notices.ready(ref, life.visible_at)
        elif life is not None and life.lease is not None:
            # The lease may have been shortened. At its end, the next message of a group can be claimed.
            notices.ready(ref, life.lease.expires_at)
            notices.deadline(life.lease.expires_at)
        if group is not None and (was == IN_FLIGHT or was in WAITING):
            notices.ready(ref, self.now_ms)
        if life is not None:
            if life.keep_until is not None:
                notices.deadline(life.keep_until)
            if life.expires_at is not None and life.state is State.READY:
                notices.deadline(life.expires_at)


def _columns(rows: list[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
