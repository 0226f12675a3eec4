"""The databases of one store, which of them owns a queue, and what their clock says."""

from typing import Any

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres import migrations
from holdfast.stores.postgres.shard import Shard, shown
from holdfast.stores.postgres.slots import SLOTS, fnv32a, home_of, slot_of


class Cluster:
    def __init__(
        self, urls: list[str], *, durability: str = "fsync", shard_map: str = "slots", goes_by_caller: bool = False
    ) -> None:
        settings = {"synchronous_commit": "on" if durability == "fsync" else "off"}
        self.shards = [Shard(url, settings) for url in urls]
        self._shard_map = shard_map
        self._slots = [0] * SLOTS
        # For tests: time is what callers say it is. Else the database's clock decides.
        self._goes_by_caller = goes_by_caller
        # By how much the databases' clock is ahead of the caller's.
        self._ahead_ms = 0

    async def open(self) -> None:
        """Learn what each database is. One that is down may be any of those that are missing."""
        placed: dict[int, Shard] = {}
        lost: list[Shard] = []
        cluster_ids = set()
        epochs: dict[int, list[int]] = {}
        failure: StoreUnavailable | None = None
        for shard in self.shards:
            try:
                found, slots = await shard.use(_look)
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
            epochs[found.epoch] = slots
        if failure is not None and not placed:
            raise failure
        if len(cluster_ids) > 1:
            raise InvalidArgument("these databases belong to different stores: give those of one", field="store")
        self._slots = epochs[max(epochs)]
        missing = sorted(set(range(len(self.shards))) - set(placed))
        placed.update(zip(missing, lost, strict=False))
        unknown = set(self._slots) - set(placed)
        if unknown:
            raise InvalidArgument(
                f"this store has {max(self._slots) + 1} databases, and number {min(unknown)} was not given: "
                "name all of them, separated by commas",
                field="store",
            )
        self.shards = [placed[number] for number in sorted(placed)]
        for number, shard in enumerate(self.shards):
            shard.number = number

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

    def shard_of(self, ref: QueueRef) -> Shard:
        return self.shards[self.number_of(ref)]

    def numbered(self, number: int) -> Shard:
        if not 0 <= number < len(self.shards):
            raise InvalidArgument(f"this store has no database number {number}: name all of them", field="store")
        return self.shards[number]

    def home_of(self, tenant: str) -> Shard:
        """Where what is one per tenant is kept."""
        return self.shards[0 if len(self.shards) == 1 else home_of(tenant, self._slots)]

    async def fetch_all(self, sql: str, *args: Any) -> list[tuple[Shard, list[Any]]]:
        """Of every database that answers; `StoreUnavailable` if none does."""
        found: list[tuple[Shard, list[Any]]] = []
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


async def _look(connection: Any) -> tuple[migrations.Status, list[int]]:
    found = await migrations.status(connection)
    if found.cluster_id is None:
        return found, []
    rows = await connection.fetch("SELECT shard FROM slots ORDER BY slot")
    return found, [row["shard"] for row in rows]
