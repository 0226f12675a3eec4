"""The journal of one shard on disk: one block of events for each commit, under the number of its first event.

How to change this format: `event_blocks.py` says how for the blocks, `keys.py` for their keys. `EVENT_NAMES` numbers
the kinds of events by their order in `Event`: append a new kind there, and never reorder or remove one, because the
numbers are stored.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event, JournalEvent, format_positions
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.contract import JOURNAL_STEP
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.event_blocks import EventRows, EventRun, Part, Row, decode_rows, encode_parts
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.values import JournalPage

EVENT_NAMES = tuple(Event)
_NUMBERS = {event: number for number, event in enumerate(EVENT_NAMES)}

_END = b"\xff" * 9
TRIMMED = keys.META + b"journal trimmed at"
TRIMMED_UNTIL = keys.META + b"journal trimmed until"


class ShardPage(NamedTuple):
    """Events of one shard, and the number of the last event that was examined."""

    events: list[JournalEvent]
    position: int


class RocksJournal:
    """The journal of one shard: collects the events of the open commit, and reads and trims stored blocks."""

    def __init__(self, engine: Engine, retention_ms: int, name_of: Callable[[bytes], QueueRef], *, shard: int) -> None:
        self._engine = engine
        self._retention_ms = retention_ms
        self._name_of = name_of
        self._shard = shard
        # Events of the open commit: the complete parts of its block, then the single events after them.
        self._parts: list[Part] = []
        self._rows: list[Row] = []
        # By queue, the counts of the events in the order of `EVENT_NAMES`. Counting is one addition per event, without
        # looking up the name of the queue.
        self._tallies: defaultdict[bytes, list[int]] = defaultdict(_no_events)
        last = engine.database.floor(keys.JOURNAL, _END)
        trimmed = engine.database.get(keys.DIRECTORY, TRIMMED)
        self._next = 1 if trimmed is None else keys.parse_instant(trimmed)
        # The time of the newest event, even if that event has been trimmed; 0 if there was none. Every change of a
        # message is written with its event, so no stored change is later than this.
        until = engine.database.get(keys.DIRECTORY, TRIMMED_UNTIL)
        self.latest_at = 0 if until is None else keys.parse_instant(until)
        if last is not None:
            block = self._block(last)
            self._next = keys.parse_instant(last) + len(block)
            self.latest_at = block[-1][1]
        # The number of the last event that is as durable as the store's durability setting requires.
        self._durable = self._next - 1
        # Blocks that are written but not known to be on disk: the number of the frame, and of the last event in it.
        self._unsynced: deque[tuple[int, int]] = deque()
        # The key to search the oldest block from: a search from 0 would walk over all trimmed blocks.
        self._oldest = keys.instant(0)

    def append(
        self,
        queue: QueueState | StoredMessage,
        entry: StoredMessage,
        event: Event,
        now_ms: int,
        after: Life | None = None,
        reason: str | None = None,
        error: str | None = None,
    ) -> None:
        """Append an event of a message. `after` is its life after the event; None: its current life.

        A message stands for its own queue, where that is deleted.
        """
        life = after if after is not None else entry.life
        lease = life.lease if life.lease is not None else entry.life.lease
        envelope = entry.envelope
        number = _NUMBERS[event]
        self._tallies[queue.p][number] += 1
        self._rows.append(
            (
                queue.p,
                now_ms,
                number,
                envelope.id,
                life.attempt,
                life.version,
                life.priority,
                envelope.enqueued_at,
                None if lease is None else lease.claimed_at,
                entry.bytes,
                error,
                reason,
                envelope.given_correlation_id,
            )
        )

    def append_fresh(
        self, queue: QueueState, entries: Sequence[StoredMessage], event: Event, now_ms: int, life: Life
    ) -> None:
        """Append the same event for many new messages that all have the life `life`."""
        self._append_run(EventRun.of_fresh(queue.p, now_ms, _NUMBERS[event], entries, life))

    def append_changed(
        self, queue: QueueState, entries: Sequence[StoredMessage], lives: Sequence[Life], event: Event, now_ms: int
    ) -> None:
        """Append the same event for many messages. `lives` are their lives after it."""
        self._append_run(EventRun.of_changed(queue.p, now_ms, _NUMBERS[event], entries, lives))

    def _append_run(self, run: EventRun) -> None:
        self._tallies[run.p][run.event] += len(run)
        self._close_rows()
        self._parts.append(run)

    def _close_rows(self) -> None:
        if self._rows:
            self._parts.append(EventRows(self._rows))
            self._rows = []

    def write_block(self) -> None:
        """Add the appended events to the open commit, as one block."""
        self._close_rows()
        if not self._parts:
            return
        self._engine.insert(keys.instant(self._next), encode_parts(self._parts), keys.JOURNAL)
        self._next += sum(map(len, self._parts))
        self._parts = []

    def note_written(self) -> None:
        """Note that the open commit was written: its frame has all blocks that `write_block` has added."""
        if self._engine.is_os:
            self._durable = self._next - 1
        else:
            self._durable_event()  # drops the blocks that have been synced since
            self._unsynced.append((self._engine.database.log.number, self._next - 1))

    def _durable_event(self) -> int:
        """Return the number of the last event that readers may see: the last one that is durable."""
        unsynced, synced = self._unsynced, self._engine.database.log.synced
        while unsynced and unsynced[0][0] <= synced:
            self._durable = unsynced.popleft()[1]
        return self._durable

    def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the counts of events since the previous call; see `Store.take_tallies`."""
        taken, self._tallies = self._tallies, defaultdict(_no_events)
        tallies: dict[QueueRef, dict[Event, int]] = {}
        for p, counts in taken.items():
            # A queue that was deleted and created again under the same name has two prefixes.
            tally = tallies.setdefault(self._name_of(p), {})
            for event, count in zip(EVENT_NAMES, counts, strict=True):
                if count:
                    tally[event] = tally.get(event, 0) + count
        return tallies

    def read(
        self, position: int, limit: int, tenant: str | None, oldest_at: int, until: int | None = None
    ) -> ShardPage:
        """Return durable events after the number `position`; see `Store.journal`."""
        self._engine.write()
        durable = self._durable_event()
        last = durable if until is None else min(until, durable)
        examined = 0
        start = self._engine.database.floor(keys.JOURNAL, keys.instant(position + 1)) or self._oldest
        events: list[JournalEvent] = []
        for key, block in self._engine.database.items(keys.JOURNAL, max(start, self._oldest), _END):
            for seq, row in enumerate(decode_block(block), keys.parse_instant(key)):
                if seq <= position:
                    continue
                if seq > last or len(events) == limit or examined == JOURNAL_STEP:
                    return ShardPage(events, position)
                position = seq
                examined += 1
                ref = self._name_of(row[0])
                if (tenant is None or ref.tenant == tenant) and row[1] >= oldest_at:
                    events.append(_event(seq, row, ref, self._shard))
        return ShardPage(events, position)

    def trim(self, limit: int, now_ms: int) -> int:
        """Delete blocks that are older than the retention, until at least `limit` events are deleted or none is left.
        Return the number of deleted events."""
        trimmed = 0
        until = 0
        lower = upper = self._oldest
        for key, block in self._engine.database.items(keys.JOURNAL, lower, _END):
            rows = decode_block(block)
            if trimmed >= limit or rows[-1][1] > now_ms - self._retention_ms:
                upper = key
                break
            trimmed += len(rows)
            upper, until = key + b"\0", rows[-1][1]
        if trimmed:
            # The deleted blocks may have been the last ones. Numbers must still go on from here after a restart.
            self._engine.put(TRIMMED, keys.instant(self._next), keys.DIRECTORY)
            self._engine.put(TRIMMED_UNTIL, keys.instant(until), keys.DIRECTORY)
            self._engine.delete_range(lower, upper, keys.JOURNAL)
            self._oldest = upper
        return trimmed

    def next_trim_at(self) -> int | None:
        """Return the instant at which the oldest block has to be deleted, or None if there is no block."""
        for _, block in self._engine.database.items(keys.JOURNAL, self._oldest, _END):
            return decode_block(block)[-1][1] + self._retention_ms
        return None

    def _block(self, key: bytes) -> list[Row]:
        return decode_block(self._engine.database.get(keys.JOURNAL, key) or b"")


