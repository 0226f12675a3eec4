"""One shard of a store: a database with its log and its one writer, and everything that keeps its queues.

A store without shards has one. Nothing here waits for another shard, except for a message that moves between two.
"""

from collections.abc import Coroutine
from typing import Any

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, Move, StateChange, Verb, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import AlterStep, Claims, Listener, Listing, QueueRow, Swept
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


class Shard:
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
        """The engine is that of an open database. `uploads` are the payloads on their way in all shards; `shards` is
        their number, and `checkpoint_bytes` their common bound."""
        self.engine = engine
        self.facts = facts
        self._room = room
        self._dice = dice
        self._listener = listener
        self.checkpoints = Checkpoints(engine, runtime, checkpoint_bytes // shards)
        self.board = Publisher(engine, listener)
        self.catalog = QueueCatalog(
            engine, tenants, self._make_shelf, owns=lambda p: keys.shard_of(p, shards) == engine.shard
        )
        self.catalog.load()
        self.entries = MessageCache(engine, shards)
        self._reader = MessageReads(engine, self.entries)
        self.journal = RocksJournal(engine, journal_retention_ms, self.catalog.name_of, shard=engine.shard)
        self._seen = SeenKeys(engine, self.board.scanner(keys.INDEXES, keys.SEEN_ENDS))
        self.staging = RocksStaging(
            *(engine, runtime, self.catalog, self.entries, self._seen, facts, room, listener, uploads)
        )
        self.staging.load()
        self._upkeep = SweepPlan(engine, self.catalog, listener)
        self.units = RocksUnits(
            *(engine, self.board, self.catalog, self.entries, self._reader, self.journal),
            *(self._seen, self.staging, facts, self._upkeep, listener),
        )
        self.ledgers = UnitLedgers(self.units, dice.roll)
        self.schedules = Schedules(engine, self.catalog, self.units, room, listener)
        self.directory = RocksDirectory(engine, self.board, self.catalog, self.schedules, self._upkeep)
        self._sweeping = RocksSweep(
            *(engine, self.board, self.catalog, self.units, self._seen, self.journal),
            *(self.staging, self._upkeep),
        )
        engine.before_write = self._before_write
        engine.after_publish = self.board.notify_waiters

    @property
    def number(self) -> int:
        return self.engine.shard

    def start(self, now_ms: int) -> None:
        """Begin to serve: checkpoints, sweeps and schedules follow what the shard has from now on."""
        self.engine.sync_now()
        self.engine.after_write = self._after_write
        self._upkeep.note_all(now_ms)
        self.schedules.load()

    def close(self) -> None:
        self.board.close()

    def _make_shelf(self, row: QueueRow, counters: Counters, totals: Totals) -> QueueState:
        return QueueState(row, self.engine, counters, totals, self.board)

    def _before_write(self) -> None:
        """Add the records that every batch carries once: counters, a block of the journal."""
        self.board.write_counters()
        self.journal.write_block()

    def _after_write(self) -> None:
        self.journal.note_written()
        self.checkpoints.start_due()

    # --- Messages ----------------------------------------------------------------------------------------------
    #
    # These return the coroutine of the step itself: one of their own would cost as much as a key in the batch.

    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        size = 0
        for draft in drafts:
            size += draft.bytes
            if draft.pieces is not None:
                self.staging.check(draft.pieces)
        self._room.check(now_ms, size)
        return self.units.run(ref, lambda unit: enqueue(unit, ref, drafts, auto_create=auto_create), now_ms)

    def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Coroutine[Any, Any, Claims]:
        return self.units.run(ref, lambda unit: claim(unit, ref, asks, self._dice.tokens), now_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> Coroutine[Any, Any, list[Result]]:
        return self.units.run(ref, lambda unit: settle(unit, ref, verdicts, self._dice.roll), now_ms)

    def save_state(
        self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int
    ) -> Coroutine[Any, Any, str | None]:
        return self.units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Alter messages of a queue; the target of a move is in this shard too."""
        target = verb.to if isinstance(verb, Move) else None
        return await self.units.run(
            ref, lambda unit: alter(unit, ref, verb, which, after, limit), now_ms, target=target
        )

    # --- Inspection --------------------------------------------------------------------------------------------

    def get(self, ref: QueueRef, id: int) -> Found | None:
        shelf = self.catalog.require(ref)
        entry = self.entries.get(shelf, id)
        return None if entry is None else self._found(shelf, entry)

    def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        shelf = self.catalog.require(ref)
        return [self._found(shelf, entry) for entry in self._reader.peek_due(shelf, limit, now_ms)]

    def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        shelf = self.catalog.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = self.matching(ref, states, which, after, limit + 1, now_ms)
        more = len(page) > limit
        return Listing(
            [self._found(shelf, each) for each in page[:limit]], page[limit - 1].envelope.id if more else None
        )

    def matching(
        self, ref: QueueRef, states: frozenset[State], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[StoredMessage]:
        """Return up to `limit` messages in one of the states that the filter matches, by id."""
        return self._reader.matching(self.catalog.require(ref), states, which, after, limit, now_ms)

    def _found(self, shelf: QueueState, entry: StoredMessage) -> Found:
        return Found(entry.envelope, entry.life, self.entries.state(shelf, entry))

    def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        return _counts(self.catalog.require(ref), now_ms)

    def counts_of_tenant(self, tenant: str, now_ms: int) -> list[Counts]:
        """Return counts that together are those of the tenant's queues in this shard."""
        row = self.catalog.tenants.get(tenant)
        if row is None:
            return []
        every: list[Counts] = []
        with_ready: list[bytes] = []
        for p, counters in self.catalog.counters(row):
            if counters.ready:
                # How many of them are due, and since when, is not in the counters.
                with_ready.append(p)
            else:
                every.append(Counts(in_flight=counters.in_flight, failed=counters.failed, bytes=counters.bytes))
        shelves = map(self.catalog.of_prefix, with_ready)
        return every + [_counts(shelf, now_ms) for shelf in shelves if shelf is not None]

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        return await self._sweeping.sweep(limit, now_ms)

    async def sweep_beside_others(self, limit: int, now_ms: int) -> Swept:
        """Sweep, and tell the listener of the next deadline: whoever sweeps all shards may still wait for another."""
        swept = await self._sweeping.sweep(limit, now_ms)
        if swept.next_at is not None:
            self._listener.deadline(swept.next_at)
        return swept


def _counts(shelf: QueueState, now_ms: int) -> Counts:
    shelf.count_due(now_ms)
    return shelf.counts(now_ms)
