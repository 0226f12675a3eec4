"""Make a store of databases, and join further ones to it: which databases belong to the store, and their numbers.

    1. each database   migrate its tables, one of which has its identity
    2. all of them     lock, in the order of their identities
    3. one of them     list all databases of the store with their numbers, in the table `members`: it is decided
    4. each database   write its own number and the slot table, in `cluster` and `slots`

Any number of processes may do this at once, with the databases in any order. All of them lock in the same order, so
they wait for one another and never for ever. The list is written in one transaction, and only if there is none. A
process that finds a list completes step 4, no matter which process wrote the list. So after a kill at any point, the
next run finishes the work.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from asyncpg import exceptions

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.postgres.cluster.slots import SLOTS, spread

# Advisory lock, held on every database of the store while its members are listed.
_LOCK = 0x6D656D62
# How long to wait for other processes that migrate the same store.
_WAIT_S = 600.0


class Member(NamedTuple):
    """A database of the store, as it is listed."""

    database_id: UUID
    shard: int
    cluster_id: UUID
    is_founder: bool


class _SlotTable(NamedTuple):
    """The owner and the home of each slot."""

    epoch: int
    slots: list[int]
    homes: list[int]


class _Database(NamedTuple):
    """A database that was given, before it is joined."""

    connection: Any
    database_id: UUID
    # None: it belongs to no store yet.
    cluster_id: UUID | None
    shard: int | None
    # Empty on all databases of a store but one.
    members: list[Member]


async def join_all(connections: Sequence[Any]) -> None:
    """Make one store of these databases, or join those that are new to the store of the others. Their tables must be of
    the newest version.

    Raise `InvalidArgument` if they belong to different stores, or if databases that are needed were not given, and
    `StoreUnavailable` if other processes are at it for long.
    """
    ids = [await _identity(each) for each in connections]
    if len(set(ids)) < len(ids):
        raise InvalidArgument(
            "two of these URLs name one database, or one database is a copy of another; name each database of the "
            "store once",
            field="store",
        )
    in_order = [connection for _, connection in sorted(zip(ids, connections, strict=True), key=lambda each: each[0])]
    locked: list[Any] = []
    try:
        for connection in in_order:
            await _lock(connection)
            locked.append(connection)
        await _join(connections, in_order[0])
    finally:
        for connection in locked:
            if not connection.is_closed():
                await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)


async def _identity(connection: Any) -> UUID:
    # The row may be missing after somebody has emptied all tables.
    await connection.execute("INSERT INTO holdfast.identity DEFAULT VALUES ON CONFLICT DO NOTHING")
    database_id: UUID = await connection.fetchval("SELECT database_id FROM holdfast.identity")
    return database_id


async def _lock(connection: Any) -> None:
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK, timeout=_WAIT_S)
    except (TimeoutError, exceptions.LockNotAvailableError, exceptions.QueryCanceledError):
        raise StoreUnavailable(
            "another process has been migrating this store for a long time; wait until it has ended, then try again"
        ) from None


async def _join(connections: Sequence[Any], registrar: Any) -> None:
    """Do steps 3 and 4. `registrar` gets the list if there is none."""
    databases = [await _read(each) for each in connections]
    _check_one_store(databases)
    listed = [each for each in databases if each.members]
    if listed:
        registrar, members = listed[0].connection, listed[0].members
    else:
        members = await _list(registrar, await _first_members(databases))
    members = await _list_new(registrar, members, databases)
    _check_numbers(databases, members)
    by_id = {each.database_id: each for each in members}
    table = await _newest_table(databases) or _first_table(members)
    for each in databases:
        if each.cluster_id is None:
            await _write_membership(each.connection, by_id[each.database_id], table)


async def _read(connection: Any) -> _Database:
    row = await connection.fetchrow("SELECT cluster_id, shard FROM holdfast.cluster")
    return _Database(
        connection,
        await _identity(connection),
        None if row is None else row["cluster_id"],
        None if row is None else row["shard"],
        await _members_of(connection),
    )


async def _members_of(connection: Any) -> list[Member]:
    rows = await connection.fetch(
        "SELECT database_id, shard, cluster_id, is_founder FROM holdfast.members ORDER BY shard"
    )
    return [Member(*row) for row in rows]


def _check_one_store(databases: Sequence[_Database]) -> None:
    known = {each.cluster_id for each in databases if each.cluster_id is not None}
    known.update(member.cluster_id for each in databases for member in each.members)
    if len(known) > 1 or sum(bool(each.members) for each in databases) > 1:
        raise InvalidArgument(
            "these databases belong to different stores; name the databases of one store", field="store"
        )


# --- 3. The list -----------------------------------------------------------------------------------------------------


async def _list(registrar: Any, members: Sequence[Member]) -> list[Member]:
    """Return the list of members. Write it first if there is none."""
    async with registrar.transaction():
        await registrar.execute("LOCK TABLE holdfast.members IN EXCLUSIVE MODE")
        if not await registrar.fetchval("SELECT EXISTS (SELECT 1 FROM holdfast.members)"):
            await registrar.execute(
                "INSERT INTO holdfast.members (database_id, shard, cluster_id, is_founder) "
                "SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::boolean[])",
                *(list(column) for column in zip(*members, strict=True)),
            )
    return await _members_of(registrar)


async def _first_members(databases: Sequence[_Database]) -> list[Member]:
    """Return the list of a store without one: a new store, or one that an older version has made."""
    old = [each for each in databases if each.cluster_id is not None]
    if not old:
        cluster_id = uuid4()
        return [Member(each.database_id, number, cluster_id, is_founder=True) for number, each in enumerate(databases)]
    members = {each.shard: each for each in old if each.shard is not None}
    table = await _newest_table(databases)
    assert table is not None
    used = {*table.slots, *table.homes, *range(max(members))}
    missing = sorted(used - set(members))
    if missing:
        members |= await _interrupted(databases, missing)
    known_id = old[0].cluster_id
    assert known_id is not None
    return [
        Member(each.database_id, number, known_id, is_founder=number in used)
        for number, each in sorted(members.items())
    ]


async def _interrupted(databases: Sequence[_Database], missing: list[int]) -> dict[int, _Database]:
    """Give the missing numbers to the new databases, if an older version was interrupted while it made the store.

    The first database leases the node numbers of ids. If it never has, there is no message, so no other database can
    have queues under these numbers.
    """
    new = [each for each in databases if each.cluster_id is None]
    first = next((each for each in databases if each.shard == 0), None)
    is_unused = first is not None and not await first.connection.fetchval(
        "SELECT EXISTS (SELECT 1 FROM holdfast.nodes)"
    )
    if not is_unused or len(new) != len(missing):
        raise InvalidArgument(
            f"this store has more databases: number {missing[0]} was not given; name all of them, separated by commas",
            field="store",
            database=missing[0],
        )
    return dict(zip(missing, new, strict=True))


async def _list_new(registrar: Any, members: list[Member], databases: Sequence[_Database]) -> list[Member]:
    """Add the databases to the list that it does not have, and return it. They get the next numbers; one that an older
    version has joined keeps its number."""
    known = {each.database_id for each in members}
    for each in databases:
        if each.database_id not in known:
            await registrar.execute(
                "INSERT INTO holdfast.members (database_id, shard, cluster_id, is_founder) "
                "SELECT $1, coalesce($2, max(shard) + 1), $3, false FROM holdfast.members ON CONFLICT DO NOTHING",
                *(each.database_id, each.shard, members[0].cluster_id),
            )
    return await _members_of(registrar)


def _check_numbers(databases: Sequence[_Database], members: Sequence[Member]) -> None:
    """Check each database's number and store against the list."""
    by_id = {each.database_id: each.shard for each in members}
    for each in databases:
        listed = by_id.get(each.database_id)
        if listed is None or (each.shard is not None and each.shard != listed):
            raise InvalidArgument(
                f"a database is number {each.shard} by its own tables, but the store has another one of this number or "
                "lists it otherwise; name the databases of one store",
                field="store",
            )


