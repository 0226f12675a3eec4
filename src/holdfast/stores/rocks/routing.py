"""The routing of calls to the shards of a store, and the four parts of such a store.

A hash of a queue's tenant_id and queue_id determines its shard. A call has only the queue's name, so the router
searches all shards for the queue's row, and remembers where it found it.
"""

from collections.abc import Sequence
from heapq import merge
from typing import NamedTuple

from holdfast.model.answers import Enqueued, LedgerEntry, Result
from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.model.schedules import Schedule, Tick
from holdfast.stores.contract import LedgerStore, LimitedQueueDirectory, PayloadStore, ScheduleStore
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.payloads.pieces import RocksPieceReader
from holdfast.stores.rocks.payloads.staging import RocksStage
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.values import DueSchedules, QueueChange, QueueRow, TenantRow


class Router:
    """The search for the shard of a queue."""

    def __init__(self, shards: Sequence[Shard], tenants: Tenants, total: int) -> None:
        """`shards` are those of this process, of `total` shards of the store."""
        self.shards = shards
        self.tenants = tenants
        self._total = total
        self._by_number = {shard.number: shard for shard in shards}
        self._shards_by_ref: dict[QueueRef, Shard] = {}

    def find(self, ref: QueueRef) -> Shard | None:
        """Return the shard of a queue, or None if there is no such queue."""
        shard = self._shards_by_ref.get(ref)
        if shard is not None:
            if shard.catalog.find(ref) is not None:
                return shard
            # The queue was deleted. If it was created again, it may be in another shard.
            del self._shards_by_ref[ref]
        for shard in self.shards:
            if shard.catalog.find(ref) is not None:
                self._shards_by_ref[ref] = shard
                return shard
        return None

    def find_any(self, ref: QueueRef) -> Shard:
        """Return the shard of a queue. For a missing queue return the first shard, whose methods raise `QueueNotFound`
        as those of any other would."""
        return self.find(ref) or self.shards[0]

    async def choose(self, ref: QueueRef) -> Shard:
        """Return the shard of a queue. For a missing queue return the shard that owns it if the caller creates it
        before it suspends."""
        if (shard := self.find(ref)) is not None:
            return shard
        if len(self.shards) == 1:
            return self.shards[0]
        await self.tenants.require_on_disk(ref.tenant)
        # Another caller may have created the queue during the wait.
        return self.find(ref) or self._owner(ref, self.tenants.next_queue_id(ref))

    async def choose_for_upload(self, ref: QueueRef) -> Shard:
        """Return the shard of a queue. For a missing queue reserve a queue_id, and return the shard that owns it, so
        that the queue can be created there once the upload is complete."""
        shard = await self.choose(ref)
        if shard.catalog.find(ref) is None:
            return self._owner(ref, self.tenants.reserve_queue_id(ref))
        return shard

    def _owner(self, ref: QueueRef, queue_id: int) -> Shard:
        tenant = self.tenants.get(ref.tenant)
        assert tenant is not None
        return self._by_number[keys.shard_of(keys.prefix(tenant.tenant_id, queue_id), self._total)]


class StoreParts(NamedTuple):
    """The four parts of a store."""

    directory: LimitedQueueDirectory
    schedules: ScheduleStore
    ledgers: LedgerStore
    payloads: PayloadStore


def parts_of(router: Router) -> StoreParts:
    """Return the parts of a store. A store with one shard uses that shard's parts without routing."""
    if len(router.shards) == 1:
        only = router.shards[0]
        return StoreParts(only.directory, only.schedules, only.ledgers, only.staging)
    return StoreParts(RoutedDirectory(router), RoutedSchedules(router), RoutedLedgers(router), RoutedPayloads(router))


class RoutedDirectory:
    """The `LimitedQueueDirectory` of a store with shards. The rows of tenants are in the first shard."""

    def __init__(self, router: Router) -> None:
        self._router = router
        first = router.shards[0].directory
        self.find_tenant, self.list_tenants = first.find_tenant, first.list_tenants

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        return await self._router.shards[0].directory.put_tenant(tenant, config)

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return await self._router.find_any(ref).directory.find_queue(ref)

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        return self._router.find_any(ref).directory.numbers_of(ref)

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        rows = [await shard.directory.list_queues(tenant) for shard in self._router.shards]
        return list(merge(*rows, key=lambda row: row.ref.queue.encode()))

    async def list_limited(self) -> list[QueueRow]:
        return [row for shard in self._router.shards for row in await shard.directory.list_limited()]

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        shard = await self._router.choose(ref)
        return await shard.directory.create_queue(ref, now_ms)

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        return await self._router.find_any(ref).directory.change_queue(ref, change, now_ms)


class RoutedSchedules:
    """The `ScheduleStore` of a store with shards."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        return await self._router.find_any(ref).schedules.find(ref, name)

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return await self._router.find_any(ref).schedules.page(ref, after, limit)

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        return await self._router.find_any(ref).schedules.put(ref, was, schedule, now_ms)

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        return await self._router.find_any(ref).schedules.fire(ref, schedule, tick, now_ms)

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        return await self._router.find_any(ref).schedules.delete(ref, name, now_ms)

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        found = [await shard.schedules.due(limit, now_ms) for shard in self._router.shards]
        due = list(merge(*(each.due for each in found), key=lambda each: each[1].next_at or 0))
        later = [each.next_at for each in found] + [schedule.next_at for _, schedule in due[limit:]]
        return DueSchedules(due[:limit], min((at for at in later if at is not None), default=None))


class RoutedLedgers:
    """The `LedgerStore` of a store with shards."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        return await self._router.find_any(ref).ledgers.entries(ref, consumer, now_ms, number)

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        return await self._router.find_any(ref).ledgers.ack(ref, consumer, upto, now_ms)

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        return await self._router.find_any(ref).ledgers.extend(ref, consumer, lease_ms, now_ms)


class RoutedPayloads:
    """The `PayloadStore` of a store with shards."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> RocksStage:
        shard = await self._router.choose_for_upload(ref) if auto_create else self._router.find_any(ref)
        try:
            return await shard.staging.stage(ref, draft, now_ms, auto_create=auto_create)
        except BaseException:
            self._router.tenants.release_queue_id(ref)
            raise

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> RocksPieceReader:
        return await self._router.find_any(ref).staging.read(ref, id, pieces, start)
