"""Move slots with all their queues from one database to another, while servers go on.

    1. source   insert the slot into `slot_moves`, and set `moving_to` of its queues: no call touches them from here on
    2. target   create the same queues, also blocked, and copy their rows in bounded steps
    3. source   make the target the slot's owner, under a new epoch: the move is decided
    4. target   do the same, and unblock the queues; then update the other databases
    5. source   delete the rows in bounded steps, then the queues, then the row of `slot_moves`

`resharding.reshard` does all of it. Calls on these queues fail with `store_unavailable` from step 1 to step 4; all
others go on. Step 1 locks the table of queues for a moment: every writer reads its queue's row in the same transaction,
so no transaction that saw the queue before it was blocked is still running afterwards. The next `resharding.reshard`
finishes a move that a crash interrupted: it goes on where the copies ended, because their source does not change.
Without one, a server's sweep finishes a decided move and cancels an undecided one. An advisory lock on the first
database allows one moving slot at a time in the whole store.

The journal's events stay on the database where they were written, and with them the queue's row, until they expire.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from asyncpg.exceptions import LockNotAvailableError

from holdfast.model.errors import Internal, InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect, hide_password
from holdfast.stores.postgres.cluster.row_copying import copy_rows, count_rows, delete_rows
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.notifier import notify_ready
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.schema.statements import SQL

# Advisory lock on the first database, held while a slot moves.
_LOCK = 0x736C6F74
# All calls on queues wait while this transaction waits for the lock, so it waits for a short time only and then tries
# again.
_PATIENCE = "SET LOCAL lock_timeout = '500ms'"
_TRIES = 20
# A move this old whose lock is free is one whose process died.
_ABANDONED_S = 10.0

_ARRIVED = (
    *("tenant", "queue", "tenant_id", "queue_id", "policy", "revision", "lease_ms", "max_lease_ms", "keeps"),
    *("is_paused", "has_groups", "highest_grouped"),
)


class MovedSlot(NamedTuple):
    """A slot that was moved, with the number of its queues and messages."""

    slot: int
    queues: int
    messages: int


class _MovingQueue(NamedTuple):
    """A queue that moves: its row on the source, and its key on the target."""

    row: Any
    # None: deleted on the target after the move was decided.
    key: int | None


class ReshardingInProgress(StoreUnavailable):
    """Another process has the lock for moving slots."""


Progress = Callable[[str], None]


class Resharding:
    """Moves slots between the databases of an open cluster."""

    def __init__(self, cluster: PostgresCluster, grants: QuotaGrants) -> None:
        self._cluster = cluster
        self._grants = grants

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Hold the lock for moving slots. Raise `ReshardingInProgress` if another process has it."""
        if not self._cluster.uses_slots:
            raise InvalidArgument("slots cannot be moved with shard_map `fnv-mod`", field="shard_map")
        connection = await connect(self._cluster.shards[0].url)
        try:
            if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
                raise ReshardingInProgress("another process is moving slots of this store; wait until it has ended")
            self._lock_connection = connection
            yield
        finally:
            connection.terminate()

    async def unfinished(self) -> dict[int, int]:
        """Return slot → target of the moves that a crash has interrupted."""
        return {
            row["slot"]: row["to_shard"]
            for _, rows in await self._cluster.fetch_all("SELECT slot, to_shard FROM slot_moves")
            for row in rows
        }

    async def move(self, slot: int, to: int, progress: Progress = lambda text: None) -> MovedSlot:
        """Move a slot; do nothing if it is there already. The caller holds the lock (`lock`)."""
        target = self._cluster.shard_by_number(to)
        source, begun = await self._source(slot)
        if begun is not None and begun["to_shard"] == source.number:
            await self._cancel(slot, source)
            begun = None
        if begun is not None and begun["to_shard"] != to:
            raise StoreUnavailable(
                f"slot {slot} is being moved to database {begun['to_shard']}; finish that move first"
            )
        if begun is None and source is target:
            return MovedSlot(slot, 0, 0)
        if begun is None:
            await self._block_queues(slot, source, target)
        is_decided = begun is not None and begun["is_decided"]
        blocked = [
            row for row in await source.fetch(SQL["held_queues"]) if slot_of(row["tenant"], row["queue"]) == slot
        ]
        moving = [
            _MovingQueue(row, await self._create_on_target(row, source, target, is_decided=is_decided))
            for row in blocked
        ]
        messages = 0
        if not is_decided:
            for each in moving:
                progress(f"{each.row['tenant']}/{each.row['queue']}")
                assert each.key is not None
                messages += await copy_rows(source, each.row["key"], target, each.key)
                await self._check(each.row, each.key, source, target)
            await self._decide(slot, source, target)
        await self._publish(slot, moving, source, target)
        for each in moving:
            await self._delete_from_source(each, source, target)
        await source.fetch("DELETE FROM slot_moves WHERE slot = $1", slot)
        return MovedSlot(slot, len(moving), messages)

    async def _source(self, slot: int) -> tuple[PostgresDatabase, Any]:
        """Return the database that has the slot or still has rows of it, and the row of `slot_moves` if a move has
        begun."""
        found = await self._cluster.fetch_all("SELECT * FROM slot_moves WHERE slot = $1", slot)
        if len(found) < len(self._cluster.shards):
            raise StoreUnavailable("a database of this store is down; slots can be moved only while all are up")
        for shard, rows in found:
            if rows:
                return shard, rows[0]
        return self._cluster.shard_by_number(await self._owner(slot)), None

    async def _owner(self, slot: int) -> int:
        await self._cluster.refresh_now()
        return self._cluster.owner_of(slot)

    # --- 1. Block the queues -----------------------------------------------------------------------------

    async def _block_queues(self, slot: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        """Block all queues of the slot on the source."""
        [row] = await source.fetch("SELECT coalesce(max(key), 0) AS key FROM queues")
        after = row["key"]
        before = await source.use(lambda connection: self._keys(connection, slot, 0))

        async def work(connection: Any) -> None:
            await connection.execute(_PATIENCE)
            await connection.execute("LOCK TABLE queues IN ACCESS EXCLUSIVE MODE")
            # Only queues created since need a look here; the others were listed before any call had to wait.
            keys = [*before, *await self._keys(connection, slot, after)]
            blocked = await connection.fetch(SQL["queues_by_keys"], keys)
            for row in blocked:
                if row["drain_until"] is not None:
                    raise StoreUnavailable(
                        f"queue {row['tenant']}/{row['queue']} is being deleted; try again once the delete has finished"
                    )
            if await connection.fetchval("SELECT count(*) FROM arrivals WHERE queue_key = ANY($1::bigint[])", keys):
                raise StoreUnavailable(f"messages are being moved to a queue of slot {slot}; try again in a while")
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
                        f"a transaction on {hide_password(source.url)} has been open for a long time; try again later"
                    ) from None

    async def _keys(self, connection: Any, slot: int, after: int) -> list[int]:
        """Return the keys above `after` of the slot's queues."""
        rows = await connection.fetch(SQL["queue_names"], after)
        return [row["key"] for row in rows if slot_of(row["tenant"], row["queue"]) == slot]

    # --- Interrupted moves -------------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """For sweeps: finish abandoned moves that were decided, and cancel the others. Return how many there were."""
        found = await self._cluster.fetch_all(SQL["old_slot_moves"], _ABANDONED_S)
        if not any(rows for _, rows in found):
            return 0
        recovered = 0
        try:
            async with self.lock():
                for source, rows in found:
                    for row in rows:
                        if row["is_decided"]:
                            await self.move(row["slot"], row["to_shard"])
                        elif await source.fetch(SQL["call_off_slot"], row["slot"]):
                            await self._cancel(row["slot"], source)
                        recovered += 1
        except ReshardingInProgress:
            pass  # another process goes on with the move
        return recovered

    async def _cancel(self, slot: int, source: PostgresDatabase) -> None:
        """Cancel a move that can no longer be decided: delete the copies, then unblock the queues."""
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

    # --- 2. Copy to the target -----------------------------------------------------------------------------------

    async def _create_on_target(
        self, row: Any, source: PostgresDatabase, target: PostgresDatabase, *, is_decided: bool
    ) -> int | None:
        """Create a blocked queue on the target and return its key; None if the move is decided and the queue was
        deleted on the target since."""
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
            raise Internal(f"{hide_password(target.url)} has another queue {row['tenant']}/{row['queue']} already")

        return await target.step(work)

    async def _check(self, row: Any, key: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        """Raise `Internal` if the copy of a queue differs from the original."""
        before, after = await count_rows(source, row["key"]), await count_rows(target, key)
        if before != after:
            raise Internal(
                f"the copy of {row['tenant']}/{row['queue']} has {after}, not {before}; the move is not completed"
            )

    # --- 3, 4. Change the owner --------------------------------------------------------------------------------------

    async def _decide(self, slot: int, source: PostgresDatabase, target: PostgresDatabase) -> None:
        """Make the target the owner of the slot."""
        await self._lock_connection.fetchval("SELECT 1")  # the lock is still held
        epoch = await self._newest_epoch() + 1

        async def work(connection: Any) -> None:
            if await connection.fetchval(SQL["decide_slot"], slot, target.number) is None:
                raise StoreUnavailable(f"the move of slot {slot} took so long that it was cancelled; try again")
            await connection.execute("UPDATE slots SET shard = $2 WHERE slot = $1", slot, target.number)
            await connection.execute("UPDATE cluster SET epoch = $1", epoch)

        await source.step(work)

    async def _publish(
        self, slot: int, moving: list[_MovingQueue], source: PostgresDatabase, target: PostgresDatabase
    ) -> None:
        """Write the new slot table to all databases, and unblock the queues on the target."""
        await self._cluster.refresh_now()
        moving = [each for each in moving if each.key is not None]
        sums = {each.key: (await source.fetch(SQL["sums"], each.row["key"]))[0] for each in moving}
        ready = {QueueRef(each.row["tenant"], each.row["queue"]): 0 for each in moving}

        async def work(connection: Any) -> None:
            await self._write_table(connection)
            for each in moving:
                arrived = "UPDATE queues SET moving_to = NULL WHERE key = $1 AND moving_to IS NOT NULL RETURNING key"
                # After a repeat, the queue may have changed since; then its sums are left alone.
                if await connection.fetchval(arrived, each.key) is not None:
                    await connection.execute(SQL["put_sums"], each.key, *sums[each.key])

        await target.step(work)
        await target.use(lambda connection: notify_ready(connection, ready))
        for shard in self._cluster.shards:
            if shard is not target:
                await shard.step(self._write_table)

    async def _write_table(self, connection: Any) -> None:
        epoch, slots = self._cluster.slot_table()
        if (
            await connection.fetchval("UPDATE cluster SET epoch = $1 WHERE epoch < $1 RETURNING epoch", epoch)
            is not None
        ):
            await connection.execute(SQL["put_slots"], slots)

    async def _newest_epoch(self) -> int:
        found = await self._cluster.fetch_all("SELECT epoch FROM cluster")
        newest: int = max(row["epoch"] for _, rows in found for row in rows)
        return newest

    # --- 5. Delete from the source -----------------------------------------------------------------------------------

    async def _delete_from_source(
        self, queue: _MovingQueue, source: PostgresDatabase, target: PostgresDatabase
    ) -> None:
        """Delete a queue that has moved from the source."""
        tenant = queue.row["tenant"]
        # The target is granted the arrived messages first, so that quotas hold at every moment.
        await self._grants.note_used(tenant, target)
        await delete_rows(source, queue.row["key"])

        async def last(connection: Any) -> None:
            await self._grants.lower_in(connection, tenant, queue.row["key"])
            await connection.execute("UPDATE queues SET gone_at = now_ms(NULL) WHERE key = $1", queue.row["key"])

        await source.step(last)
        await self._grants.take_back(tenant, source)