# --- 4. The databases themselves -------------------------------------------------------------------------------------


async def _newest_table(databases: Sequence[_Database]) -> _SlotTable | None:
    """Return the newest slot table; None if no database has one yet. Raise `StoreUnavailable` if it is damaged."""
    tables = []
    for each in databases:
        if each.cluster_id is not None:
            epoch = await each.connection.fetchval("SELECT epoch FROM holdfast.cluster")
            rows = await each.connection.fetch("SELECT shard, home FROM holdfast.slots ORDER BY slot")
            tables.append(_SlotTable(epoch, [row["shard"] for row in rows], [row["home"] for row in rows]))
    newest = max(tables, key=lambda table: table.epoch, default=None)
    if newest is not None and len(newest.slots) != SLOTS:
        raise StoreUnavailable("the slot table of this store is damaged; restore a backup")
    return newest


def _first_table(members: Sequence[Member]) -> _SlotTable:
    """Return the slot table of a new store: its databases share the slots evenly."""
    slots = spread(sum(each.is_founder for each in members))
    return _SlotTable(1, slots, slots)


async def _write_membership(connection: Any, member: Member, table: _SlotTable) -> None:
    """Write a database's number and the slot table. A database that joins later owns no slots until queues are moved to
    it by resharding."""
    async with connection.transaction():
        await connection.execute(
            "INSERT INTO holdfast.cluster (cluster_id, shard, epoch) VALUES ($1, $2, $3)",
            *(member.cluster_id, member.shard, table.epoch),
        )
        await connection.execute(
            "INSERT INTO holdfast.slots (slot, shard, home) "
            "SELECT n - 1, s, h FROM unnest($1::integer[], $2::integer[]) WITH ORDINALITY AS u (s, h, n)",
            *(table.slots, table.homes),
        )
