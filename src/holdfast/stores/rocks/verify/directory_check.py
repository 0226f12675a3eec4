"""Checks of the directory: tenants, queues and their numbers, and keys of queues that do not exist."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.side_records import check_config, check_names, check_policy
from holdfast.model.limits import is_limited
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, decode_counters
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.legacy.online.move_records import MOVE_STATE
from holdfast.stores.values import QueueRow, TenantRow

T = TypeVar("T")

_HIGHEST = b"highest id"
# Set once the indexes of queues are filled. Without it, the next opening fills them.
_INDEXED = b"queue indexes"
# The facts of the store, with the size of each value in bytes.
_FACTS = {
    b"node": 8,
    _HIGHEST: 8,
    b"in use": 0,
    b"version floor": 16,
    b"journal trimmed at": 8,
    b"journal trimmed until": 8,
    _INDEXED: 0,
    b"synced": 8,
    b"log": 16,
    b"link": 12,
}
_DIRECTORY_SPACES = (
    *(keys.TENANTS, keys.QUEUES, keys.QUEUE_NAMES, keys.COUNTERS),
    *(keys.DELETING, keys.LIMITED, keys.META, keys.TRANSFERS, keys.ARRIVALS, keys.LEGACY_MOVED),
)
_INDEX_SPACES = frozenset((*keys.PER_QUEUE_SPACES, keys.TTLS, keys.KEPT, keys.SEEN_ENDS, keys.PIECES, keys.STAGES))


@dataclass(slots=True)
class StoredDirectory:
    """The directory of one shard, as it was read from disk."""

    tenants: dict[int, str]
    queues: list[QueueRow] = field(default_factory=list)
    # By queue prefix: the names of existing queues, and the names of all queues that ever existed.
    live: dict[bytes, QueueRef] = field(default_factory=dict)
    names: dict[bytes, QueueRef] = field(default_factory=dict)
    counters: dict[bytes, Counters] = field(default_factory=dict)
    highest_id: int = 0
    is_indexed: bool = False

    def title(self, p: bytes) -> str:
        """Return the name of a queue, or its tenant_id and queue_id if it has none."""
        known = self.live.get(p) or self.names.get(p)
        if known is not None:
            return str(known)
        return f"tenant {p[:4].hex()} queue {p[4:].hex()}"


def read_directories(shards: Sequence[MergedReads], findings: Findings) -> list[StoredDirectory]:
    """Check and return the directory of each shard. The tenants are those of the first shard."""
    tenants: dict[int, str] = {}
    _read_tenants(shards[0], tenants, findings)
    for number, database in enumerate(shards[1:], 1):
        for name, _ in _items(database, keys.TENANTS):
            findings.add(
                DamageKind.QUEUE_MISPLACED,
                f"shard {number} has a row of tenant {name!r}: all rows of tenants are in the first shard",
            )
    directories = [_read_directory(database, tenants, findings) for database in shards]
    highest_id = max(directory.highest_id for directory in directories)
    owners: dict[QueueRef, int] = {}
    for number, directory in enumerate(directories):
        # A message may have been moved here from another shard, where it got its id.
        directory.highest_id = highest_id
        for row in directory.queues:
            if row.ref in owners:
                findings.add(
                    DamageKind.QUEUE_MISPLACED,
                    f"is in the directories of shard {owners[row.ref]} and shard {number}",
                    row.ref,
                )
            owners[row.ref] = number
            owner = keys.shard_of(keys.prefix(row.tenant_id, row.queue_id), len(shards))
            if owner != number:
                findings.add(
                    DamageKind.QUEUE_MISPLACED,
                    f"is in shard {number}, but its number belongs to shard {owner}",
                    row.ref,
                )
    findings.totals["tenants"] = len(tenants)
    findings.totals["queues"] = len(owners)
    return directories


def _read_directory(database: MergedReads, tenants: dict[int, str], findings: Findings) -> StoredDirectory:
    directory = StoredDirectory(tenants)
    _read_names(database, directory, findings)
    _read_queues(database, directory, findings)
    _read_counters(database, directory, findings)
    _read_facts(database, directory, findings)
    if directory.is_indexed:
        _check_indexes(database, directory, findings)
    return directory


def _read_tenants(database: MergedReads, tenants: dict[int, str], findings: Findings) -> None:
    for name, raw in _items(database, keys.TENANTS):
        row = _decode(raw, TenantRow, f"tenant {name!r}", DamageKind.TENANT_UNREADABLE, findings)
        if row is None:
            continue
        findings.add_all(check_config(row.tenant, row.config))
        if row.tenant.encode() != name:
            findings.add(DamageKind.NAME_MISMATCH, f"tenant {row.tenant!r} is stored under the name {name!r}")
        if row.tenant_id in tenants:
            findings.add(
                DamageKind.NUMBER_SHARED,
                f"tenants {tenants[row.tenant_id]!r} and {row.tenant!r} share number {row.tenant_id}",
            )
        tenants[row.tenant_id] = row.tenant
    # A new tenant gets the number of tenants plus one. After a gap, that number would be given twice.
    if tenants and max(tenants) != len(tenants):
        findings.add(DamageKind.NUMBER_REUSABLE, f"{len(tenants)} tenants, but the highest number is {max(tenants)}")


def _read_names(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    for p, raw in _items(database, keys.QUEUE_NAMES):
        ref = _decode(raw, QueueRef, f"queue name {p.hex()}", DamageKind.QUEUE_UNREADABLE, findings)
        if ref is None:
            continue
        if len(p) != keys.P_SIZE:
            findings.add(
                DamageKind.NAME_MISMATCH, f"the name of {ref} is stored under {p.hex()}, which is not a queue's number"
            )
            continue
        directory.names[p] = ref
        tenant_id, _ = keys.parse_prefix(p)
        if directory.tenants.get(tenant_id) != ref.tenant:
            findings.add(
                DamageKind.TENANT_LOST,
                f"its name belongs to tenant number {tenant_id}, which is not {ref.tenant!r}",
                ref,
            )


def _read_queues(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    for key, raw in _items(database, keys.QUEUES):
        row = _decode(raw, QueueRow, f"queue {key!r}", DamageKind.QUEUE_UNREADABLE, findings)
        if row is None:
            continue
        findings.add_all(check_names(row.ref), row.ref)
        findings.add_all(check_policy(row.policy), row.ref)
        p = keys.prefix(row.tenant_id, row.queue_id)
        if key != row.tenant_id.to_bytes(4, "big") + row.ref.queue.encode():
            findings.add(DamageKind.NAME_MISMATCH, f"the directory has it under {key!r}", row.ref)
        if directory.tenants.get(row.tenant_id) != row.ref.tenant:
            findings.add(DamageKind.TENANT_LOST, f"its tenant does not have the number {row.tenant_id}", row.ref)
        if p in directory.live:
            findings.add(DamageKind.NUMBER_SHARED, f"shares its number with {directory.live[p]}", row.ref)
            continue
        if directory.names.get(p) != row.ref:
            # A new queue gets the number after the highest one that has a name, so without its name this number could
            # be given again.
            findings.add(
                DamageKind.NUMBER_REUSABLE, f"number {row.queue_id} is not in the list of names ever given", row.ref
            )
        directory.live[p] = row.ref
        directory.queues.append(row)


def _read_counters(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    for p, raw in _items(database, keys.COUNTERS):
        try:
            counters = decode_counters(raw)
        except struct.error as error:
            findings.add(DamageKind.COUNT_MISMATCH, f"its counters are damaged: {error}", directory.title(p))
            continue
        if p not in directory.live:
            findings.add(DamageKind.QUEUE_UNKNOWN, "has counters, but is not in the directory", directory.title(p))
        directory.counters[p] = counters


def _read_facts(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    for name, raw in _items(database, keys.META):
        if keys.META + name == MOVE_STATE:
            continue  # `legacy_check.py` checks it
        if _FACTS.get(name) != len(raw):
            findings.add(DamageKind.STORE_UNREADABLE, f"the fact {name!r} of the store is unknown or damaged")
        elif name == _HIGHEST:
            directory.highest_id = int.from_bytes(raw, "big")
        elif name == _INDEXED:
            directory.is_indexed = True
    for key in database.scan(keys.DIRECTORY, b"", b"\xff"):
        if key[:2] not in _DIRECTORY_SPACES:
            findings.add(DamageKind.ENTRY_UNKNOWN, f"the directory has a key of an unknown kind: {key!r}")


def _check_indexes(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    for space, what, rows in (
        (keys.DELETING, "being deleted (d/)", [row for row in directory.queues if row.drain_until is not None]),
        (keys.LIMITED, "with limits (l/)", [row for row in directory.queues if is_limited(row.policy)]),
    ):
        wanted = {keys.prefix(row.tenant_id, row.queue_id) for row in rows}
        found = {p for p, _ in _items(database, space)}
        for p in sorted(wanted - found):
            findings.add(
                DamageKind.QUEUE_INDEX_MISMATCH, f"is missing from the index of queues {what}", directory.title(p)
            )
        for p in sorted(found - wanted):
            findings.add(
                DamageKind.QUEUE_INDEX_MISMATCH,
                f"is in the index of queues {what}, but must not be",
                directory.title(p),
            )


def check_prefixes(database: MergedReads, directory: StoredDirectory, findings: Findings) -> None:
    """Check that no space has keys of a queue that does not exist, with one seek for each queue and space."""
    for family in (keys.MESSAGES, keys.VISIBLE, keys.EXPIRIES, keys.LEASES):
        _check_space(database, family, b"", directory, findings)
    for space in keys.PER_QUEUE_SPACES:
        _check_space(database, keys.INDEXES, space, directory, findings)
    lower = b""
    while (key := next(database.scan(keys.INDEXES, lower, b"\xff"), None)) is not None:
        if key[:1] not in _INDEX_SPACES:
            findings.add(DamageKind.ENTRY_UNKNOWN, f"the indexes have a key of an unknown kind: {key!r}")
        lower = keys.after(key[:1])


def _check_space(
    database: MergedReads, family: int, space: bytes, directory: StoredDirectory, findings: Findings
) -> None:
    lower, upper = space, keys.after(space) if space else b"\xff" * (keys.P_SIZE + 1)
    while (key := next(database.scan(family, lower, upper), None)) is not None:
        p = key[len(space) : len(space) + keys.P_SIZE]
        if p not in directory.live:
            where = f"{keys.FAMILY_NAMES[family]} {space.decode()}".strip()
            findings.add(
                DamageKind.QUEUE_UNKNOWN,
                f"is not in the directory, but {where!r} has entries of it",
                directory.title(p),
            )
        lower = keys.after(space + p)


def _items(database: MergedReads, space: bytes) -> list[tuple[bytes, bytes]]:
    return [(key[len(space) :], raw) for key, raw in database.items(keys.DIRECTORY, space, keys.after(space))]


def _decode(raw: bytes, kind: type[T], what: str, damage: DamageKind, findings: Findings) -> T | None:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        findings.add(damage, f"{what} is damaged: {error}")
        return None
