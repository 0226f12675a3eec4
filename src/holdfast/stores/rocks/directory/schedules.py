"""The schedules of one shard. Memory has only their names and next ticks; the schedules are read when they are needed.

How to change this format: a `Schedule` is stored as a MessagePack map by field name. A new field needs a default, which
schedules without it decode to; never rename a field or change its type.
"""

import msgspec

from holdfast.model.answers import Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, Tick, after_fired, draft_at, reason_of
from holdfast.stores.contract import Listener
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.indexes.schedule_index import ScheduleIndex
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.queues import require_open
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.values import DueSchedules

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode


class Schedules:
    """The `ScheduleStore` of one shard. `stores/contract.py` documents the methods."""

    def __init__(
        self, engine: Engine, catalog: QueueCatalog, units: RocksUnits, room: DiskRoom, listener: Listener
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._units = units
        self._room = room
        self._listener = listener
        self._index = ScheduleIndex()

    def load(self) -> None:
        """Read the names and next ticks of all schedules, and report the earliest tick to the listener."""
        lead = len(keys.SCHEDULES)
        for key, raw in self._engine.database.items(keys.INDEXES, keys.SCHEDULES, keys.after(keys.SCHEDULES)):
            queue = self._catalog.find_by_prefix(key[lead : lead + keys.P_SIZE])
            if queue is not None:
                schedule = _decode_schedule(queue, raw)
                self._index.put(queue.row.ref, schedule.name, schedule.next_at)
        self._notify(self._index.first_at())

    # --- Reading -----------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        return self._read(self._catalog.require(ref), name)

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        queue = self._catalog.require(ref)
        return self._read_all([(queue, name) for name in self._index.names(ref, after, limit)])

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        due, next_at = self._index.due(limit, now_ms)
        found = self._read_all([(self._catalog.require(ref), name) for _, ref, name in due])
        return DueSchedules([(ref, each) for (_, ref, _), each in zip(due, found, strict=True)], next_at)

    def _read_all(self, wanted: list[tuple[QueueState, str]]) -> list[Schedule]:
        found = [self._read(queue, name) for queue, name in wanted]
        if None in found:
            raise StoreUnavailable("a schedule is in the index but not on disk: run `holdfast verify` on a copy")
        return [each for each in found if each is not None]

    def _read(self, queue: QueueState, name: str) -> Schedule | None:
        self._engine.write()
        raw = self._engine.database.get(keys.INDEXES, _key(queue, name))
        return None if raw is None else _decode_schedule(queue, raw)

    # --- Changing ----------------------------------------------------------------------------------------------

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        queue = self._catalog.require_open(ref)
        if self._read(queue, schedule.name) != was:
            return False
        self._index.check_room(ref, schedule.name)
        self._engine.begin()
        self._write(queue, schedule)
        await self._engine.committed()
        return True

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        draft, reason = draft_at(schedule, tick.at), reason_of(schedule, tick.at)

        async def work(unit: RocksUnits) -> Enqueued | None:
            queue = await require_open(unit, ref)
            if self._read(queue, schedule.name) != schedule:
                return None
            self._room.check(now_ms, draft.bytes)
            [enqueued] = await enqueue(unit, ref, [draft], auto_create=False, reason=reason)
            self._write(queue, after_fired(schedule, tick, enqueued.snowflake))
            return enqueued

        return await self._units.run(ref, work, now_ms)

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        queue = self._catalog.require(ref)
        if self._read(queue, name) is None:
            return False
        self._engine.begin()
        self._engine.delete(_key(queue, name), keys.INDEXES)
        self._index.delete(ref, name)
        await self._engine.committed()
        return True

    def drop_all(self, queue: QueueState) -> None:
        """Delete all schedules of a queue, as part of the commit that begins to delete the queue."""
        for name in self._index.delete_queue(queue.row.ref):
            self._engine.delete(_key(queue, name), keys.INDEXES)

    def _write(self, queue: QueueState, schedule: Schedule) -> None:
        self._engine.put(_key(queue, schedule.name), _encode(schedule), keys.INDEXES)
        self._index.put(queue.row.ref, schedule.name, schedule.next_at)
        # The engine notifies the listener, because the caller may be cancelled before the commit.
        self._engine.publish_after_commit(lambda: self._notify(schedule.next_at))

    def _notify(self, at_ms: int | None) -> None:
        if at_ms is not None:
            self._listener.scheduled(at_ms)


def _key(queue: QueueState, name: str) -> bytes:
    return keys.SCHEDULES + queue.p + name.encode()


def _decode_schedule(queue: QueueState, raw: bytes) -> Schedule:
    try:
        return _decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"a schedule of {queue.row.ref} is damaged ({error}): restore a backup") from None