def _no_events() -> list[int]:
    return [0] * len(EVENT_NAMES)


def merge_pages(pages: list[ShardPage], limit: int) -> JournalPage:
    """Return one page of up to `limit` events of all shards, ordered by time, each shard's events in their own
    order."""
    if len(pages) == 1:
        return JournalPage(pages[0].events, format_positions([pages[0].position]))
    waiting = [deque(page.events) for page in pages]
    events: list[JournalEvent] = []
    while len(events) < limit and any(waiting):
        first = min((each for each in waiting if each), key=lambda each: _merge_key(each[0]))
        events.append(first.popleft())
    # The position of a shard with events left over is before the first of them.
    positions = [left[0].seq - 1 if left else page.position for page, left in zip(pages, waiting, strict=True)]
    return JournalPage(events, format_positions(positions))


def _merge_key(event: JournalEvent) -> tuple[int, bool]:
    """Return a key that sorts a message's arrival in a shard after its departure from another at the same time."""
    return event.at, event.event is Event.MOVED and (event.reason or "").startswith("from ")


def decode_block(block: bytes) -> list[Row]:
    """Return the events of a block. Raise `StoreUnavailable` if it is damaged."""
    try:
        return decode_rows(block)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"the journal is damaged ({error}): restore a backup") from None


def _event(seq: int, row: Row, ref: QueueRef, shard: int) -> JournalEvent:
    _, at, event, id, attempt, version, priority, enqueued_at, claimed_at, size, error, reason, correlation_id = row
    return JournalEvent(
        snowflake=id,
        given_correlation_id=correlation_id,
        seq=seq,
        shard=shard,
        at=at,
        event=EVENT_NAMES[event],
        tenant=ref.tenant,
        queue=ref.queue,
        attempt=attempt,
        version=version,
        priority=priority,
        enqueued_at=enqueued_at,
        claimed_at=claimed_at,
        bytes=size,
        error=error,
        reason=reason,
    )
