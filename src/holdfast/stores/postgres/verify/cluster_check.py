"""Check what several databases have to agree on: slots, owners of queues, directories, copies and grants.

The snapshots are not of one moment, so every finding is a suspicion until later snapshots have it too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.slots import SLOTS, fnv32a, home_of, slot_of
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import Snapshot

_TENANTS = """
SELECT tenant, tenant_id, config, revision, home_revision, next_queue_id, granted_messages, granted_bytes, grant_version
FROM tenants
"""

Found = tuple[str | None, Problem]


class _Tables(NamedTuple):
    """The rows of one database that others have to agree with."""

    number: int
    directory: DatabaseDirectory
    epoch: int
    slots: list[int]
    homes: list[int]
    tenants: dict[str, Any]
    # The queues of the tenants whose home this is, with their numbers.
    listed: dict[QueueRef, int]
    grants: dict[tuple[str, int], Any]
    # Tenants whose configuration has not been sent to a database yet.
    unsent: set[tuple[str, int]]
    moving_slots: set[int]
    database_id: UUID
    # The numbers of all databases of the store; empty on all of them but one, and in stores of older versions.
    members: dict[UUID, int]


async def check_cluster(
    snapshots: Sequence[Snapshot], directories: Sequence[DatabaseDirectory], *, uses_slots: bool
) -> list[Found]:
    """Return the problems, each with the name of its queue, if any."""
    tables = []
    for snapshot, directory in zip(snapshots, directories, strict=True):
        async with snapshot.reading():
            tables.append(await _read(snapshot, directory))
    newest = max(tables, key=lambda each: each.epoch)
    if len(newest.slots) != SLOTS:
        return []  # reported by the check of each database
    number_of = _owner_function(newest, len(tables), uses_slots=uses_slots)
    homes = newest.homes if len(tables) > 1 else [0] * SLOTS
    return [
        *_check_members(tables),
        *_check_epochs(tables),
        *_check_queues(tables, homes, number_of),
        *_check_listed(tables, homes, number_of),
        *_check_tenants(tables, homes),
    ]


async def _read(snapshot: Snapshot, directory: DatabaseDirectory) -> _Tables:
    slots = await snapshot.fetch("SELECT slot, shard, home FROM slots ORDER BY slot")
    return _Tables(
        number=snapshot.number,
        directory=directory,
        epoch=await snapshot.value("SELECT epoch FROM cluster"),
        slots=[row["shard"] for row in slots],
        homes=[row["home"] for row in slots],
        tenants={row["tenant"]: row for row in await snapshot.fetch(_TENANTS)},
        listed={
            QueueRef(row["tenant"], row["queue"]): row["queue_id"]
            for row in await snapshot.fetch("SELECT tenant, queue, queue_id FROM directory")
        },
        grants={(row["tenant"], row["shard"]): row for row in await snapshot.fetch("SELECT * FROM grants")},
        unsent={
            (row["tenant"], row["shard"]) for row in await snapshot.fetch("SELECT tenant, shard FROM tenant_copies")
        },
        moving_slots={row["slot"] for row in await snapshot.fetch("SELECT slot FROM slot_moves")},
        database_id=await snapshot.value("SELECT database_id FROM identity"),
        members={
            row["database_id"]: row["shard"] for row in await snapshot.fetch("SELECT database_id, shard FROM members")
        },
    )


def _owner_function(newest: _Tables, databases: int, *, uses_slots: bool) -> Callable[[QueueRef], int]:
    """Return the function that says which database owns a queue."""
    if databases == 1:
        return lambda ref: 0
    if not uses_slots:
        return lambda ref: fnv32a((ref.tenant + ref.queue).encode()) % databases
    return lambda ref: newest.slots[slot_of(*ref)]


def _check_members(tables: Sequence[_Tables]) -> Iterator[Found]:
    """Check each database's number against the list of the store's databases."""
    for listing in tables:
        for each in tables:
            if listing.members and listing.members.get(each.database_id) != each.number:
                what = f"database {each.number} is listed as number {listing.members.get(each.database_id)}"
                yield None, Problem(DamageKind.SLOTS_INVALID, f"{what}: another one could get its number")


def _check_epochs(tables: Sequence[_Tables]) -> Iterator[Found]:
    """Check that databases with the same epoch have the same slot table."""
    first: dict[int, _Tables] = {}
    for each in tables:
        other = first.setdefault(each.epoch, each)
        if (each.slots, each.homes) != (other.slots, other.homes):
            what = f"databases {other.number} and {each.number} have different slot tables of the same epoch"
            yield None, Problem(DamageKind.SLOTS_INVALID, f"{what}, {each.epoch}")


def _check_queues(tables: Sequence[_Tables], homes: list[int], number_of: Callable[[QueueRef], int]) -> Iterator[Found]:
    """Check that each queue is on its owner and in the list of its tenant's home."""
    moving = set().union(*(each.moving_slots for each in tables))
    for each in tables:
        for queue in each.directory.queues.values():
            if queue.is_gone:
                continue
            ref = queue.ref
            is_moving = slot_of(*ref) in moving
            if queue.moving_to is not None and not is_moving:
                what = f"is blocked for a move to database {queue.moving_to} that is not under way: nobody can use it"
                yield str(ref), Problem(DamageKind.QUEUE_BLOCKED, what)
            if queue.moving_to is None and not is_moving and number_of(ref) != each.number:
                what = f"is on database {each.number}, but belongs to database {number_of(ref)}: no call would find it"
                yield str(ref), Problem(DamageKind.QUEUE_MISPLACED, what)
            home = home_of(ref.tenant, homes)
            if queue.is_draining or is_moving or home >= len(tables):
                continue
            known = tables[home].listed.get(ref)
            if known != queue.queue_id:
                what = f"its tenant's home, database {home}, lists it with number {known} instead of {queue.queue_id}"
                yield str(ref), Problem(DamageKind.QUEUE_UNLISTED, what)


