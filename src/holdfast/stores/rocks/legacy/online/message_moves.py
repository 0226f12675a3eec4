"""The atomic steps by which messages leave the old layout.

    move     one commit writes new messages, each with its record (`move_records.py`)
    sync     the commit is on disk, also with the durability `os`
    delete   the old keys are deleted, and that is on disk
    forget   the records are deleted, in a later commit

A crash at any point is safe: the old database deletes nothing that the new one may still lose, and its record keeps an
old message from being moved twice. The next opening deletes every old message with a record, and continues.

Steps of one shard never overlap, so a claim and the background loop never move the same message.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model.rules import lifecycle
from holdfast.runtime import Runtime
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE, draft_of, own_id
from holdfast.stores.rocks.legacy.online.legacy_counts import LegacyCounts
from holdfast.stores.rocks.legacy.online.legacy_source import LegacySource, OldMessage, Phase
from holdfast.stores.rocks.legacy.online.move_records import Moved, MoveRecords, MoveState
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.recovery.layout import MAX_SHARDS
from holdfast.stores.rocks.shard import Shard

# The thread on which the old database is written to. Those below belong to the shards.
THREAD = MAX_SHARDS
# Messages that are deleted from the old database together, with one sync.
DELETED_TOGETHER = 1_000

# Chooses the messages of a step. Called within the step.
Choice = Callable[[], list[OldMessage]]


class _Doomed(NamedTuple):
    """A moved message that the old database still has."""

    id: bytes
    how: Moved
    keys: tuple[bytes, ...]


class MessageMoves:
    """The steps of a move into one shard."""

    def __init__(self, shard: Shard, source: LegacySource, runtime: Runtime, dice: Dice, state: MoveState) -> None:
        self._shard = shard
        self._source = source
        self._runtime = runtime
        self._dice = dice
        self._records = MoveRecords(shard.engine)
        self.state = state
        # Moved messages whose commit is durable, in the order in which they are deleted.
        self._doomed: list[_Doomed] = []
        # The earliest visible time in each move that claims cannot find yet.
        self.unpublished: list[int] = []
        # The counts of messages that are not moved. Set once they are being counted.
        self.counts: LegacyCounts | None = None

    @property
    def waiting(self) -> int:
        """Return the number of moved messages that the old database still has."""
        return len(self._doomed)

    @property
    def has_batch(self) -> bool:
        """Return whether as many of them wait as are deleted together."""
        return len(self._doomed) >= DELETED_TOGETHER

    def read_records(self) -> None:
        """Find what an earlier process has moved and not deleted."""
        for id, how in self._records.moved():
            self._source.moved[id] = how
            doomed = tuple(self._source.find_keys(id, how))
            if doomed or not how.has_copy:
                self._doomed.append(_Doomed(id, how, doomed))

    async def begin(self, now_ms: int) -> None:
        """Make the queue if it does not exist, and record the state of the move."""

        async def work(unit: RocksUnits) -> None:
            await self._queue(unit)
            unit.note_change()
            self._records.put_state(self.state)

        await self._shard.units.run(LEGACY_QUEUE, work, now_ms)

    async def move(self, choose: Choice, now_ms: int) -> int:
        """Move the messages that `choose` returns, and return their number once they can be claimed."""
        return await self._shard.units.run(LEGACY_QUEUE, lambda unit: self._move(unit, choose), now_ms)

    async def _queue(self, unit: RocksUnits) -> QueueState:
        return await unit.find(LEGACY_QUEUE) or await unit.create(LEGACY_QUEUE)

    async def _move(self, unit: RocksUnits, choose: Choice) -> int:
        queue = await self._queue(unit)
        old = choose()
        if not old:
            return 0
        now_ms, source = unit.now_ms, self._source
        own = [own_id(each.message.id) for each in old]
        taken = await unit.load(queue, [id for id in own if id is not None])
        # From here on nothing is read: a read would first write the open commit, with half of this change.
        source.note_moved(old)
        imported = []
        for (message, _, _), id in zip(old, own, strict=True):
            keeps_id = id is not None and id not in taken
            visible_at = message.visible_at if message.is_held(now_ms) else message.ready_at()
            imported.append((draft_of(message, keeps_id=keeps_id), id if keeps_id else None, visible_at))
        added = unit.add_imported(queue, imported, "legacy")
        self.state = replace(self.state, moved=self.state.moved + len(old))
        self._records.put_state(self.state)
        for (message, how, _), entry in zip(old, added, strict=True):
            self._records.put_moved(message.id, how)
            self._count_out(message.id, message.visible_at, len(message.payload), how)
            if message.lease_expires_at is not None and message.is_held(now_ms):
                self._lease(unit, queue, entry, message.lease_expires_at)
        doomed = [_Doomed(each.message.id, each.how, each.keys) for each in old]
        ready_at = min(each.message.ready_at() for each in old)
        self.unpublished.append(ready_at)

        def publish() -> None:
            self._doomed.extend(doomed)
            self.unpublished.remove(ready_at)

        self._shard.engine.publish_after_commit(publish)
        return len(old)

    def _lease(self, unit: RocksUnits, queue: QueueState, entry: StoredMessage, expires_at: int) -> None:
        """Claim a message under a lease with the end of the old one, with a new receipt."""
        [token] = self._dice.tokens(1)
        lease_ms = expires_at - unit.now_ms
        change = lifecycle.claim(entry.life, queue.row.policy, unit.now_ms, token=token, lease_ms=lease_ms)
        # One by one: changes of many messages at once are for messages that a claim has found.
        unit.apply(queue, [(entry, change)])

    def _count_out(self, id: bytes, visible_at: int, payload_bytes: int, how: Moved) -> None:
        # Claimed messages are all moved before the others are counted.
        if self.counts is not None and how in (Moved.AVAILABLE, Moved.AVAILABLE_WITH_COPY):
            self.counts.add(id, visible_at, payload_bytes, count=-1)

    async def delete_once(self) -> int:
        """Delete some moved messages from the old database, and return their number. Called by one loop only."""
        batch = self._doomed[:DELETED_TOGETHER]
        if not batch:
            return 0
        engine, source = self._shard.engine, self._source
        await engine.synced()
        doomed = [key for each in batch for key in each.keys]
        if doomed:
            await self._runtime.offload_long(lambda: source.delete(doomed), thread=THREAD)
        engine.begin()
        for each in batch:
            if not each.how.has_copy:
                self._records.forget_moved(each.id)
        engine.end()
        for each in batch:
            if not each.how.has_copy:
                source.moved.pop(each.id, None)
        del self._doomed[: len(batch)]
        return len(batch)

    async def forget(self) -> None:
        """Delete all records, once the old database has nothing that may be taken for a message. Return once that is
        on disk."""
        engine = self._shard.engine
        engine.begin()
        for id in self._source.moved:
            self._records.forget_moved(id)
        self._records.forget_state()
        await engine.committed()
        await engine.synced()

    @property
    def is_through(self) -> bool:
        """Return whether every message is moved, durably, and deleted from the old database."""
        return self._source.phase is Phase.DONE and not self.unpublished and not self._doomed
