"""Checks of the journal: numbered without a gap, and its last word on each message is what the store holds."""

from collections.abc import Iterator
from itertools import islice

import msgspec

from holdfast.model.events import Event
from holdfast.model.ids import to_bytes
from holdfast.model.lifecycle import Life
from holdfast.stores.findings import STATES_AFTER, Findings
from holdfast.stores.record import decode_life
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.reads import MergedReads
from holdfast.stores.rocks.verify_directory import Directory
from holdfast.stores.rocks.verify_indexes import MESSAGES_CHUNK

_EVENTS = tuple(Event)

# queue, at, event, id, attempt, version, then what is not checked here.
_Row = tuple[bytes, int, int, int, int, int, int, int, int | None, int, str | None, str | None, str | None]
_decode_block = msgspec.msgpack.Decoder(list[_Row]).decode
_END = b"\xff" * 9

# Events whose messages are remembered at once. A longer journal is read several times, for a share of the ids each.
_EVENTS_PER_PASS = 1_000_000

# Queue, event and version of a message's last event.
_Last = tuple[bytes, Event, int]


def check_journal(database: MergedReads, directory: Directory, findings: Findings) -> None:
    first_id = _check_numbers(database, directory, findings)
    shares = -(-findings.totals["events"] // _EVENTS_PER_PASS) | 1  # odd: the low bits of an id are mostly 0
    for share in range(shares):
        last = _last_events(database, directory, share, shares)
        findings.progress("journal", share, shares)
        _check_states(database, last, directory, findings)
        _check_coverage(database, last, first_id, share, shares, directory, findings)
    findings.progress("journal", shares, shares)


def _check_numbers(database: MergedReads, directory: Directory, findings: Findings) -> int | None:
    """Answers the first id whose enqueue the journal has: ids rise with it, so it has every later one too."""
    expected: int | None = None
    first_id: int | None = None
    for key, raw in database.items(keys.JOURNAL, b"", _END):
        if len(key) != 8:
            findings.add(f"the journal has a block under {key.hex()}, which is no number")
            continue
        seq = keys.parse_instant(key)
        if expected is not None and seq != expected:
            what = "a gap" if seq > expected else "an overlap"
            findings.add(f"the journal has {what}: a block begins at {seq}, where {expected} was to follow")
        try:
            rows = _decode_block(raw)
        except msgspec.MsgspecError as error:
            findings.add(f"the journal's block at {seq} is damaged: {error}")
            expected = None
            continue
        if not rows:
            findings.add(f"the journal's block at {seq} is empty")
        for number, row in enumerate(rows, seq):
            if not 0 <= row[2] < len(_EVENTS):
                findings.add(
                    f"the journal's event {number} is of no known kind", directory.title(row[0]), to_bytes(row[3])
                )
            elif first_id is None and _EVENTS[row[2]] is Event.ENQUEUED:
                first_id = row[3]
            if row[0] not in directory.names:
                findings.add(
                    f"the journal's event {number} is of no known queue", directory.title(row[0]), to_bytes(row[3])
                )
        expected = seq + len(rows)
        findings.totals["events"] += len(rows)
    return first_id


def _rows(database: MergedReads) -> Iterator[_Row]:
    for _, raw in database.items(keys.JOURNAL, b"", _END):
        try:
            yield from _decode_block(raw)
        except msgspec.MsgspecError:
            continue  # named already


def _last_events(database: MergedReads, directory: Directory, share: int, shares: int) -> dict[int, _Last]:
    last: dict[int, _Last] = {}
    # One object for each queue: a row has its own copy.
    known = {p: p for p in directory.names}
    for row in _rows(database):
        if row[3] % shares == share and 0 <= row[2] < len(_EVENTS):
            last[row[3]] = (known.get(row[0], row[0]), _EVENTS[row[2]], row[5])
    return last


def _check_states(database: MergedReads, last: dict[int, _Last], directory: Directory, findings: Findings) -> None:
    remaining = iter(last.items())
    while chunk := list(islice(remaining, MESSAGES_CHUNK)):
        names = [p + to_bytes(id) for id, (p, _, _) in chunk]
        records = database.get_many(keys.MESSAGES, names)
        leases = database.get_many(keys.LEASES, names)
        lives = database.get_many(keys.INDEXES, [keys.LIVES + name for name in names])
        for (_, (p, event, version)), name, record, lease, own in zip(
            chunk, names, records, leases, lives, strict=True
        ):
            queue, id16 = directory.title(p), name[keys.P_SIZE :]
            if record is None:
                if None not in STATES_AFTER[event]:
                    findings.add(f"its last event in the journal is {event}, but it is not there", queue, id16)
                continue
            life = _life(lease if lease is not None else own)
            if life.state not in STATES_AFTER[event]:
                findings.add(f"its last event in the journal is {event}, but it is {life.state}", queue, id16)
            elif life.version != version:
                findings.add(
                    f"its last event in the journal is of version {version}, but it has version {life.version}",
                    queue,
                    id16,
                )


def _check_coverage(
    database: MergedReads,
    last: dict[int, _Last],
    first_id: int | None,
    share: int,
    shares: int,
    directory: Directory,
    findings: Findings,
) -> None:
    """Every message that came after the journal's beginning stands in it, in the queue where it is now."""
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
                findings.add("is not in the journal, which has what came before it", row.ref, id16)
            elif event[0] != p:
                findings.add(f"its last event in the journal is of queue {directory.title(event[0])}", row.ref, id16)


def _life(raw: bytes | None) -> Life:
    return Life() if raw is None else decode_life(raw)[1]
