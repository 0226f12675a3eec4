"""Which index entries a message must have, and which entries have no message that must have them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import from_bytes
from holdfast.model.message import State
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.verify.directory_check import StoredDirectory

# Keys looked up at once; of messages fewer, for each may bring a payload of a mebibyte.
CHUNK = 500
MESSAGES_CHUNK = 50


class Space(NamedTuple):
    """An index: its family, the byte that leads its keys there, and what a violation calls it."""

    title: str
    family: int
    lead: bytes = b""


VISIBLE = Space("the visibility index (vi)", keys.VISIBLE)
EXPIRIES = Space("the lease expiry index (li)", keys.EXPIRIES)
DELAYED = Space("the index of the delayed (ix v)", keys.INDEXES, keys.DELAYED)
DEAD = Space("the dead letters (ix d)", keys.INDEXES, keys.DEAD)
GROUPS = Space("the order of its group (ix g)", keys.INDEXES, keys.GROUPS)
GROUP_VISIBLE = Space("the index of what is ready in groups (ix w)", keys.INDEXES, keys.GROUP_VISIBLE)
TTLS = Space("the TTL index (ix t)", keys.INDEXES, keys.TTLS)
KEPT = Space("the index of kept successes (ix k)", keys.INDEXES, keys.KEPT)

# Behind P in each of them stand one queue's entries; the deadlines have the time before P.
OF_ONE_QUEUE = (VISIBLE, EXPIRIES, DELAYED, DEAD, GROUPS, GROUP_VISIBLE)
DEADLINES = (TTLS, KEPT)

# How many deadlines of each kind each queue has.
Deadlines = dict[Space, Counter[bytes]]
Place = tuple[Space, bytes]


def places_of(p: bytes, id16: bytes, group: str | None, life: Life, counted_at: int) -> Iterator[Place]:
    """The index entries that a message of this life has, but for a group's head, which alone stands in `vi`."""
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
                place = id16 + bytes([life.priority]) + visible_at
                yield GROUPS, keys.GROUPS + p + keys.hashed(group) + place
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
    """Name each entry of an index that its message does not call for. `heads` are the keys of groups' heads in `vi`."""
    shown = frozenset(heads)
    remaining = iter(_entries(database, space, p))
    while chunk := list(islice(remaining, MESSAGES_CHUNK)):
        ids = [_id_of(space, key) for key in chunk]
        for key, id16, wanted in zip(chunk, ids, _wanted(database, p, ids, counted_at), strict=True):
            if wanted is None:
                findings.add(f"{space.title} has an entry, but there is no such message", queue, id16)
            elif key not in wanted and key not in shown:
                findings.add(
                    f"{space.title} has an entry that does not agree with the message: {key.hex()}", queue, id16
                )


def _entries(database: MergedReads, space: Space, p: bytes) -> Iterator[bytes]:
    if space in DEADLINES:
        every = database.scan(space.family, space.lead, keys.after(space.lead))
        return (key for key in every if key[9 : 9 + keys.P_SIZE] == p)
    return database.scan(space.family, space.lead + p, keys.after(space.lead + p))


def _id_of(space: Space, key: bytes) -> bytes:
    # Behind the id only `g` has something more: priority 1 and visible_at 8.
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
        except (StoreUnavailable, InvalidArgument):
            yield frozenset()  # named where the messages are checked
            continue
        yield frozenset(key for _, key in places_of(p, id16, message.envelope.group, life, counted_at))


def count_deadlines(
    database: MergedReads, space: Space, directory: StoredDirectory, deadlines: Deadlines, findings: Findings
) -> None:
    """The index lies by time, all queues together: counted once, not once for each queue."""
    counted = deadlines[space] = Counter()
    for key in database.scan(space.family, space.lead, keys.after(space.lead)):
        p = key[9 : 9 + keys.P_SIZE]
        if p not in directory.live:
            findings.add(f"is not in the directory, but {space.title} has an entry of it", directory.title(p), key[17:])
        counted[p] += 1


def check_seen_ends(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    """Each end of an idempotency key has its key, which may have been used anew since, with a later end.

    Ends outlive a deleted queue: they go in their time.
    """
    remaining = database.scan(keys.INDEXES, keys.SEEN_ENDS, keys.after(keys.SEEN_ENDS))
    while chunk := [key[1:] for key in islice(remaining, CHUNK)]:
        seen = database.get_many(keys.INDEXES, [keys.SEEN + key[8:] for key in chunk])
        for key, raw in zip(chunk, seen, strict=True):
            p, name = key[8 : 8 + keys.P_SIZE], key[8 + keys.P_SIZE :]
            if p not in directory.live:
                if p not in directory.names:
                    findings.add(f"an end of idempotency key {name!r} is of no known queue", directory.title(p))
            elif raw is None:
                findings.add(f"idempotency key {name!r} has an end (ix e), but is not there", directory.title(p))
            elif len(raw) >= 16 and keys.parse_instant(raw[8:]) < keys.parse_instant(key):
                findings.add(f"idempotency key {name!r} has an end (ix e) after its own", directory.title(p))
