"""One portion of a divided store, as a `Store`: the shards of one process.

Its operations on one queue are those of `RocksStore`. What concerns several portions goes through the coordinator: new
queues, quotas, and moves to a queue of another portion. A call for a queue that this portion does not have is refused
as misplaced, and goes to another process.
"""

import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.dice import Dice
from holdfast.model.answers import Enqueued
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import parse_positions
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Verb
from holdfast.runtime import Runtime, shield
from holdfast.stores.contract import LimitedQueueDirectory, ScheduleStore
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.directory.part_shortage import with_quota
from holdfast.stores.rocks.directory.store_facts import ShardFacts, begin_session
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.journal import ShardPage, merge_pages
from holdfast.stores.rocks.portions.calls import (
    JournalPart,
    NoteCreated,
    PortionEnd,
    ReadJournal,
    RequireOwner,
)
from holdfast.stores.rocks.portions.departures import Departures
from holdfast.stores.rocks.portions.misplaced import misplaced
from holdfast.stores.rocks.portions.portion import Portion
from holdfast.stores.rocks.portions.routing import PortionDirectory, PortionSchedules
from holdfast.stores.rocks.portions.tenants import PortionTenants
from holdfast.stores.rocks.recovery.layout import Layout, read_layout
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.rocks.store import RocksStore
from holdfast.stores.values import AlterStep, JournalPage, TenantRow


