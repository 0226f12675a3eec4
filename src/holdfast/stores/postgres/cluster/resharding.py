"""Slots from one database to another, with all their queues, while servers go on.

    1. source   `slot_moves`, and `moving_to` of the slot's queues: nobody touches them from here on
    2. target   the same queues, not to be touched either; their rows are copied, in bounded steps
    3. source   the slot's owner is the target, under a new epoch: it is decided
    4. target   the same, and the queues are to be touched; then the other databases
    5. source   the rows go, in bounded steps, and then the queues; `slot_moves` forgets it

`reshard` does all of it, blocking. Calls on these queues are `store_unavailable` from 1 to 4; all others go on. Step 1
locks the table of queues for a moment: whoever writes to a queue has read its row in the same transaction, so nobody
who saw it as it was is still at work afterwards. What a crash leaves is finished by the next call, which goes on where
the copies ended, for their source stands still; if none comes, a server's sweep finishes what was decided and calls off
what was not. One slot at a time, in the whole store, by a lock on its first database.

The journal's events stay where they were written, and with them the queue's row, until they are forgotten.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from asyncpg.exceptions import LockNotAvailableError

from holdfast.model.errors import Internal, InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect, shown
from holdfast.stores.postgres.cluster.row_copying import copy_rows, count_rows, delete_rows
from holdfast.stores.postgres.cluster.slots import SLOTS, slot_of
from holdfast.stores.postgres.notifier import ring_for
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.schema.statements import SQL

# Of an advisory lock on the first database, held while a slot moves.
_LOCK = 0x736C6F74
# Whoever works on any queue waits while this waits for them: so not for long, and then again.
_PATIENCE = "SET LOCAL lock_timeout = '500ms'"
_TRIES = 20
# So long after it began, a move that nobody has the lock for is one whose process died.
_ABANDONED_S = 10.0

_ARRIVED = (
    *("tenant", "queue", "tenant_id", "queue_id", "policy", "revision", "lease_ms", "max_lease_ms", "keeps"),
    *("is_paused", "has_groups", "highest_grouped"),
)


class MovedQueues(NamedTuple):
    slot: int
    queues: int
    messages: int


class _Going(NamedTuple):
    """A queue on its way: its row on the source, its key on the target."""

    row: Any
    # None: it was deleted there, after it was decided.
    key: int | None


class AnotherMoves(StoreUnavailable):
    """Another process has the lock."""


Progress = Callable[[str], None]


def even_plan(slots: list[int], databases: int) -> dict[int, int]:
    """Which slots go where, so that each of so many databases owns as many as any other; no more than needed move."""
    shares = [SLOTS // databases + (number < SLOTS % databases) for number in range(databases)]
    owned = [[slot for slot, owner in enumerate(slots) if owner == number] for number in range(databases)]
    spare = [slot for owner, slot in ((owner, slot) for slot, owner in enumerate(slots)) if owner >= databases]
    for number, share in enumerate(shares):
        spare += owned[number][share:]
    plan: dict[int, int] = {}
    for number, share in enumerate(shares):
        for _ in range(share - len(owned[number])):
            plan[spare.pop()] = number
    return plan


def reshard(
    urls: list[str],
    plan: dict[int, int] | None = None,
    progress: Progress = lambda text: None,
    *,
    onto: int | None = None,
) -> list[MovedQueues]:
    """Finish what a crash left, and move these slots to these databases; without a plan, as many as make it even, over
    the first `onto` of them or over all.

    It may be killed at any point and done again. Every server has to be of this version, and be given all databases.
    """

    async def work() -> list[MovedQueues]:
        cluster = PostgresCluster(urls)
        try:
            await cluster.open()
            resharding = Resharding(cluster, QuotaGrants(cluster))
            async with resharding.alone():
                done = [await resharding.move(*each, progress) for each in (await resharding.unfinished()).items()]
                wanted = wanted_moves(cluster, onto) if plan is None else plan
                return done + [await resharding.move(slot, to, progress) for slot, to in sorted(wanted.items())]
        finally:
            await cluster.close()

    return asyncio.run(work())


def wanted_moves(cluster: PostgresCluster, onto: int | None) -> dict[int, int]:
    """Which slots have to go where for the first `onto` databases, or all, to share them evenly; of an open cluster."""
    databases = len(cluster.shards)
    if onto is not None and not 1 <= onto <= databases:
        raise InvalidArgument(f"this store has {databases} databases: queues cannot go onto {onto}", field="onto")
    return even_plan(cluster.table()[1], databases if onto is None else onto)


class Resharding:
    def __init__(self, cluster: PostgresCluster, grants: QuotaGrants) -> None:
        self._cluster = cluster
        self._grants = grants

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """`StoreUnavailable` if another moves slots of this store."""
        if not self._cluster.goes_by_slots:
            raise InvalidArgument("with shard_map `fnv-mod` no slot can be moved", field="shard_map")
        connection = await connect(self._cluster.shards[0].url)
        try:
            if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
                raise AnotherMoves("slots of this store are being moved by another process: wait for it to end")
            self._keeper = connection
            yield
        finally:
            connection.terminate()

    async def unfinished(self) -> dict[int, int]:
        """Slots that a crash left on their way, and where they go."""
        return {
            row["slot"]: row["to_shard"]
            for _, rows in await self._cluster.fetch_all("SELECT slot, to_shard FROM slot_moves")
            for row in rows
        }

    async def move(self, slot: int, to: int, progress: Progress = lambda text: None) -> MovedQueues:
        """Within `alone`. Does nothing if the slot is there already."""
        target = self._cluster.numbered(to)
        source, begun = await self._source(slot)
        if begun is not None and begun["to_shard"] == source.number:
            await self._undo(slot, source)
            begun = None
        if begun is not None and begun["to_shard"] != to:
            raise StoreUnavailable(f"slot {slot} is on its way to database {begun['to_shard']}: finish that first")
        if begun is None and source is target:
            return MovedQueues(slot, 0, 0)
        if begun is None:
            await self._hold(slot, source, target)
        is_decided = begun is not None and begun["is_decided"]
        held = [row for row in await source.fetch(SQL["held_queues"]) if slot_of(row["tenant"], row["queue"]) == slot]
        going = [_Going(row, await self._announce(row, source, target, is_decided=is_decided)) for row in held]
        messages = 0
        if not is_decided:
            for each in going:
                progress(f"{each.row['tenant']}/{each.row['queue']}")
                assert each.key is not None
                messages += await copy_rows(source, each.row["key"], target, each.key)
                await self._check(each.row, each.key, source, target)
            await self._decide(slot, source, target)
        await self._publish(slot, going, source, target)
        for each in going:
            await self._let_go(each, source, target)
        await source.fetch("DELETE FROM slot_moves WHERE slot = $1", slot)
        return MovedQueues(slot, len(going), messages)

    async def _source(self, slot: int) -> tuple[PostgresDatabase, Any]:
        """Which database has the slot or is still rid of it, and how far that went."""
        found = await self._cluster.fetch_all("SELECT * FROM slot_moves WHERE slot = $1", slot)
        if len(found) < len(self._cluster.shards):
            raise StoreUnavailable("a database of this store is down: slots can be moved when all are there")
        for shard, rows in found:
            if rows:
                return shard, rows[0]
        return self._cluster.numbered(await self._owner(slot)), None

    async def _owner(self, slot: int) -> int:
        await self._cluster.refresh_now()
        return self._cluster.owner_of(slot)

    # --- 1. Nobody touches them any more -----------------------------------------------------------------------------

    async def _hold(self, slot: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        [row] = await source.fetch("SELECT coalesce(max(key), 0) AS key FROM queues")
        after = row["key"]
        before = await source.use(lambda connection: self._keys(connection, slot, 0))

        async def work(connection: Any) -> None:
            await connection.execute(_PATIENCE)
            await connection.execute("LOCK TABLE queues IN ACCESS EXCLUSIVE MODE")
            # What came since, and then only those: the others' names were looked at before anybody had to wait.
            keys = [*before, *await self._keys(connection, slot, after)]
            held = await connection.fetch(SQL["queues_by_keys"], keys)
            for row in held:
                if row["drain_until"] is not None:
                    raise StoreUnavailable(
                        f"queue {row['tenant']}/{row['queue']} is being deleted: wait until it is gone"
                    )
            if await connection.fetchval("SELECT count(*) FROM arrivals WHERE queue_key = ANY($1::bigint[])", keys):
                raise StoreUnavailable(f"messages are on their way to a queue of slot {slot}: try again in a while")
            await connection.execute("INSERT INTO slot_moves (slot, to_shard) VALUES ($1, $2)", slot, target.number)
            await connection.execute(
                "UPDATE queues SET moving_to = $2, revision = revision + 1 WHERE key = ANY($1::bigint[])",
                keys,
                target.number,
            )

        for tries_left in range(_TRIES, -1, -1):
            try:
                await source.step(work)
                return
            except LockNotAvailableError:
                if not tries_left:
                    raise StoreUnavailable(
                        f"a transaction on {shown(source.url)} has been open for long: try again when it has ended"
                    ) from None

    async def _keys(self, connection: Any, slot: int, after: int) -> list[int]:
        """The slot's queues, of those with a key above `after`."""
        rows = await connection.fetch(SQL["queue_names"], after)
        return [row["key"] for row in rows if slot_of(row["tenant"], row["queue"]) == slot]

    # --- What a crash left -------------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """By sweeps: a move that nobody carries on is finished if it was decided, and else called off."""
        found = await self._cluster.fetch_all(SQL["old_slot_moves"], _ABANDONED_S)
        if not any(rows for _, rows in found):
            return 0
        recovered = 0
        try:
            async with self.alone():
                for source, rows in found:
                    for row in rows:
                        if row["is_decided"]:
                            await self.move(row["slot"], row["to_shard"])
                        elif await source.fetch(SQL["call_off_slot"], row["slot"]):
                            await self._undo(row["slot"], source)
                        recovered += 1
        except AnotherMoves:
            pass  # then it is carried on
        return recovered

    async def _undo(self, slot: int, source: PostgresDatabase) -> None:
        """Nobody can decide it any more: the copies go, and then the queues are what they were."""
        for shard in self._cluster.shards:
            if shard is not source:
                for row in await shard.fetch(SQL["arriving_queues"]):
                    if slot_of(row["tenant"], row["queue"]) == slot:
                        await delete_rows(shard, row["key"])
                        await shard.fetch(SQL["drop_arriving"], row["key"])

        async def release(connection: Any) -> None:
            keys = [
                row["key"]
                for row in await connection.fetch(SQL["held_queues"])
                if slot_of(row["tenant"], row["queue"]) == slot
            ]
            await connection.execute(SQL["release_queues"], keys)
            await connection.execute("DELETE FROM slot_moves WHERE slot = $1", slot)

        await source.step(release)

    # --- 2. The same on the target -----------------------------------------------------------------------------------

    async def _announce(
        self, row: Any, source: PostgresDatabase, target: PostgresDatabase, *, is_decided: bool
    ) -> int | None:
        [tenant] = await source.fetch(SQL["tenant"], row["tenant"])
        is_home = self._cluster.home_of(row["tenant"]) is source
        revision = tenant["revision" if is_home else "home_revision"]

        async def work(connection: Any) -> int | None:
            if not is_decided:
                await connection.execute(
                    SQL["arriving_tenant"], tenant["tenant"], tenant["tenant_id"], tenant["config"], revision
                )
                await connection.execute(SQL["arriving_queue"], *(row[name] for name in _ARRIVED), target.number)
            found = await connection.fetchrow(
                "SELECT key, queue_id FROM queues WHERE tenant = $1 AND queue = $2 AND gone_at IS NULL",
                row["tenant"],
                row["queue"],
            )
            if found is not None and found["queue_id"] == row["queue_id"]:
                key: int = found["key"]
                return key
            if is_decided:
                return None
            raise Internal(f"{shown(target.url)} has another queue {row['tenant']}/{row['queue']} already")

        return await target.step(work)

    async def _check(self, row: Any, key: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        before, after = await count_rows(source, row["key"]), await count_rows(target, key)
        if before != after:
            raise Internal(f"the copy of {row['tenant']}/{row['queue']} has {after}, not {before}: it is not decided")

    # --- 3, 4. Whose it is -------------------------------------------------------------------------------------------

    async def _decide(self, slot: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        await self._keeper.fetchval("SELECT 1")  # still alone
        epoch = await self._newest_epoch() + 1

        async def work(connection: Any) -> None:
            if await connection.fetchval(SQL["decide_slot"], slot, target.number) is None:
                raise StoreUnavailable(f"the move of slot {slot} took so long that it was called off: try again")
            await connection.execute("UPDATE slots SET shard = $2 WHERE slot = $1", slot, target.number)
            await connection.execute("UPDATE cluster SET epoch = $1", epoch)

        await source.step(work)

    async def _publish(
        self, slot: int, going: list[_Going], source: PostgresDatabase, target: PostgresDatabase
    ) -> None:
        await self._cluster.refresh_now()
        going = [each for each in going if each.key is not None]
        sums = {each.key: (await source.fetch(SQL["sums"], each.row["key"]))[0] for each in going}
        ready = {QueueRef(each.row["tenant"], each.row["queue"]): 0 for each in going}

        async def work(connection: Any) -> None:
            await self._write_table(connection)
            for each in going:
                arrived = "UPDATE queues SET moving_to = NULL WHERE key = $1 AND moving_to IS NOT NULL RETURNING key"
                # If this is done again, the queue has gone on since.
                if await connection.fetchval(arrived, each.key) is not None:
                    await connection.execute(SQL["put_sums"], each.key, *sums[each.key])

        await target.step(work)
        await target.use(lambda connection: ring_for(connection, ready))
        for shard in self._cluster.shards:
            if shard is not target:
                await shard.step(self._write_table)

    async def _write_table(self, connection: Any) -> None:
        epoch, slots = self._cluster.table()
        if (
            await connection.fetchval("UPDATE cluster SET epoch = $1 WHERE epoch < $1 RETURNING epoch", epoch)
            is not None
        ):
            await connection.execute(SQL["put_slots"], slots)

    async def _newest_epoch(self) -> int:
        found = await self._cluster.fetch_all("SELECT epoch FROM cluster")
        newest: int = max(row["epoch"] for _, rows in found for row in rows)
        return newest

    # --- 5. Nothing is left ------------------------------------------------------------------------------------------

    async def _let_go(self, going: _Going, source: PostgresDatabase, target: PostgresDatabase) -> None:
        tenant = going.row["tenant"]
        # First the target is granted what has come to it: quotas hold at every moment.
        await self._grants.note_used(tenant, target)
        await delete_rows(source, going.row["key"])

        async def last(connection: Any) -> None:
            await self._grants.lower_in(connection, tenant, going.row["key"])
            await connection.execute("UPDATE queues SET gone_at = now_ms(NULL) WHERE key = $1", going.row["key"])

        await source.step(last)
        await self._grants.take_back(tenant, source)
