"""Check the journals of all databases against the messages: the order of each message's events, and its last one.

Both are read in the order of ids, so that memory does not grow with them: the databases sort, in files of their own.
The snapshots of several databases are not of one moment, so what is found there is looked at again in later ones.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.model.events import Event
from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.journal import EventStep, check_last_event, check_next_event
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.schema.rows import EVENTS, STATES
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import RowStream, Snapshot

_EVENTS = "SELECT id, at, queue_key, event, attempt, version, reason FROM journal {which} ORDER BY id, seq"
_ITEMS = "SELECT id, queue_key, status, version, created_at FROM items {which} ORDER BY id"
_ONLY = "WHERE id = ANY($1::bigint[])"
# An event of a queue that never was, of a kind that never was, or behind one that is missing within its transaction.
_INVALID = """
SELECT seq, queue_key, id, event FROM journal
WHERE event < 0 OR event >= $1 OR queue_key > $2 OR queue_key < 1 ORDER BY seq
"""
_GAPS = """
SELECT seq FROM (
    SELECT seq, at, lag(seq) OVER (ORDER BY seq) AS before FROM journal
) AS numbered
WHERE at > $1 AND before IS NOT NULL AND (seq & 1048575) > 0 AND before <> seq - 1 ORDER BY seq
"""
_FIRST = "SELECT max(at) FROM (SELECT at FROM journal ORDER BY seq LIMIT 100) AS oldest"
# Events may be a little out of the order of time, so the journal is only sure to have what came this long after its
# first events.
_MARGIN_MS = 600_000
_REPORTED_EVERY = 10_000


class _LastEvent(NamedTuple):
    """A message's last event on one database."""

    at: int
    # False: the message has left this database's queue for another.
    is_here: bool
    directory: DatabaseDirectory
    key: int
    step: EventStep
    # The first event that may not follow the one before it.
    problem: Problem | None


class _StoredMessage(NamedTuple):
    """A message as a database stores it."""

    directory: DatabaseDirectory
    key: int
    status: int
    version: int
    created_at: int


class Suspect(NamedTuple):
    """A problem of one message."""

    id: int
    title: str
    problem: Problem