def _check_listed(tables: Sequence[_Tables], homes: list[int], number_of: Callable[[QueueRef], int]) -> Iterator[Found]:
    """Check that the queues that a tenant's home lists exist. One on another database may be half created."""
    for each in tables:
        live = {queue.ref for queue in each.directory.queues.values() if not queue.is_gone}
        numbers: dict[tuple[str, int], QueueRef] = {}
        for ref, queue_id in each.listed.items():
            if home_of(ref.tenant, homes) != each.number:
                continue
            if number_of(ref) == each.number and ref not in live and slot_of(*ref) not in each.moving_slots:
                what = "its row is missing, but its tenant lists it: its policy is lost"
                yield str(ref), Problem(DamageKind.POLICY_LOST, what)
            other = numbers.setdefault((ref.tenant, queue_id), ref)
            if other != ref:
                yield str(ref), Problem(DamageKind.NUMBER_SHARED, f"is listed with the number {queue_id} of {other}")
            tenant = each.tenants.get(ref.tenant)
            if tenant is None:
                what = f"its tenant's home, database {each.number}, has no row of the tenant"
                yield str(ref), Problem(DamageKind.TENANT_LOST, what)
            elif queue_id >= tenant["next_queue_id"]:
                what = f"its number {queue_id} would be given again: the next one is {tenant['next_queue_id']}"
                yield str(ref), Problem(DamageKind.NUMBER_REUSABLE, what)


def _check_tenants(tables: Sequence[_Tables], homes: list[int]) -> Iterator[Found]:
    """Check the copies of tenants' configurations against their homes, and the parts of quotas against the grants."""
    for each in tables:
        for name, row in each.tenants.items():
            home = home_of(name, homes)
            if home >= len(tables):
                continue
            original = tables[home].tenants.get(name)
            if home == each.number:
                yield from _check_grant(name, row, tables[home], each.number, len(tables))
                continue
            if original is None:
                what = f"database {each.number} has a copy of tenant {name!r}, but its home, database {home}, has none"
                yield None, Problem(DamageKind.TENANT_LOST, what)
                continue
            yield from _check_copy(name, row, original, is_unsent=(name, each.number) in tables[home].unsent)
            yield from _check_grant(name, row, tables[home], each.number, len(tables))


def _check_copy(name: str, copy: Any, original: Any, *, is_unsent: bool) -> Iterator[Found]:
    if copy["tenant_id"] != original["tenant_id"]:
        what = f"tenant {name!r} has number {original['tenant_id']}, but {copy['tenant_id']} in a copy"
        yield None, Problem(DamageKind.COPY_MISMATCH, what)
    if copy["home_revision"] == original["revision"]:
        if copy["config"] != original["config"]:
            what = f"a copy of the configuration of tenant {name!r} differs from the one of the same revision"
            yield None, Problem(DamageKind.COPY_MISMATCH, what)
    # Copies that are older than this table have revision 0.
    elif 0 < copy["home_revision"] < original["revision"] and not is_unsent:
        what = f"a copy of the configuration of tenant {name!r} is out of date, and nothing is noted to update it"
        yield None, Problem(DamageKind.COPY_MISMATCH, what)


def _check_grant(name: str, row: Any, home: _Tables, number: int, databases: int) -> Iterator[Found]:
    """Check that a database has no larger part of a quota than its home has noted for it."""
    if databases == 1 or not (row["granted_messages"] or row["granted_bytes"]):
        return
    grant = home.grants.get((name, number))
    noted = (0, 0) if grant is None else (grant["messages"], grant["bytes"])
    if row["granted_messages"] > noted[0] or row["granted_bytes"] > noted[1]:
        part = (row["granted_messages"], row["granted_bytes"])
        what = f"database {number} may store {part} messages and bytes of tenant {name!r}, but was granted {noted}"
        yield None, Problem(DamageKind.GRANT_EXCEEDED, what)
