"""The databases of one store: which of them owns a queue, and their clock."""

from typing import Any, NamedTuple

from holdfast.clock import steady_s
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.database import PostgresDatabase, hide_password
from holdfast.stores.postgres.cluster.slots import SLOTS, fnv32a, home_of, slot_of
from holdfast.stores.postgres.schema import migrations
from holdfast.stores.postgres.schema.statements import SQL

# Number of queues that an error names.
_NAMED = 5
# The slot table is not read again within this time.
_LOOK_S = 0.05


class QueueMoved(StoreUnavailable):
    """The queue is moving to another database, or has moved there."""

    def __init__(self, ref: QueueRef) -> None:
        super().__init__(f"queue {ref} is being moved to another database; try again")
        self.ref = ref


class _Table(NamedTuple):
    """The owner of each slot, and for each slot the shard that keeps the rows that exist once per tenant."""

    slots: list[int]
    homes: list[int]


class PostgresCluster:
    """The databases of one store. It runs on the driver's loop."""

    def __init__(
        self,
        urls: list[str],
        *,
        durability: str = "fsync",
        shard_map: str = "slots",
        bounds: ConnectionBounds | None = None,
        uses_caller_time: bool = False,
    ) -> None:
        """Make a cluster of the databases `urls`; `open` connects. With `uses_caller_time`, for tests, the time is the
        callers' and not the databases'."""
        settings = {"synchronous_commit": "on" if durability == "fsync" else "off"}
        self.shards = [PostgresDatabase(url, settings, bounds) for url in urls]
        self._shard_map = shard_map
        self._slots = [0] * SLOTS
        self._homes = [0] * SLOTS
        self._epoch = 0
        self._looked_s = 0.0
        self._uses_caller_time = uses_caller_time
        # How far the databases' clock is ahead of the caller's.
        self._ahead_ms = 0

    async def open(self) -> None:
        """Read each database's number and the newest slot table. A database that is down may be any of the missing
        ones.

        Raise `InvalidArgument` if the URLs do not name all databases of one store, and `StoreUnavailable` if none can
        be reached.
        """
        placed: dict[int, PostgresDatabase] = {}
        lost: list[PostgresDatabase] = []
        cluster_ids = set()
        epochs: dict[int, _Table] = {}
        failure: StoreUnavailable | None = None
        for shard in self.shards:
            try:
                found, table = await shard.use(_read_status)
            except StoreUnavailable as error:
                lost.append(shard)
                failure = error
                continue
            migrations.check(found, hide_password(shard.url))
            assert found.shard is not None
            if found.shard in placed:
                raise InvalidArgument(
                    f"{hide_password(shard.url)} was given twice; name each database once", field="store"
                )
            placed[found.shard] = shard
            cluster_ids.add(found.cluster_id)
            epochs[found.epoch] = table
        if failure is not None and not placed:
            raise failure
        if len(cluster_ids) > 1:
            raise InvalidArgument(
                "these databases belong to different stores; name the databases of one store", field="store"
            )
        self._epoch = max(epochs)
        self._slots, self._homes = epochs[self._epoch]
        missing = sorted(set(range(len(self.shards))) - set(placed))
        placed.update(zip(missing, lost, strict=False))
        # Numbers have no gaps, so a missing database below the highest number is always noticed.
        used = {*self._slots, *self._homes, *range(max(placed))}
        if used - set(placed):
            raise await self._missing_database_error(min(used - set(placed)), max(used | set(placed)) + 1)
        self.shards = [placed[number] for number in sorted(placed)]
        for number, shard in enumerate(self.shards):
            shard.number = number

    async def _missing_database_error(self, number: int, databases: int) -> InvalidArgument:
        """Return an error that names the queues on a database that was not given, as far as the other databases know
        them. A tenant's home database knows the tenant's queues."""
        known = await self.fetch_all("SELECT tenant, queue FROM directory ORDER BY tenant, queue")
        refs = sorted(QueueRef(row["tenant"], row["queue"]) for _, rows in known for row in rows)
        if self._shard_map == "fnv-mod":
            queues = [ref for ref in refs if fnv32a((ref.tenant + ref.queue).encode()) % databases == number]
        else:
            queues = [ref for ref in refs if self._slots[slot_of(*ref)] == number]
        slots, homes = self._slots.count(number), self._homes.count(number)
        parts = [f"this store has {databases} databases, and number {number} was not given"]
        if slots:
            names = ", ".join(map(str, queues[:_NAMED])) or "of tenants that only it knows"
            more = f" and {len(queues) - _NAMED:,} more" if len(queues) > _NAMED else ""
            parts.append(f"on it are {slots} of {SLOTS} slots, with the queues {names}{more}")
        if slots and number and self.uses_slots:
            parts.append(
                f"`holdfast pipeline reshard --onto {number}`, given all databases, moves queues from number {number} "
                "on to those before it"
            )
        if homes:
            parts.append(f"it is the home of {homes} of {SLOTS} parts of the tenants, which does not move")
        parts.append("name all of them, separated by commas")
        return InvalidArgument("; ".join(parts), field="store", database=number, queues=[str(ref) for ref in queues])

    async def close(self) -> None:
        """Close all databases."""
        for shard in self.shards:
            await shard.close()

    # --- Owners --------------------------------------------------------------------------------------

    def number_of(self, ref: QueueRef) -> int:
        """Return the number of the database that owns the queue."""
        if len(self.shards) == 1:
            return 0
        if self._shard_map == "fnv-mod":
            return fnv32a((ref.tenant + ref.queue).encode()) % len(self.shards)
        return self._slots[slot_of(ref.tenant, ref.queue)]

    def shard_of(self, ref: QueueRef) -> PostgresDatabase:
        """Return the database that owns the queue."""
        return self.shards[self.number_of(ref)]

    def shard_by_number(self, number: int) -> PostgresDatabase:
        """Return the database with this number. Raise `InvalidArgument` if it was not given."""
        if not 0 <= number < len(self.shards):
            raise InvalidArgument(
                f"database number {number} was not given; name all databases of the store", field="store"
            )
        return self.shards[number]

    def home_of(self, tenant: str) -> PostgresDatabase:
        """Return the tenant's home: the database that keeps the rows that exist once per tenant."""
        return self.shards[0 if len(self.shards) == 1 else home_of(tenant, self._homes)]

    @property
    def uses_slots(self) -> bool:
        """Return whether the slot table says which database owns a queue."""
        return self._shard_map == "slots"

    async def owns(self, shard: PostgresDatabase, ref: QueueRef) -> bool:
        """Return whether a queue that this database does not have would be here. Otherwise it is on another database or
        moving."""
        if not self.uses_slots:
            return True
        [row] = await shard.fetch(SQL["slot_owner"], slot_of(ref.tenant, ref.queue))
        return row["shard"] == shard.number and not row["is_moving"]

    def owner_of(self, slot: int) -> int:
        """Return the number of the database that owns the slot."""
        return self._slots[slot]

    def slot_table(self) -> tuple[int, list[int]]:
        """Return the epoch of the slot table, and the owner of each slot."""
        return self._epoch, self._slots

    async def refresh(self) -> bool:
        """Read the slot table again, unless that was done a moment ago. Return whether it has changed."""
        if steady_s() - self._looked_s < _LOOK_S:
            return False
        self._looked_s = steady_s()
        return await self.refresh_now()

    async def refresh_now(self) -> bool:
        """Read the slot table again. Return whether it has changed. Raise `StoreUnavailable` if queues are on a
        database that this server does not have."""
        tables: dict[int, _Table] = {}
        for shard in self.shards:
            try:
                found, table = await shard.use(_read_status)
            except StoreUnavailable:
                continue
            tables[found.epoch] = table
        if not tables or max(tables) <= self._epoch:
            return False
        slots, homes = tables[max(tables)]
        missing = set(slots) - set(range(len(self.shards)))
        if missing:
            raise StoreUnavailable(
                f"some queues are on database number {min(missing)} now, which this server was not given; restart it "
                "with the URLs of all databases"
            )
        self._epoch, self._slots, self._homes = max(tables), slots, homes
        return True

    async def fetch_all(self, sql: str, *args: Any) -> list[tuple[PostgresDatabase, list[Any]]]:
        """Run a statement on every database, and return the rows of those that answer. Raise `StoreUnavailable` if none
        does."""
        found: list[tuple[PostgresDatabase, list[Any]]] = []
        failure: StoreUnavailable | None = None
        for shard in self.shards:
            try:
                found.append((shard, await shard.fetch(sql, *args)))
            except StoreUnavailable as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return found

    # --- Time --------------------------------------------------------------------------------------------------

    def time_argument(self, now_ms: int) -> int | None:
        """Return the time to pass to a statement: None for the database's own time, or the caller's time in tests."""
        return now_ms if self._uses_caller_time else None

    def note_now(self, stored_ms: int, now_ms: int) -> None:
        """Note the database's time beside the caller's."""
        if not self._uses_caller_time:
            self._ahead_ms = stored_ms - now_ms

    def database_time(self, at_ms: int) -> int:
        """Convert a time by the caller's clock to the database's clock."""
        return at_ms + self._ahead_ms

    def caller_time(self, at_ms: int) -> int:
        """Convert a time by the database's clock to the caller's clock."""
        return at_ms - self._ahead_ms


async def _read_status(connection: Any) -> tuple[migrations.Status, _Table]:
    """Read the state of a database, and its slot table."""
    found = await migrations.status(connection)
    if found.cluster_id is None or found.version < found.newest:
        return found, _Table([], [])
    rows = await connection.fetch("SELECT shard, home FROM slots ORDER BY slot")
    return found, _Table([row["shard"] for row in rows], [row["home"] for row in rows])
