"""The embedded store: a directory with one database or several shards, as one `Store`.

`RocksStore` opens and closes the shards, reopens them after a failed write or sync, and routes each call to its shard.
"""

import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from holdfast.clock import continue_from
from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result, Saved
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event, parse_positions
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, Move, StateChange, Verb, Verdict
from holdfast.runtime import Runtime, shield
from holdfast.stores.contract import LedgerStore, LimitedQueueDirectory, Listener, PayloadStore, ScheduleStore
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.free_space import LOW_DISK_BYTES, DiskRoom
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.rocks import all_shards
from holdfast.stores.rocks.directory.store_facts import ShardFacts, begin_session
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.engine.checkpoints import CHECKPOINT_BYTES
from holdfast.stores.rocks.engine.database import Database, HandleNotClosed, check_target
from holdfast.stores.rocks.engine.engine import Durability, Engine
from holdfast.stores.rocks.engine.reopening import (
    REOPEN_AFTER_MS,
    Reopening,
    close_all_stopped,
    close_databases,
    open_after_failure,
    remove_probe,
    stop_engines,
)
from holdfast.stores.rocks.engine.shard_links import ShardLinks
from holdfast.stores.rocks.journal.journal import merge_pages
from holdfast.stores.rocks.payloads.staging import RocksStage
from holdfast.stores.rocks.recovery.layout import Layout, Opened, find_or_make_layout, note_closed, open_databases
from holdfast.stores.rocks.recovery.opening import lock_directory
from holdfast.stores.rocks.routing import Router, parts_of
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.rocks.shard_moves import ShardMove
from holdfast.stores.values import AlterStep, Capabilities, Claims, JournalPage, Listing, Swept
from holdfast.telemetry.figures import Figures