class PortionStore(RocksStore):
    """A portion of a divided store. The directory must have been opened and closed as a whole before."""

    tenants: PortionTenants

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        portion: Portion,
        coordinator: PortionEnd,
        *,
        lock: DirectoryLock,
        **options: Any,
    ) -> None:
        """`lock` is the lock that the processes of the store share. `options` are those of `RocksStore`."""
        super().__init__(path, dice, lock=lock, **options)
        self.portion = portion
        self._coordinator = coordinator
        self.departures = Departures(self, coordinator)
        # Queues of other portions, as far as this process knows; only the coordinator's learns of any.
        self.elsewhere: dict[QueueRef, int] = {}
        # Called with rows of tenants that this process has learned from the coordinator.
        self.on_tenants: Callable[[Sequence[TenantRow]], None] = lambda rows: None

    # --- Opening -----------------------------------------------------------------------------------------------------

    def _find_layout(self) -> Layout:
        layout = read_layout(self._path)
        return layout._replace(only=self.portion.shards(layout.shards))

    def _make_tenants(self, engine: Engine) -> PortionTenants:
        tenants = PortionTenants(engine, self.portion.number, self._coordinator)
        if self.portion.is_first:
            tenants.load()
        if (earlier := getattr(self, "tenants", None)) is not None:
            tenants.continue_from(earlier)
        self.tenants = tenants
        return tenants

    def _begin_session(self, facts: list[ShardFacts]) -> None:
        begin_session(facts, self._dice, node_offset=self.portion.number)

    async def _finish_transfers(self) -> None:
        for shard in self.shards:
            self.departures.resume(shard.number)

    async def close(self) -> None:
        self.departures.close()
        await super().close()

    # --- The parts ---------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> LimitedQueueDirectory:
        self._engine.check()
        return PortionDirectory(self._router, self)

    @property
    def schedules(self) -> ScheduleStore:
        self._engine.check()
        return PortionSchedules(self._router, self)

    @property
    def coordinator(self) -> PortionEnd:
        """Return the coordinator of the store."""
        return self._coordinator

    @property
    def runtime(self) -> Runtime:
        """Return the runtime that the store was opened with."""
        return self._runtime

    def has_queue(self, ref: QueueRef) -> bool:
        """Return whether a queue is in this portion."""
        self._engine.check()
        return self._router.find(ref) is not None

    def find_shard(self, number: int) -> Shard:
        """Return a shard of this portion by its number in the store."""
        self._engine.check()
        return next(shard for shard in self.shards if shard.number == number)

    def announce_ready(self, ref: QueueRef) -> None:
        """Let the claims that wait for a queue look again."""
        self._listener.ready(ref, self._runtime.clock.now_ms())

    @property
    def layout(self) -> Layout:
        """Return the layout of the whole store."""
        return self._layout

    # --- The place of a queue ----------------------------------------------------------------------------------------

    def check_owner(self, ref: QueueRef, *, creates: bool = False) -> None:
        """Raise the error of a misplaced call if the queue is not in this portion.

        A missing queue belongs to the first portion, which finds the place of those that are to be created.
        """
        if self._engine.failure is not None or self._router.find(ref) is not None:
            self._check_joined()
            return  # a stopped store raises its own error
        if self.portion.is_first:
            if ref in self.elsewhere:
                raise misplaced(ref)
        elif not (creates and self.tenants.is_assigned(ref)):
            raise misplaced(ref)

    def _check_joined(self) -> None:
        """Raise `StoreUnavailable` until the coordinator has told the limits and quotas of tenants."""
        if not self.tenants.has_joined:
            raise StoreUnavailable("this store process is starting: try again")

    async def require_owner(self, ref: QueueRef) -> None:
        """Return once a queue may be created here. Raise the error of a misplaced call if it has another place."""
        if self._router.find(ref) is not None or self.tenants.is_assigned(ref):
            return
        if not self.portion.is_first or await self._coordinator.ask(RequireOwner(ref)) != self.portion.number:
            raise misplaced(ref)

    def _shard(self, ref: QueueRef) -> Shard:
        self._engine.check()
        shard = self._router.find(ref)
        if shard is None:
            self.check_owner(ref)
            return self.shards[0]
        return shard

    # --- Messages ----------------------------------------------------------------------------------------------------

    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        self._engine.check()
        if self._router.find(ref) is None:
            return self._enqueue_missing(ref, drafts, now_ms, auto_create=auto_create)
        if self.tenants.has_quotas(ref.tenant):
            return with_quota(partial(super().enqueue, ref, drafts, now_ms, auto_create=auto_create))
        return super().enqueue(ref, drafts, now_ms, auto_create=auto_create)

    async def _enqueue_missing(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> list[Enqueued]:
        if auto_create:
            await self.require_owner(ref)
        else:
            self.check_owner(ref)
        enqueue = partial(super().enqueue, ref, drafts, now_ms, auto_create=auto_create)

        async def enqueue_and_announce() -> list[Enqueued]:
            enqueued = await with_quota(enqueue)
            await self.note_created(ref)
            return enqueued

        return await shield(self._runtime, enqueue_and_announce())

    async def note_created(self, ref: QueueRef) -> None:
        """Tell the coordinator that a assigned queue exists. Claims may wait for it there."""
        with suppress(StoreUnavailable):  # the coordinator is gone, and the claims with it
            await self._coordinator.ask(NoteCreated(ref, self.portion.number))

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        self._engine.check()
        if isinstance(verb, Move) and self._router.find(verb.to) is None:
            move = self.departures.move(self._shard(ref), ref, verb, which, after, limit, now_ms)
            # The move goes on if the caller is cancelled: its messages must arrive.
            return await shield(self._runtime, move)
        return await with_quota(partial(super().alter, ref, verb, which, after, limit, now_ms))

    # --- The whole store, for the coordinator's process --------------------------------------------------------------

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        self._engine.check()
        positions = parse_positions(after, self._layout.shards)
        ends = None if until is None else parse_positions(until, len(positions))
        oldest_at = self.tenants.oldest_event_at(tenant, now_ms)
        parts: list[JournalPart] = await self._coordinator.ask(ReadJournal(positions, ends, limit, tenant, oldest_at))
        pages = {part.shard: ShardPage(part.events, part.position) for part in parts}
        return merge_pages([pages[number] for number in range(len(positions))], limit)

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            f"this store is divided among {self.portion.portions} processes: copy it with `holdfast backup "
            f"{self._path} {target}`",
            field="target",
        )
