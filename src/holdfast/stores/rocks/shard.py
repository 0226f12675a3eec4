"""One shard of the embedded store: a database with its log and its one writer, and the queues in it.

A store without shards has exactly one. A shard waits for another one only while messages move between the two.
"""

from collections.abc import Coroutine
from typing import Any

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result, Saved
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, Move, StateChange, Verb, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.logic.bulk import alter
from holdfast.stores.logic.claims import claim
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.ledgers import UnitLedgers
from holdfast.stores.logic.verdicts import save_state, settle
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters, Totals
from holdfast.stores.rocks.directory.directory import RocksDirectory
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.schedules import Schedules
from holdfast.stores.rocks.directory.store_facts import ShardFacts
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.engine.checkpoints import Checkpoints
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.journal import RocksJournal
from holdfast.stores.rocks.payloads.staging import RocksStage, RocksStaging
from holdfast.stores.rocks.queues.idempotency_keys import SeenKeys
from holdfast.stores.rocks.queues.messages import MessageCache, MessageReads
from holdfast.stores.rocks.queues.publisher import Publisher
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.sweep import RocksSweep
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan
from holdfast.stores.rocks.shard_parts import ShardParts
from holdfast.stores.rocks.transfers import ShardTransfers
from holdfast.stores.values import AlterStep, Claims, Listing, QueueRow, Swept