class RocksStore:
    """The embedded store, a `Store`. `stores/contract.py` documents the methods."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        *,
        durability: Durability = Durability.FSYNC,
        journal_retention_ms: int,
        shards: int | None = None,
        low_disk_bytes: int = LOW_DISK_BYTES,
        reopen_after_ms: int = REOPEN_AFTER_MS,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        lock: DirectoryLock | None = None,
    ) -> None:
        """Prepare a store in the directory `path`, which `open` creates if it is missing.

        `shards` is the number of shards of a new store, by default 1; opening fails for another number. Enqueues are
        refused while less than `low_disk_bytes` are free. After a failed write or sync, the first attempt to reopen is
        made after `reopen_after_ms`. `checkpoint_bytes` bounds the changes that are only in the log. `lock` is the
        caller's lock on the directory, and remains the caller's.
        """
        # The resolved path, because a relative path or a symbolic link may later lead to another directory.
        self._path = Path(os.path.realpath(path))
        self._dice = dice
        self._durability = durability
        joins = durability is Durability.OS  # with fsync, separate calls share the sync, which costs more than they do
        self.capabilities = Capabilities(
            claims_inline=True, streams_above=PIECES_ABOVE, lists_limited_queues=True, prefers_batches=joins
        )
        self._journal_retention_ms = journal_retention_ms
        self._wanted_shards = shards
        self._low_disk_bytes = low_disk_bytes
        self._reopen_after_ms = reopen_after_ms
        self._checkpoint_bytes = checkpoint_bytes
        self._reopening: Reopening | None = None
        self._given_lock = lock
        # Held by the store and not by its databases, so that no other process can open the directory while a stopped
        # store is reopened.
        self._lock: DirectoryLock | None = None
        # Empty while the store is closed, and while it is being reopened.
        self.databases: list[Database] = []
        # all_shards.Tallies from before the store was reopened that `take_tallies` has not returned yet.
        self._earlier_tallies: all_shards.Tallies = {}

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._lock = self._given_lock or lock_directory(self._path)
        try:
            self._layout = self._find_layout()
            opened = open_databases(self._layout, self._lock)
        except BaseException:
            self._release()
            raise
        # Each process of a divided store has a file of its own for probes.
        probed = self._path if self._layout.only is None else self._layout.paths[self._layout.only[0]]
        remove_probe(probed)
        self._disk_room = DiskRoom(self._path, runtime, self._low_disk_bytes)
        self._reopening = Reopening(probed, runtime, self._reopen_after_ms, self._reopen, self._fail_permanently)
        try:
            self._open(opened, listener, runtime)
            await self._finish_transfers()
        except BaseException:
            self._drop_parts()
            for database in opened.databases:
                database.close()
            note_closed(self._layout)
            self._release()
            raise

    def _find_layout(self) -> Layout:
        return find_or_make_layout(self._path, self._wanted_shards)

    def _make_tenants(self, engine: Engine) -> Tenants:
        """Return the tenants of a store whose first engine is `engine`."""
        tenants = Tenants(engine)
        tenants.load()
        return tenants

    def _begin_session(self, facts: list[ShardFacts]) -> None:
        begin_session(facts, self._dice)

    async def _finish_transfers(self) -> None:
        await all_shards.finish_transfers(self.shards, self._runtime.clock.now_ms())

    def _open(self, opened: Opened, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._runtime = runtime
        databases = opened.databases
        self._engines = [
            Engine(database, runtime, self._durability, shard=number, is_only=len(databases) == 1)
            for number, database in zip(self._layout.numbers, databases, strict=True)
        ]
        tenants = self._make_tenants(self._engines[0])
        facts = [ShardFacts(engine) for engine in self._engines]
        uploads: dict[int, RocksStage] = {}
        self.shards = [
            Shard(
                *(engine, tenants, each, listener, runtime, self._disk_room, self._dice, uploads),
                shards=self._layout.shards,
                journal_retention_ms=self._journal_retention_ms,
                checkpoint_bytes=self._checkpoint_bytes,
            )
            for engine, each in zip(self._engines, facts, strict=True)
        ]
        tenants.shards = [shard.catalog for shard in self.shards]
        for shard in self.shards:
            continue_from(runtime.clock, shard.journal.latest_at)
        self._router = Router(self.shards, tenants, self._layout.shards)
        self._links = ShardLinks(runtime, opened.last_link)
        self._only_shard = self.shards[0] if len(self.shards) == 1 else None
        self._parts = parts_of(self._router)
        # All engines stop together, so any of them shows whether the store has stopped.
        self._engine = self._engines[0]
        self._begin_session(facts)
        for engine in self._engines:
            engine.on_stop = self._stop
        for shard in self.shards:
            shard.start(runtime.clock.now_ms())
        for engine in self._engines:
            engine.reopens = True
        self.databases = databases

    async def close(self) -> None:
        if self._reopening is None:
            return
        await self._reopening.close()
        self._disk_room.close()
        databases, self.databases = self.databases, []
        if not databases:
            self._close_engines()
            self._release()
            return
        had_stopped = self._engine.failure is not None
        for engine in self._engines:
            engine.reopens = False
        for shard in self.shards:
            await shard.checkpoints.close()
        try:
            if not had_stopped:
                for shard in self.shards:
                    await shard.engine.committed()
                for shard in self.shards:
                    shard.facts.end_session()
                    shard.engine.sync_now()
        finally:
            self._drop_parts()
            try:
                close_databases(databases, self._layout, had_stopped=had_stopped)
            finally:
                self._release()

    def _release(self) -> None:
        if self._lock is not None and self._given_lock is None:
            self._lock.release()

    def _close_engines(self, failure: StoreUnavailable | None = None) -> None:
        for engine in self._engines:
            engine.close(failure)

    def _drop_parts(self, failure: StoreUnavailable | None = None) -> None:
        """Drop every part that refers to a database: RocksDB locks its directory while a reference exists.

        Later calls raise `failure`, or the error of a closed store, before they need a dropped part.
        """
        self._close_engines(failure)
        for shard in self.__dict__.get("shards", ()):
            shard.close()
        for name in ("shards", "_only_shard", "_router", "_links", "_parts"):
            self.__dict__.pop(name, None)

    # --- After a failed write or sync --------------------------------------------------------------------------

    def _stop(self, cause: str) -> None:
        """Stop all shards after one of them has stopped: they share the disk, and must be read again together."""
        assert self._reopening is not None
        if stop_engines(self._engines, cause):
            self._reopening.stopped(cause)
            self._listener.stopped()

    async def _reopen(self) -> None:
        """Open the databases again, and read everything from disk.

        Memory may have changes that the disk has lost. Until the end, calls raise the error of the stop.
        """
        failure = self._engine.failure
        if self.databases:
            # Wait for the sync or backup that was running when the store stopped, before its parts are dropped.
            for engine in self._engines:
                await self._runtime.offload(lambda: None, thread=engine.shard)
            for shard in self.shards:
                await shard.checkpoints.close()
            old, self.databases = self.databases, []
            all_shards.add_tallies(self.shards, self._earlier_tallies)
            self._drop_parts(failure)
            await close_all_stopped(self._runtime, old)
        opened = await self._runtime.offload(lambda: open_after_failure(self._layout, self._lock))
        try:
            self._open(opened, self._listener, self._runtime)
            await self._finish_transfers()
        except BaseException:
            self._drop_parts(failure)
            await close_all_stopped(self._runtime, opened.databases)
            raise
        self._listener.reopened()

    def _fail_permanently(self, error: HandleNotClosed) -> None:
        """Refuse every call for the life of the process, because the database could not be closed."""
        self._close_engines(error)
        self._listener.lost(error.message)

    # --- Parts; reopening the store replaces them --------------------------------------------------------------

    @property
    def directory(self) -> LimitedQueueDirectory:
        self._engine.check()
        return self._parts.directory

    @property
    def schedules(self) -> ScheduleStore:
        self._engine.check()
        return self._parts.schedules

    @property
    def ledgers(self) -> LedgerStore:
        self._engine.check()
        return self._parts.ledgers

    @property
    def payloads(self) -> PayloadStore:
        self._engine.check()
        return self._parts.payloads

    def shard_of(self, ref: QueueRef) -> int:
        # While the store is stopped it has no shards; any number will do, because its calls fail.
        return 0 if len(self._engines) == 1 or self._engine.failure is not None else self._router.find_any(ref).number

    def _shard(self, ref: QueueRef) -> Shard:
        """Return the shard to call. Raise `StoreUnavailable` if the store has stopped."""
        if self._engine.failure is not None:
            self._engine.check()
        return self._only_shard or self._router.find_any(ref)

    # --- Messages ----------------------------------------------------------------------------------------------
    #
    # Not `async`: another coroutine around that of the step would cost as much as writing a key.
    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        if self._engine.failure is not None:
            self._engine.check()
        shard = self._only_shard or self._router.find(ref)
        if shard is None or shard.checkpoints.is_behind:
            return self._enqueue_later(ref, drafts, now_ms, auto_create=auto_create)
        return shard.enqueue(ref, drafts, now_ms, auto_create=auto_create)

    async def _enqueue_later(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> list[Enqueued]:
        """Enqueue after the shard of a new queue is chosen, and after a shard that is behind wrote a checkpoint."""
        while True:
            self._engine.check()
            shard = await self._router.choose(ref) if auto_create else self._router.find_any(ref)
            if not shard.checkpoints.is_behind:
                return await shard.enqueue(ref, drafts, now_ms, auto_create=auto_create)
            await shard.checkpoints.wait_for_room()

    def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Coroutine[Any, Any, Claims]:
        return self._shard(ref).claim(ref, asks, now_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> Coroutine[Any, Any, list[Result]]:
        return self._shard(ref).settle(ref, verdicts, now_ms)

    def save_state(
        self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int
    ) -> Coroutine[Any, Any, Saved]:
        return self._shard(ref).save_state(ref, receipt, change, now_ms)

    # --- Inspection and bulk verbs -----------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        return self._shard(ref).get(ref, id)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        return self._shard(ref).peek(ref, limit, now_ms)

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        return self._shard(ref).browse(ref, state, which, after, limit, now_ms)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        self._engine.check()
        if queue is not None:
            ref = QueueRef(tenant, queue)
            return self._shard(ref).counts(ref, now_ms)
        return Counts.total(each for shard in self.shards for each in shard.counts_of_tenant(tenant, now_ms))

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        shard = self._shard(ref)
        if isinstance(verb, Move) and self._only_shard is None:
            target = self._router.find(verb.to)
            if target is not None and target is not shard:
                # The move goes on if the caller is cancelled: its link must be ended and its copies be deleted.
                move = ShardMove(self._links, shard, target)
                return await shield(self._runtime, move.run(ref, verb, which, after, limit, now_ms))
        return await shard.alter(ref, verb, which, after, limit, now_ms)

    # --- Background work and metrics ---------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        self._engine.check()
        if self._only_shard is not None:
            return await self._only_shard.sweep(limit, now_ms)
        return await all_shards.sweep_shards(self.shards, self._runtime, limit, now_ms)

    async def backup(self, target: str) -> None:
        self._engine.check()
        check_target(Path(target))
        # The copy goes on if the caller is cancelled, because no other checkpoint may begin before it has ended.
        await shield(self._runtime, all_shards.copy_store(self.shards, self._layout, Path(target)))

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        self._engine.check()
        positions = parse_positions(after, len(self.shards))
        ends = None if until is None else parse_positions(until, len(positions))
        oldest_at = self._router.tenants.oldest_event_at(tenant, now_ms)
        return merge_pages(await all_shards.read_pages(self.shards, positions, ends, limit, tenant, oldest_at), limit)

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        if self.databases:
            if not self._earlier_tallies and self._only_shard is not None:
                return self._only_shard.journal.take_tallies()
            all_shards.add_tallies(self.shards, self._earlier_tallies)
        taken, self._earlier_tallies = self._earlier_tallies, {}
        return taken

    async def figures(self) -> Figures:
        if self._reopening is None or self._reopening.is_closed:
            return Figures(is_up=False)
        now_ms, stops = self._runtime.clock.now_ms(), self._reopening.stops
        shards = self.shards if self.databases else []
        return all_shards.sum_figures(shards, self._disk_room, self._engine.failure, now_ms, stops)
