"""Checks of the indexes: the entries that a message must have, and entries that no message must have."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import from_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.message import State
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.verify.directory_check import StoredDirectory

# Number of keys looked up at once. Fewer messages are looked up at once, because each may have a payload of 1 MiB.
CHUNK = 500
MESSAGES_CHUNK = 50


class Space(NamedTuple):
    """An index: its column family, the prefix of its keys, and its name in violations."""

    title: str
    family: int
    lead: bytes = b""


VISIBLE = Space("the visibility index (vi)", keys.VISIBLE)
EXPIRIES = Space("the lease expiry index (li)", keys.EXPIRIES)
DELAYED = Space("the index of delayed messages (ix v)", keys.INDEXES, keys.DELAYED)
DEAD = Space("the index of dead letters (ix d)", keys.INDEXES, keys.DEAD)
GROUPS = Space("the order of its group (ix g)", keys.INDEXES, keys.GROUPS)
GROUP_VISIBLE = Space("the index of ready messages in groups (ix w)", keys.INDEXES, keys.GROUP_VISIBLE)
TTLS = Space("the TTL index (ix t)", keys.INDEXES, keys.TTLS)
KEPT = Space("the index of kept successes (ix k)", keys.INDEXES, keys.KEPT)

# The keys of these indexes begin with P. Those of the deadlines have an instant before P.
OF_ONE_QUEUE = (VISIBLE, EXPIRIES, DELAYED, DEAD, GROUPS, GROUP_VISIBLE)
DEADLINES = (TTLS, KEPT)

# The number of deadlines of each kind, by queue prefix.
Deadlines = dict[Space, Counter[bytes]]
IndexEntry = tuple[Space, bytes]


def entries_of(p: bytes, id16: bytes, group: str | None, life: Life, counted_at: int) -> Iterator[IndexEntry]:
    """Yield the index entries that a message with this life must have.

    The entry of a group's head in `vi` is left out, because it depends on the other messages of the group.
    """
    match life.state:
        case State.READY:
            visible_at = keys.instant(life.visible_at)
            if life.visible_at > counted_at:
                yield DELAYED, keys.DELAYED + p + visible_at + id16
            if life.expires_at is not None:
                yield TTLS, keys.TTLS + keys.instant(life.expires_at) + p + id16
            if group is None:
                yield VISIBLE, keys.level(p, life.priority) + visible_at + id16
            else:
                order = id16 + bytes([life.priority]) + visible_at
                yield GROUPS, keys.GROUPS + p + keys.hashed(group) + order
                yield GROUP_VISIBLE, keys.GROUP_VISIBLE + p + visible_at + id16
        case State.IN_FLIGHT:
            if life.lease is not None:
                yield EXPIRIES, p + keys.instant(life.lease.expires_at) + id16
        case State.FAILED:
            yield DEAD, keys.DEAD + p + id16
        case State.SUCCEEDED:
            yield KEPT, keys.KEPT + keys.instant(life.keep_until or 0) + p + id16


def check_strays(
    database: MergedReads,
    space: Space,
    p: bytes,
    heads: Iterable[bytes],
    counted_at: int,
    queue: object,
    findings: Findings,
) -> None:
    """Add a violation for each entry of an index that its message must not have.

    `heads` are the keys in `vi` of the heads of groups.
    """
    shown = frozenset(heads)
    remaining = iter(_entries(database, space, p))
    while chunk := list(islice(remaining, MESSAGES_CHUNK)):
        ids = [_id_of(space, key) for key in chunk]
        for key, id16, wanted in zip(chunk, ids, _wanted(database, p, ids, counted_at), strict=True):
            if wanted is None:
                findings.add(
                    DamageKind.INDEX_ORPHAN, f"{space.title} has an entry, but there is no such message", queue, id16
                )
            elif key not in wanted and key not in shown:
                findings.add(
                    DamageKind.INDEX_MISMATCH,
                    f"{space.title} has an entry that does not agree with the message: {key.hex()}",
                    queue,
                    id16,
                )


def _entries(database: MergedReads, space: Space, p: bytes) -> Iterator[bytes]:
    if space in DEADLINES:
        every = database.scan(space.family, space.lead, keys.after(space.lead))
        return (key for key in every if key[9 : 9 + keys.P_SIZE] == p)
    return database.scan(space.family, space.lead + p, keys.after(space.lead + p))


def _id_of(space: Space, key: bytes) -> bytes:
    # The id is the last part of every key, except that in `g` priority 1 and visible_at 8 follow it.
    return key[-25:-9] if space is GROUPS else key[-keys.ID_SIZE :]


def _wanted(database: MergedReads, p: bytes, ids: list[bytes], counted_at: int) -> Iterator[frozenset[bytes] | None]:
    names = [p + id16 for id16 in ids]
    records = database.get_many(keys.MESSAGES, names)
    leases = database.get_many(keys.LEASES, names)
    lives = database.get_many(keys.INDEXES, [keys.LIVES + name for name in names])
    for id16, record, lease, own in zip(ids, records, leases, lives, strict=True):
        if record is None:
            yield None
            continue
        try:
            message = decode_message(from_bytes(id16), record)
            changed = lease if lease is not None else own
            life = message.first if changed is None else decode_life(changed)[1]
            entries = entries_of(p, id16, message.envelope.group, life, counted_at)
            yield frozenset(key for _, key in entries)
        except (StoreUnavailable, InvalidArgument, ValueError, IndexError, OverflowError):
            yield frozenset()  # the check of the messages has reported it


def count_deadlines(
    database: MergedReads, space: Space, directory: StoredDirectory, deadlines: Deadlines, findings: Findings
) -> None:
    """Count the entries of a deadline index by queue.

    The keys begin with the time, so the index is scanned once for all queues and not once for each.
    """
    counted = deadlines[space] = Counter()
    for key in database.scan(space.family, space.lead, keys.after(space.lead)):
        p = key[9 : 9 + keys.P_SIZE]
        if p not in directory.live:
            findings.add(
                DamageKind.QUEUE_UNKNOWN,
                f"is not in the directory, but {space.title} has an entry of it",
                directory.title(p),
                key[17:],
            )
        counted[p] += 1


def check_seen_ends(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    """Check that the idempotency key of each end exists. The key may have been used again since, with a later end.

    The ends of a deleted queue remain until their time comes.
    """
    remaining = database.scan(keys.INDEXES, keys.SEEN_ENDS, keys.after(keys.SEEN_ENDS))
    while chunk := [key[1:] for key in islice(remaining, CHUNK)]:
        seen = database.get_many(keys.INDEXES, [keys.SEEN + key[8:] for key in chunk])
        for key, raw in zip(chunk, seen, strict=True):
            p, name = key[8 : 8 + keys.P_SIZE], key[8 + keys.P_SIZE :]
            if p not in directory.live:
                if p not in directory.names:
                    findings.add(
                        DamageKind.QUEUE_UNKNOWN,
                        f"the end (ix e) of idempotency key {name!r} is of an unknown queue",
                        directory.title(p),
                    )
            elif raw is None:
                findings.add(
                    DamageKind.KEY_END_MISMATCH,
                    f"idempotency key {name!r} has an end (ix e), but does not exist",
                    directory.title(p),
                )
            elif len(raw) >= 16 and keys.parse_instant(raw[8:]) < keys.parse_instant(key):
                findings.add(
                    DamageKind.KEY_END_MISMATCH,
                    f"idempotency key {name!r} has an end (ix e) later than its own",
                    directory.title(p),
                )
