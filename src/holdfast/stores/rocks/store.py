"""The embedded store: the contract over the engine, its shelves and its journal."""

import dataclasses
import logging
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from holdfast.clock import go_on_from
from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Filter, Move, StateChange, Verb, Verdict
from holdfast.runtime import Runtime, see_through
from holdfast.stores.contract import (
    AlterStep,
    Capabilities,
    Claims,
    JournalPage,
    Listener,
    Listing,
    QueueRow,
    Swept,
)
from holdfast.stores.directory_lock import DirectoryLock
from holdfast.stores.logic.bulk import alter
from holdfast.stores.logic.claims import claim
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.ledgers import Ledgers
from holdfast.stores.logic.verdicts import save_state, settle
from holdfast.stores.pieces import PIECES_ABOVE
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.checkpoints import CHECKPOINT_BYTES, Checkpoints
from holdfast.stores.rocks.counters import Counters, Totals
from holdfast.stores.rocks.database import Database, HandleNotClosed, check_target
from holdfast.stores.rocks.directory import RocksDirectory
from holdfast.stores.rocks.engine import Durability, Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.facts import Facts
from holdfast.stores.rocks.journal import RocksJournal
from holdfast.stores.rocks.opening import lock_directory
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.reopening import (
    CLOSING_S,
    REOPEN_AFTER_MS,
    Reopening,
    close_stopped,
    open_settled,
    remove_probe,
)
from holdfast.stores.rocks.schedules import Schedules
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.shelf import Entry, Shelf
from holdfast.stores.rocks.staging import Staging
from holdfast.stores.rocks.sweeping import Sweeping
from holdfast.stores.rocks.unit import RocksUnits
from holdfast.stores.rocks.upkeep import Upkeep
from holdfast.stores.room import LOW_DISK_BYTES, DiskRoom
from holdfast.telemetry.figures import Figures

_log = logging.getLogger("holdfast")


