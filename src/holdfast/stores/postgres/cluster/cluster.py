"""The databases of one store, which of them owns a queue, and what their clock says."""

from typing import Any, NamedTuple

from holdfast.clock import steady_s
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.database import PostgresDatabase, shown
from holdfast.stores.postgres.cluster.slots import SLOTS, fnv32a, home_of, slot_of
from holdfast.stores.postgres.schema import migrations
from holdfast.stores.postgres.schema.statements import SQL

# Queues that an error tells by name.
_NAMED = 5
# A database is not asked again for the slots within this time.
_LOOK_S = 0.05


class QueueMoved(StoreUnavailable):
    """The queue is on its way to another database, or there."""

    def __init__(self, ref: QueueRef) -> None:
        super().__init__(f"queue {ref} is being moved to another database: try again")
        self.ref = ref


class _Table(NamedTuple):
    """Of each slot its owner, and where what is one per tenant is kept."""

    slots: list[int]
    homes: list[int]


class PostgresCluster:
    def __init__(
        self, urls: list[str], *, durability: str = "fsync", shard_map: str = "slots", goes_by_caller: bool = False
    ) -> None:
        settings = {"synchronous_commit": "on" if durability == "fsync" else "off"}
        self.shards = [PostgresDatabase(url, settings) for url in urls]
        self._shard_map = shard_map
        self._slots = [0] * SLOTS
        self._homes = [0] * SLOTS
        self._epoch = 0
        self._looked_s = 0.0
        # For tests: time is what callers say it is. Else the database's clock decides.
        self._goes_by_caller = goes_by_caller
        # By how much the databases' clock is ahead of the caller's.
        self._ahead_ms = 0

    async def open(self) -> None:
        """Learn what each database is. One that is down may be any of those that are missing."""
        placed: dict[int, PostgresDatabase] = {}
        lost: list[PostgresDatabase] = []
        cluster_ids = set()
        epochs: dict[int, _Table] = {}
        failure: StoreUnavailable | None = None
        for shard in self.shards:
            try:
                found, table = await shard.use(_look)
            except StoreUnavailable as error:
                lost.append(shard)
                failure = error
                continue
            migrations.check(found, shown(shard.url))
            assert found.shard is not None
            if found.shard in placed:
                raise InvalidArgument(f"{shown(shard.url)} was given twice", field="store")
            placed[found.shard] = shard
            cluster_ids.add(found.cluster_id)
            epochs[found.epoch] = table
        if failure is not None and not placed:
            raise failure
        if len(cluster_ids) > 1:
            raise InvalidArgument("these databases belong to different stores: give those of one", field="store")
        self._epoch = max(epochs)
        self._slots, self._homes = epochs[self._epoch]
        missing = sorted(set(range(len(self.shards))) - set(placed))
        placed.update(zip(missing, lost, strict=False))
        # Numbers have no gaps: what comes behind one that is missing could not be told from it.
        used = {*self._slots, *self._homes, *range(max(placed))}
        if used - set(placed):
            raise await self._left_out(min(used - set(placed)), max(used | set(placed)) + 1)
        self.shards = [placed[number] for number in sorted(placed)]
        for number, shard in enumerate(self.shards):
            shard.number = number

    async def _left_out(self, number: int, databases: int) -> InvalidArgument:
        """What is on a database that was not given, as far as the others know: of a tenant its home does."""
        known = await self.fetch_all("SELECT tenant, queue FROM directory ORDER BY tenant, queue")
        refs = sorted(QueueRef(row["tenant"], row["queue"]) for _, rows in known for row in rows)
        if self._shard_map == "fnv-mod":
            queues = [ref for ref in refs if fnv32a((ref.tenant + ref.queue).encode()) % databases == number]
        else:
            queues = [ref for ref in refs if self._slots[slot_of(*ref)] == number]
        slots, homes = self._slots.count(number), self._homes.count(number)
        said = [f"this store has {databases} databases, and number {number} was not given"]
        if slots:
            names = ", ".join(map(str, queues[:_NAMED])) or "of tenants that it alone knows"
            more = f" and {len(queues) - _NAMED:,} more" if len(queues) > _NAMED else ""
            said.append(f"on it are {slots} of {SLOTS} slots, with the queues {names}{more}")
        if slots and number and self.goes_by_slots:
            said.append(
                f"`holdfast pipeline reshard --onto {number}`, given all databases, moves queues from number {number} "
                "on to those before it"
            )
        if homes:
            said.append(
                f"what is one per tenant is on it for {homes} of {SLOTS} parts of the tenants, and does not move"
            )
        said.append("name all of them, separated by commas")
        return InvalidArgument("; ".join(said), field="store", database=number, queues=[str(ref) for ref in queues])

    async def close(self) -> None:
        for shard in self.shards:
            await shard.close()

    # --- Which database --------------------------------------------------------------------------------------

    def number_of(self, ref: QueueRef) -> int:
        if len(self.shards) == 1:
            return 0
        if self._shard_map == "fnv-mod":
            return fnv32a((ref.tenant + ref.queue).encode()) % len(self.shards)
        return self._slots[slot_of(ref.tenant, ref.queue)]

    def shard_of(self, ref: QueueRef) -> PostgresDatabase:
        return self.shards[self.number_of(ref)]

    def numbered(self, number: int) -> PostgresDatabase:
        if not 0 <= number < len(self.shards):
            raise InvalidArgument(f"this store has no database number {number}: name all of them", field="store")
        return self.shards[number]

    def home_of(self, tenant: str) -> PostgresDatabase:
        """Where what is one per tenant is kept."""
        return self.shards[0 if len(self.shards) == 1 else home_of(tenant, self._homes)]

    @property
    def goes_by_slots(self) -> bool:
        return self._shard_map == "slots"

    async def owns(self, shard: PostgresDatabase, ref: QueueRef) -> bool:
        """Whether a queue that is not found on this database would be there. Else it is on another, or on its way."""
        if not self.goes_by_slots:
            return True
        [row] = await shard.fetch(SQL["slot_owner"], slot_of(ref.tenant, ref.queue))
        return row["shard"] == shard.number and not row["is_moving"]

    def owner_of(self, slot: int) -> int:
        return self._slots[slot]

    def table(self) -> tuple[int, list[int]]:
        """The epoch, and the owner of each slot."""
        return self._epoch, self._slots

    async def refresh(self) -> bool:
        """Learn which slots have gone to another database since; answers whether any has."""
        if steady_s() - self._looked_s < _LOOK_S:
            return False
        self._looked_s = steady_s()
        return await self.refresh_now()

    async def refresh_now(self) -> bool:
        tables: dict[int, _Table] = {}
        for shard in self.shards:
            try:
                found, table = await shard.use(_look)
            except StoreUnavailable:
                continue
            tables[found.epoch] = table
        if not tables or max(tables) <= self._epoch:
            return False
        slots, homes = tables[max(tables)]
        missing = set(slots) - set(range(len(self.shards)))
        if missing:
            raise StoreUnavailable(
                f"some queues are on database number {min(missing)} now, which this server was not given: restart it "
                "with all of them"
            )
        self._epoch, self._slots, self._homes = max(tables), slots, homes
        return True

    async def fetch_all(self, sql: str, *args: Any) -> list[tuple[PostgresDatabase, list[Any]]]:
        """Of every database that answers; `StoreUnavailable` if none does."""
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

    def given(self, now_ms: int) -> int | None:
        """What a statement is told of the time."""
        return now_ms if self._goes_by_caller else None

    def note_now(self, stored_ms: int, now_ms: int) -> None:
        """A statement's own time, beside the caller's."""
        if not self._goes_by_caller:
            self._ahead_ms = stored_ms - now_ms

    def stored(self, at_ms: int) -> int:
        """A caller's instant, by the database's clock."""
        return at_ms + self._ahead_ms

    def callers(self, at_ms: int) -> int:
        """The database's instant, by the caller's clock."""
        return at_ms - self._ahead_ms


async def _look(connection: Any) -> tuple[migrations.Status, _Table]:
    found = await migrations.status(connection)
    if found.cluster_id is None or found.version < found.newest:
        return found, _Table([], [])
    rows = await connection.fetch("SELECT shard, home FROM slots ORDER BY slot")
    return found, _Table([row["shard"] for row in rows], [row["home"] for row in rows])