class Shard:
    """The parts of one shard, connected, and the operations of `Store` on the queues that it owns."""

    def __init__(
        self,
        engine: Engine,
        tenants: Tenants,
        facts: ShardFacts,
        listener: Listener,
        runtime: Runtime,
        room: DiskRoom,
        dice: Dice,
        uploads: dict[int, RocksStage],
        *,
        shards: int,
        journal_retention_ms: int,
        checkpoint_bytes: int,
    ) -> None:
        """Build the shard on the engine of an open database.

        `uploads` has the unfinished uploads of all shards, by blob id, and is shared by them. `shards` is the number of
        shards, and `checkpoint_bytes` the bound on unwritten changes that they share.
        """
        self.engine = engine
        self.facts = facts
        self._room = room
        self._dice = dice
        self._listener = listener
        self.checkpoints = Checkpoints(engine, runtime, checkpoint_bytes // shards)
        self.publisher = Publisher(engine, listener)
        self.catalog = QueueCatalog(
            engine, tenants, self._make_queue_state, owns=lambda p: keys.shard_of(p, shards) == engine.shard
        )
        self.catalog.load()
        self.entries = MessageCache(engine, shards)
        self._reader = MessageReads(engine, self.entries)
        self.journal = RocksJournal(engine, journal_retention_ms, self.catalog.name_of, shard=engine.shard)
        parts = ShardParts(
            engine=engine,
            runtime=runtime,
            facts=facts,
            room=room,
            listener=listener,
            publisher=self.publisher,
            catalog=self.catalog,
            cache=self.entries,
            reader=self._reader,
            journal=self.journal,
            seen=SeenKeys(engine, self.publisher.scanner(keys.INDEXES, keys.SEEN_ENDS)),
        )
        self.staging = RocksStaging(parts, uploads)
        self.staging.load()
        self._sweep_plan = SweepPlan(engine, self.catalog, listener)
        self.units = RocksUnits(parts, self.staging, self._sweep_plan)
        self.transfers = ShardTransfers(parts, self.units, self.staging)
        self.transfers.load()
        self.ledgers = UnitLedgers(self.units, dice.roll)
        self.schedules = Schedules(engine, self.catalog, self.units, room, listener)
        self.directory = RocksDirectory(engine, self.publisher, self.catalog, self.schedules, self._sweep_plan)
        self._sweeping = RocksSweep(parts, self.units, self.staging, self._sweep_plan)
        engine.before_write = self._before_write
        engine.after_publish = self.publisher.notify_waiters

    @property
    def number(self) -> int:
        """Return the number of this shard in its store, from 0."""
        return self.engine.shard

    def start(self, now_ms: int) -> None:
        """Start checkpoints, and report the deadlines of stored messages and schedules to the listener."""
        self.engine.sync_now()
        self.engine.after_write = self._after_write
        self._sweep_plan.note_all(now_ms)
        self.schedules.load()

    def close(self) -> None:
        """Drop the references to loaded queues, which refer to the database, so that it can be closed."""
        self.publisher.close()

    def _make_queue_state(self, row: QueueRow, counters: Counters, totals: Totals) -> QueueState:
        return QueueState(row, self.engine, counters, totals, self.publisher)

    def _before_write(self) -> None:
        """Add the records that each batch has once: the counters of changed queues, and a block of the journal."""
        self.publisher.write_counters()
        self.journal.write_block()

    def _after_write(self) -> None:
        self.journal.note_written()
        self.checkpoints.start_due()

    # --- Messages ----------------------------------------------------------------------------------------------
    #
    # These methods are not `async`, but return the coroutine of the step: another coroutine around it would cost as
    # much as writing a key.

    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue messages; see `Store.enqueue`. Raise `StoreUnavailable` if the disk is nearly full, or if the store
        was reopened after the upload of a payload."""
        size = 0
        for draft in drafts:
            size += draft.bytes
            if draft.pieces is not None:
                self.staging.check(draft.pieces)
        self._room.check(now_ms, size)
        return self.units.run(ref, lambda unit: enqueue(unit, ref, drafts, auto_create=auto_create), now_ms)

    def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Coroutine[Any, Any, Claims]:
        """Claim messages; see `Store.claim`."""
        return self.units.run(ref, lambda unit: claim(unit, ref, asks, self._dice.tokens), now_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> Coroutine[Any, Any, list[Result]]:
        """Carry out verdicts; see `Store.settle`."""
        return self.units.run(ref, lambda unit: settle(unit, ref, verdicts, self._dice.roll), now_ms)

    def save_state(
        self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int
    ) -> Coroutine[Any, Any, Saved]:
        """Save a state document; see `Store.save_state`."""
        return self.units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Apply a bulk verb; see `Store.alter`. The target of a move must be in this shard too."""
        target = verb.to if isinstance(verb, Move) else None
        return await self.units.run(
            ref, lambda unit: alter(unit, ref, verb, which, after, limit), now_ms, target=target
        )

    # --- Inspection --------------------------------------------------------------------------------------------

    def get(self, ref: QueueRef, id: int) -> Found | None:
        """Return a message; see `Store.get`."""
        queue = self.catalog.require(ref)
        entry = self.entries.get(queue, id)
        return None if entry is None else self._found(queue, entry)

    def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """Return the next messages in the order of claims; see `Store.peek`."""
        queue = self.catalog.require(ref)
        return [self._found(queue, entry) for entry in self._reader.peek_due(queue, limit, now_ms)]

    def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        """Return a page of matching messages; see `Store.browse`."""
        queue = self.catalog.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = self.matching(ref, states, which, after, limit + 1, now_ms)
        more = len(page) > limit
        return Listing(
            [self._found(queue, each) for each in page[:limit]], page[limit - 1].envelope.id if more else None
        )

    def matching(
        self, ref: QueueRef, states: frozenset[State], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[StoredMessage]:
        """Return up to `limit` messages in one of the states that match the filter, in order of id."""
        return self._reader.matching(self.catalog.require(ref), states, which, after, limit, now_ms)

    def _found(self, queue: QueueState, entry: StoredMessage) -> Found:
        return Found(entry.envelope, entry.life, self.entries.state(queue, entry))

    def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        """Return the counts of one queue. Raise `QueueNotFound`."""
        return _counts(self.catalog.require(ref), now_ms)

    def counts_of_tenant(self, tenant: str, now_ms: int) -> list[Counts]:
        """Return counts whose sum is that of the tenant's queues in this shard."""
        row = self.catalog.tenants.get(tenant)
        if row is None:
            return []
        every: list[Counts] = []
        with_ready: list[bytes] = []
        for p, counters in self.catalog.counters(row):
            if counters.ready:
                # The stored counters do not say how many of the ready messages are due, so the queue must be loaded.
                with_ready.append(p)
            else:
                every.append(Counts(in_flight=counters.in_flight, failed=counters.failed, bytes=counters.bytes))
        queues = map(self.catalog.find_by_prefix, with_ready)
        return every + [_counts(queue, now_ms) for queue in queues if queue is not None]

    # --- Sweeps ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        """Sweep the queues of this shard; see `Store.sweep`."""
        return await self._sweeping.sweep(limit, now_ms)

    async def sweep_beside_others(self, limit: int, now_ms: int) -> Swept:
        """Sweep, and report the next deadline to the listener at once, because the caller, which sweeps all shards, may
        still wait for another one."""
        swept = await self._sweeping.sweep(limit, now_ms)
        if swept.next_at is not None:
            self._listener.deadline(swept.next_at)
        return swept


def _counts(queue: QueueState, now_ms: int) -> Counts:
    queue.count_due(now_ms)
    return queue.counts(now_ms)