class RocksStore:
    capabilities = Capabilities(
        claims_inline=True, is_durable=True, streams_above=PIECES_ABOVE, lists_limited_queues=True
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        *,
        durability: Durability = Durability.FSYNC,
        journal_retention_ms: int,
        shards: int = 1,
        low_disk_bytes: int = LOW_DISK_BYTES,
        reopen_after_ms: int = REOPEN_AFTER_MS,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        # The real path: a relative one, or one over a symbolic link, could come to mean another directory.
        self._path = Path(os.path.realpath(path))
        self._dice = dice
        self._durability = durability
        self._journal_retention_ms = journal_retention_ms
        self._shards = shards
        self._low_disk_bytes = low_disk_bytes
        self._reopen_after_ms = reopen_after_ms
        self._checkpoint_bytes = checkpoint_bytes
        self._reopening: Reopening | None = None
        # The store's own, not the database's: nobody may open the directory while a stopped store is reopened.
        self._lock: DirectoryLock | None = None
        # None while the store is closed, and while a stopped one is being opened again.
        self._database: Database | None = None
        # Counted before the store was reopened, and not yet taken.
        self._earlier_tallies: dict[QueueRef, dict[Event, int]] = {}

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._lock = lock_directory(self._path)
        try:
            database = Database(self._path, lock=self._lock)
        except BaseException:
            self._lock.release()
            raise
        remove_probe(database.path)
        self._room = DiskRoom(self._path, runtime, self._low_disk_bytes)
        self._reopening = Reopening(self._path, runtime, self._reopen_after_ms, self._reopen, self._lose)
        try:
            self._open(database, listener, runtime)
        except BaseException:
            self._let_go()
            database.close()
            self._lock.release()
            raise

    def _open(self, database: Database, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._runtime = runtime
        self._engine = Engine(database, runtime, self._durability)
        self._checkpoints = Checkpoints(self._engine, runtime, self._room, self._checkpoint_bytes)
        self._board = Board(self._engine, listener)
        self._facts = Facts(self._engine, self._dice)
        self._catalog = Catalog(self._engine, self._make_shelf)
        self._catalog.load()
        self._entries = Entries(self._engine)
        self._reader = Reader(self._engine, self._entries)
        self._journal = RocksJournal(
            self._engine, self._journal_retention_ms, self._catalog.name_of, shards=self._shards
        )
        go_on_from(runtime.clock, self._journal.latest_at)
        self._seen = SeenKeys(self._engine, self._board.scanner(keys.INDEXES, keys.SEEN_ENDS))
        self._staging = Staging(
            self._engine, runtime, self._catalog, self._entries, self._seen, self._facts, self._room, listener
        )
        self._staging.load()
        self._upkeep = Upkeep(self._engine, self._catalog, listener, shards=self._shards)
        self._units = RocksUnits(
            *(self._engine, self._board, self._catalog, self._entries, self._reader, self._journal),
            *(self._seen, self._staging, self._facts, self._upkeep, listener),
        )
        self._ledgers = Ledgers(self._units, self._dice.roll)
        self._schedules = Schedules(self._engine, self._catalog, self._units, self._room, listener)
        self._directory = RocksDirectory(self._engine, self._board, self._catalog, self._schedules, self._upkeep)
        self._sweeping = Sweeping(
            *(self._engine, self._board, self._catalog, self._units, self._seen, self._journal),
            *(self._staging, self._upkeep),
            shards=self._shards,
        )
        self._engine.before_write = self._before_write
        self._engine.after_publish = self._board.tell_shown
        self._facts.begin_session()
        self._engine.sync_now()
        self._engine.after_write = self._after_write
        self._engine.on_stop = self._stopped
        self._engine.reopens = True
        self._database = database
        self._upkeep.note_all(runtime.clock.now_ms())
        self._schedules.load()

    async def close(self) -> None:
        if self._reopening is None:
            return
        await self._reopening.close()
        self._room.close()
        database, self._database = self._database, None
        if database is None:
            self._engine.close()
            self._release()
            return
        had_stopped = self._engine.failure is not None
        self._engine.reopens = False
        await self._checkpoints.close()
        try:
            if not had_stopped:
                await self._engine.committed()
                self._facts.end_session()
                self._engine.sync_now()
        finally:
            self._let_go()
            try:
                if had_stopped:
                    database.close_stopped(CLOSING_S)
                else:
                    database.close()
            except StoreUnavailable as error:
                if not had_stopped:
                    raise
                # Every caller since the stop was refused; there is nothing left to save.
                _log.warning("%s", error.message)
            finally:
                self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _let_go(self, failure: StoreUnavailable | None = None) -> None:
        """Drop everything that holds a handle: the directory stays locked while one lives. Later calls are refused by
        the engine, with `failure` if given, before any dropped part is missed."""
        self._engine.close(failure)
        self._board.close()
        for name in (
            *("_catalog", "_entries", "_reader", "_journal", "_seen", "_staging", "_ledgers", "_facts", "_upkeep"),
            *("_units", "_schedules", "_directory", "_sweeping"),
        ):
            self.__dict__.pop(name, None)

    # --- After a failed write or sync --------------------------------------------------------------------------

    def _stopped(self, cause: str) -> None:
        assert self._reopening is not None
        self._reopening.stopped(cause)
        self._listener.stopped()

    async def _reopen(self) -> None:
        """Read everything again from disk: memory holds what the disk may have lost. Calls are refused until the end,
        with the error of the stop."""
        failure = self._engine.failure
        if self._database is not None:
            # Calls on the thread run one after the other: the sync or backup under way when the store stopped ends
            # before the parts it belongs to are dropped.
            await self._runtime.offload(lambda: None)
            await self._checkpoints.close()
            old, self._database = self._database, None
            self._keep_tallies()
            self._let_go(failure)
            await self._runtime.offload(lambda: close_stopped(old))
        # The directory has been locked all the time: no other process could open the store in between.
        database = await self._runtime.offload(lambda: open_settled(self._path, self._lock))
        try:
            self._open(database, self._listener, self._runtime)
        except BaseException:
            self._let_go(failure)
            await self._runtime.offload(lambda: close_stopped(database))
            raise
        self._listener.reopened()

    def _lose(self, error: HandleNotClosed) -> None:
        self._engine.close(error)
        self._listener.lost(error.message)

    def _keep_tallies(self) -> None:
        for ref, counts in self._journal.take_tallies().items():
            kept = self._earlier_tallies.setdefault(ref, {})
            for event, count in counts.items():
                kept[event] = kept.get(event, 0) + count

    def _make_shelf(self, row: QueueRow, counters: Counters, totals: Totals) -> Shelf:
        return Shelf(row, self._engine, counters, totals, self._board)

    def _before_write(self) -> None:
        """Add the records that every batch carries once: counters, a block of the journal."""
        self._board.write_counters()
        self._journal.write_block()

    def _after_write(self) -> None:
        self._journal.note_written()
        self._checkpoints.look()

    def shard_of(self, ref: QueueRef) -> int:
        # A stopped store has no catalog. Nothing can be claimed then, nor from a queue that does not exist.
        is_up = self._shards > 1 and self._engine.failure is None
        shelf = self._catalog.find(ref) if is_up else None
        return 0 if shelf is None else keys.shard_of(shelf.p, self._shards)

    # --- Parts, which reopening replaces -----------------------------------------------------------------------

    @property
    def directory(self) -> RocksDirectory:
        self._engine.check()
        return self._directory

    @property
    def schedules(self) -> Schedules:
        self._engine.check()
        return self._schedules

    @property
    def ledgers(self) -> Ledgers[Shelf, Entry]:
        self._engine.check()
        return self._ledgers

    @property
    def payloads(self) -> Staging:
        self._engine.check()
        return self._staging

    # --- Messages ----------------------------------------------------------------------------------------------
    #
    # These return the coroutine of the step itself: one of their own would cost as much as a key in the batch.

    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        self._engine.check()
        size = 0
        for draft in drafts:
            size += draft.bytes
            if draft.pieces is not None:
                self._staging.check(draft.pieces)
        self._room.check(now_ms, size)
        if self._checkpoints.is_behind:
            return self._enqueue_later(ref, drafts, now_ms, auto_create=auto_create)
        return self._units.run(ref, lambda unit: enqueue(unit, ref, drafts, auto_create=auto_create), now_ms)

    async def _enqueue_later(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> list[Enqueued]:
        """Enqueue once memory has room for more changes."""
        await self._checkpoints.caught_up()
        return await self._units.run(ref, lambda unit: enqueue(unit, ref, drafts, auto_create=auto_create), now_ms)

    def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Coroutine[Any, Any, Claims]:
        self._engine.check()
        return self._units.run(ref, lambda unit: claim(unit, ref, asks, self._dice.tokens), now_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> Coroutine[Any, Any, list[Result]]:
        self._engine.check()
        return self._units.run(ref, lambda unit: settle(unit, ref, verdicts, self._dice.roll), now_ms)

    def save_state(
        self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int
    ) -> Coroutine[Any, Any, str | None]:
        self._engine.check()
        return self._units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        self._engine.check()
        shelf = self._catalog.require(ref)
        entry = self._entries.get(shelf, id)
        return None if entry is None else self._found(shelf, entry)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        self._engine.check()
        shelf = self._catalog.require(ref)
        return [self._found(shelf, entry) for entry in self._reader.peek_due(shelf, limit, now_ms)]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        self._engine.check()
        shelf = self._catalog.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = self._reader.matching(shelf, states, which, after, limit + 1, now_ms)
        more = len(page) > limit
        return Listing(
            [self._found(shelf, each) for each in page[:limit]], page[limit - 1].envelope.id if more else None
        )

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        self._engine.check()
        if queue is not None:
            return _counts(self._catalog.require(QueueRef(tenant, queue)), now_ms)
        every: list[Counts] = []
        with_ready: list[bytes] = []
        for p, counters in self._catalog.counters(tenant):
            if counters.ready:
                # How many of them are due, and since when, is not in the counters.
                with_ready.append(p)
            else:
                every.append(Counts(in_flight=counters.in_flight, failed=counters.failed, bytes=counters.bytes))
        shelves = map(self._catalog.of_prefix, with_ready)
        every += [_counts(shelf, now_ms) for shelf in shelves if shelf is not None]
        return Counts.total(every)

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        self._engine.check()
        target = verb.to if isinstance(verb, Move) else None
        return await self._units.run(
            ref, lambda unit: alter(unit, ref, verb, which, after, limit), now_ms, target=target
        )

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        self._engine.check()
        return await self._sweeping.sweep(limit, now_ms)

    async def backup(self, target: str) -> None:
        self._engine.check()
        check_target(Path(target))
        # Seen through though the caller leaves: no other checkpoint may begin while this one is being copied.
        await see_through(self._runtime, self._checkpoints.copy_to(target))

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        self._engine.check()
        await self._engine.committed()  # claims ride along with the next sync; a reader wants to see them
        retention_ms = None if tenant is None else self._catalog.config(tenant).journal_retention_ms
        oldest_at = now_ms - retention_ms if retention_ms is not None else 0
        return self._journal.read(after, limit, tenant, oldest_at, until)

    # --- Figures -----------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        if self._database is not None:
            if not self._earlier_tallies:
                return self._journal.take_tallies()
            self._keep_tallies()
        taken, self._earlier_tallies = self._earlier_tallies, {}
        return taken

    async def figures(self) -> Figures:
        if self._reopening is None or self._reopening.is_closed:
            return Figures(is_up=False)
        failure, room = self._engine.failure, self._room
        figures = Figures(is_up=False)
        if self._database is not None:
            figures = dataclasses.replace(
                self._engine.figures(),
                checkpoints=self._checkpoints.written,
                unwritten_bytes=self._database.unwritten_bytes,
            )
        return dataclasses.replace(
            figures,
            free_bytes=room.free_bytes(),
            refusal=failure.message if failure else room.refusal(self._runtime.clock.now_ms()),
            refusals=room.refusals,
            stops=self._reopening.stops,
        )

    # --- Answers -----------------------------------------------------------------------------------------------

    def _found(self, shelf: Shelf, entry: Entry) -> Found:
        return Found(entry.envelope, entry.life, self._entries.state(shelf, entry))


def _counts(shelf: Shelf, now_ms: int) -> Counts:
    shelf.count_due(now_ms)
    return shelf.counts(now_ms)