@dataclass(slots=True, kw_only=True)
class JournalCheck:
    """The check of the journals of all databases, each with its snapshot and its directory."""

    snapshots: Sequence[Snapshot]
    directories: Sequence[DatabaseDirectory]
    findings: Findings
    total: int
    # Slots have moved between databases. A database that has left the store since took events along.
    has_moved_slots: bool = False
    events: int = 0

    async def check_numbers(self) -> None:
        """Check each event by itself, and the numbers of the events of each transaction."""
        for snapshot, directory in zip(self.snapshots, self.directories, strict=True):
            async for row in snapshot.rows(_INVALID, len(EVENTS), directory.highest_key):
                title, id16 = directory.title(row["queue_key"]), to_bytes(max(row["id"], 0))
                if 0 <= row["event"] < len(EVENTS):
                    what = f"the journal's event {row['seq']} is of a queue that never was"
                    self.findings.add(DamageKind.JOURNAL_QUEUE_UNKNOWN, what, title, id16)
                else:
                    what = f"the journal's event {row['seq']} is of the unknown kind {row['event']}"
                    self.findings.add(DamageKind.JOURNAL_UNREADABLE, what, title, id16)
            # The retention cuts by time, also within the first transactions.
            since = (await _first_at(snapshot) or 0) + _MARGIN_MS
            async for row in snapshot.rows(_GAPS, since):
                what = f"the journal has a gap: event {row['seq']} of database {directory.number} does not follow "
                self.findings.add(DamageKind.JOURNAL_GAP, what + "the previous one of its transaction")

    async def suspects(self, only: Sequence[int] | None = None) -> AsyncIterator[Suspect]:
        """Yield the problems of all messages, or of those with the ids `only`."""
        since = await self._covered_since()
        events = _Merged([self._stream(each, _EVENTS, only) for each in self.snapshots])
        items = _Merged([self._stream(each, _ITEMS, only) for each in self.snapshots])
        while (id := await _lower(events, items)) is not None:
            last = await self._last_events(events, id)
            stored = await self._stored(items, id)
            for title, problem in self._judge(id, last, stored, since):
                yield Suspect(id, title, problem)

    def _stream(self, snapshot: Snapshot, sql: str, only: Sequence[int] | None) -> RowStream:
        return snapshot.rows(sql.format(which="")) if only is None else snapshot.rows(sql.format(which=_ONLY), only)

    async def _covered_since(self) -> int | None:
        """Return the time from which the journals have the events of every new message; None if that is unknown."""
        firsts = [each for snapshot in self.snapshots if (each := await _first_at(snapshot)) is not None]
        if self.has_moved_slots or len(firsts) < len(self.snapshots):
            return None
        return max(firsts) + _MARGIN_MS

    async def _last_events(self, events: "_Merged", id: int) -> list[_LastEvent]:
        """Return the message's last event on each database that has one."""
        found: list[_LastEvent] = []
        for number in await events.having(id):
            stream, directory = events.streams[number], self.directories[number]
            last: _LastEvent | None = None
            while await stream.fill() and stream.head["id"] == id:
                row = stream.pop()
                self.events += 1
                if not self.events % _REPORTED_EVERY:
                    self.findings.progress("journal", self.events, self.total)
                if 0 <= row["event"] < len(EVENTS):
                    last = _next_event(row, directory, last)
            if last is not None:
                found.append(last)
        return found

    async def _stored(self, items: "_Merged", id: int) -> list[_StoredMessage]:
        """Return the messages with this id. Those of queues that are elsewhere, or deleted, are left out."""
        found = []
        for number in await items.having(id):
            stream, directory = items.streams[number], self.directories[number]
            while await stream.fill() and stream.head["id"] == id:
                row = stream.pop()
                queue = directory.queue(row["queue_key"])
                if queue is None or not (queue.is_gone or queue.key in directory.partial):
                    found.append(
                        _StoredMessage(directory, row["queue_key"], row["status"], row["version"], row["created_at"])
                    )
        return found

    def _judge(
        self, id: int, events: list[_LastEvent], stored: list[_StoredMessage], since: int | None
    ) -> list[tuple[str, Problem]]:
        """Return the problems of one message, each with the name of its queue."""
        if len(stored) > 1:
            queues = " and ".join(each.directory.title(each.key) for each in stored)
            return [(queues, Problem(DamageKind.MESSAGE_TWICE, "is in several queues at once"))]
        message = stored[0] if stored else None
        if not events:
            if message is None or since is None or message.created_at <= since:
                return []
            problem = Problem(DamageKind.JOURNAL_MISSING, "is not in the journal, which has earlier messages")
            return [(message.directory.title(message.key), problem)]
        last = max(events, key=lambda each: (each.at, each.is_here))
        title = last.directory.title(last.key)
        if len(events) == 1 and last.problem is not None:
            return [(title, last.problem)]
        return [(title, problem) for problem in self._compare(id, last, message)]

    def _compare(self, id: int, last: _LastEvent, message: _StoredMessage | None) -> list[Problem]:
        """Compare a message with its last event."""
        queue = last.directory.queue(last.key)
        if message is None:
            if any(id in each.arriving for each in self.directories):
                return []
            if queue is None or (queue.is_gone and self.has_moved_slots):
                return []  # later events may have left with a database, or with the retention
            return list(check_last_event(last.step.event, last.step.version, None, 0))
        there = message.directory.queue(message.key)
        state = STATES.get(message.status)
        if state is None or there is None or queue is None:
            return []  # reported by the check of the messages
        if there.ref != queue.ref:
            what = f"its last event in the journal is of queue {queue.ref}, but it is in {there.ref}"
            return [Problem(DamageKind.MESSAGE_MISPLACED, what)]
        is_same_row = (message.directory.number, message.key) == (last.directory.number, last.key)
        if self.has_moved_slots and not is_same_row:
            return []
        return list(check_last_event(last.step.event, last.step.version, state, message.version))


async def _first_at(snapshot: Snapshot) -> int | None:
    """Return the time of the first events of a journal; None without events."""
    at: int | None = await snapshot.value(_FIRST)
    return at


def _next_event(row: Any, directory: DatabaseDirectory, before: _LastEvent | None) -> _LastEvent:
    """Return the last event after another row of the same message, on the same database."""
    event, reason = EVENTS[row["event"]], row["reason"]
    step = EventStep(event, row["attempt"], row["version"], reason)
    is_moved = event is Event.MOVED
    has_left = is_moved and (reason or "").startswith("to ")
    problem = None
    if before is not None:
        problem = before.problem
        # An arrival, and the first event after a queue came back with its slot, have their previous one elsewhere.
        is_next = before.key == row["queue_key"] and not (is_moved and (reason or "").startswith("from "))
        if problem is None and is_next:
            problem = next(check_next_event(before.step, step), None)
    return _LastEvent(row["at"], not has_left, directory, row["queue_key"], step, problem)


class _Merged:
    """Streams of several databases, each in the order of ids."""

    def __init__(self, streams: list[RowStream]) -> None:
        self.streams = streams

    async def next_id(self) -> int | None:
        """Return the lowest id that any stream has next; None at the end of all."""
        ids = [stream.head["id"] for stream in self.streams if await stream.fill()]
        return min(ids, default=None)

    async def having(self, id: int) -> list[int]:
        """Return the numbers of the streams that have this id next."""
        return [number for number, stream in enumerate(self.streams) if await stream.fill() and stream.head["id"] == id]


async def _lower(one: _Merged, other: _Merged) -> int | None:
    """Return the lower one of the next ids; None at the end of both."""
    ids = [id for id in (await one.next_id(), await other.next_id()) if id is not None]
    return min(ids, default=None)
