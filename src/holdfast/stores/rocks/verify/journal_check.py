"""Checks of the journal: its events are numbered without gaps and follow one another as the transitions allow, and each
message is in the state of its last event."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from holdfast.model.events import Event
from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.journal import EventStep, check_last_event, check_next_event
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_life
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.journal.event_blocks import Row, decode_rows
from holdfast.stores.rocks.verify.directory_check import StoredDirectory
from holdfast.stores.rocks.verify.index_check import MESSAGES_CHUNK

_EVENTS = tuple(Event)

_END = b"\xff" * 9
_TRIMMED = keys.META + b"journal trimmed at"

# Number of events whose messages are kept in memory at once. A longer journal is read several times, each time for a
# share of the ids.
_EVENTS_PER_PASS = 1_000_000

_MOVED = _EVENTS.index(Event.MOVED)


class _Last(NamedTuple):
    """The last event of a message: its time, whether the message was in the queue after it, the queue, the event."""

    at: int
    is_here: bool
    p: bytes
    step: EventStep


def check_journal(shards: Sequence[MergedReads], directories: Sequence[StoredDirectory], findings: Findings) -> None:
    """Check the journals of all shards together: a message may have events in several of them."""
    first_ids = [
        _check_numbers(database, directory, findings) for database, directory in zip(shards, directories, strict=True)
    ]
    first_id = max((each for each in first_ids if each is not None), default=None)
    if any(
        each is None and database.get(keys.DIRECTORY, _TRIMMED) is not None
        for each, database in zip(first_ids, shards, strict=True)
    ):
        first_id = None  # that journal was trimmed to nothing, so the messages it had are unknown
    passes = -(-findings.totals["events"] // _EVENTS_PER_PASS) | 1  # odd: the low bits of an id are mostly 0
    for share in range(passes):
        last, broken = _last_events(shards, share, passes)
        for id, (p, problem) in broken.items():
            findings.add(*problem, directories[keys.shard_of(p, len(shards))].title(p), to_bytes(id))
        findings.progress("journal", share, passes)
        _check_states(shards, last, directories, findings)
        for database, directory in zip(shards, directories, strict=True):
            _check_coverage(database, last, first_id, share, passes, directory, findings)
    findings.progress("journal", passes, passes)


def _check_numbers(database: MergedReads, directory: StoredDirectory, findings: Findings) -> int | None:
    """Check the numbers of the events. Return the id of the first enqueue in the journal; ids rise, so the journal must
    have the enqueue of every message with a higher id too."""
    expected: int | None = None
    first_id: int | None = None
    for key, raw in database.items(keys.JOURNAL, b"", _END):
        if len(key) != 8:
            findings.add(
                DamageKind.JOURNAL_UNREADABLE, f"the journal has a block under {key.hex()}, which is not a number"
            )
            continue
        seq = keys.parse_instant(key)
        if expected is not None and seq != expected:
            what = "a gap" if seq > expected else "an overlap"
            findings.add(
                DamageKind.JOURNAL_GAP, f"the journal has {what}: a block begins at {seq}, but {expected} was expected"
            )
        try:
            rows = decode_rows(raw)
        except msgspec.MsgspecError as error:
            findings.add(DamageKind.JOURNAL_UNREADABLE, f"the journal's block at {seq} is damaged: {error}")
            expected = None
            continue
        if not rows:
            findings.add(DamageKind.JOURNAL_GAP, f"the journal's block at {seq} is empty")
        for number, row in enumerate(rows, seq):
            if not 0 <= row[2] < len(_EVENTS):
                findings.add(
                    DamageKind.JOURNAL_UNREADABLE,
                    f"the journal's event {number} is of an unknown kind",
                    directory.title(row[0]),
                    to_bytes(row[3]),
                )
            elif first_id is None and _EVENTS[row[2]] is Event.ENQUEUED:
                first_id = row[3]
            if row[0] not in directory.names:
                findings.add(
                    DamageKind.JOURNAL_QUEUE_UNKNOWN,
                    f"the journal's event {number} is of an unknown queue",
                    directory.title(row[0]),
                    to_bytes(row[3]),
                )
        expected = seq + len(rows)
        findings.totals["events"] += len(rows)
    return first_id


def _rows(database: MergedReads) -> Iterator[Row]:
    for _, raw in database.items(keys.JOURNAL, b"", _END):
        try:
            yield from decode_rows(raw)
        except msgspec.MsgspecError:
            continue  # `_check_numbers` has reported it


def _last_events(
    shards: Sequence[MergedReads], share: int, passes: int
) -> tuple[dict[int, _Last], dict[int, tuple[bytes, Problem]]]:
    """Return the last event of each message in a share of the ids, and the first problem in the order of its events.

    The events of one shard are in order. Those of several shards are compared by their time; at the same time, an
    arrival in one shard follows the departure from another. The order of a message's events is judged only if all of
    them are in one shard: elsewhere some of them lie between those of this one.
    """
    last: dict[int, _Last] = {}
    broken: dict[int, tuple[bytes, Problem]] = {}
    for database in shards:
        found, problems = _last_in_shard(database, share, passes)
        if not last:
            last, broken = found, problems
            continue
        for id in broken.keys() & found.keys():
            del broken[id]
        broken.update((id, problem) for id, problem in problems.items() if id not in last)
        for id, event in found.items():
            earlier = last.get(id)
            if earlier is None or (earlier.at, earlier.is_here) <= (event.at, event.is_here):
                last[id] = event
    return last, broken


def _last_in_shard(
    database: MergedReads, share: int, passes: int
) -> tuple[dict[int, _Last], dict[int, tuple[bytes, Problem]]]:
    """Return the same as `_last_events` for one shard."""
    found: dict[int, _Last] = {}
    broken: dict[int, tuple[bytes, Problem]] = {}
    # One bytes object for each queue prefix, to save memory: every row has its own copy.
    known: dict[bytes, bytes] = {}
    for row in _rows(database):
        id, reason = row[3], row[11] or ""
        if id % passes != share or not 0 <= row[2] < len(_EVENTS):
            continue
        has_left = row[2] == _MOVED and reason.startswith("to ")
        p = known.setdefault(row[0], row[0])
        step = EventStep(_EVENTS[row[2]], row[4], row[5], row[11])
        before = found.get(id)
        if before is not None and id not in broken and not (row[2] == _MOVED and reason.startswith("from ")):
            problem = next(check_next_event(before.step, step), None)
            if problem is not None:
                broken[id] = p, problem
        found[id] = _Last(row[1], not has_left, p, step)
    return found, broken


def _check_states(
    shards: Sequence[MergedReads], last: dict[int, _Last], directories: Sequence[StoredDirectory], findings: Findings
) -> None:
    by_shard: list[list[tuple[int, _Last]]] = [[] for _ in shards]
    for id, event in last.items():
        by_shard[keys.shard_of(event.p, len(shards))].append((id, event))
    for database, directory, events in zip(shards, directories, by_shard, strict=True):
        _check_states_in(database, events, directory, findings)


def _check_states_in(
    database: MergedReads, events: list[tuple[int, _Last]], directory: StoredDirectory, findings: Findings
) -> None:
    remaining = iter(events)
    while chunk := list(islice(remaining, MESSAGES_CHUNK)):
        names = [last.p + to_bytes(id) for id, last in chunk]
        records = database.get_many(keys.MESSAGES, names)
        leases = database.get_many(keys.LEASES, names)
        lives = database.get_many(keys.INDEXES, [keys.LIVES + name for name in names])
        for (_, (_, _, p, step)), name, record, lease, own in zip(chunk, names, records, leases, lives, strict=True):
            queue, id16 = directory.title(p), name[keys.P_SIZE :]
            if record is None:
                findings.add_all(check_last_event(step.event, step.version, None, 0), queue, id16)
                continue
            life = _life(lease if lease is not None else own)
            findings.add_all(check_last_event(step.event, step.version, life.state, life.version), queue, id16)


def _check_coverage(
    database: MergedReads,
    last: dict[int, _Last],
    first_id: int | None,
    share: int,
    shares: int,
    directory: StoredDirectory,
    findings: Findings,
) -> None:
    """Check that every message with an id from `first_id` on has an event in the journal, and that the last one is of
    the message's current queue."""
    if first_id is None:
        return
    first = to_bytes(first_id)
    for row in directory.queues:
        p = keys.prefix(row.tenant_id, row.queue_id)
        for key in database.scan(keys.MESSAGES, p, keys.after(p)):
            id16 = key[keys.P_SIZE :]
            if len(id16) != keys.ID_SIZE or id16 < first or (id := keys.parse_id(id16)) % shares != share:
                continue
            event = last.get(id)
            if event is None:
                findings.add(
                    DamageKind.JOURNAL_MISSING, "is not in the journal, which has earlier messages", row.ref, id16
                )
            elif event.p != p:
                findings.add(
                    DamageKind.MESSAGE_MISPLACED,
                    f"its last event in the journal is of queue {directory.title(event.p)}",
                    row.ref,
                    id16,
                )


def _life(raw: bytes | None) -> Life:
    return Life() if raw is None else decode_life(raw)[1]
