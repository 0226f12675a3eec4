"""The memory store: the reference that every other store is compared with."""

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result, Saved
from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event
from holdfast.model.ids import NODES, IdMaker
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import (
    ClaimRequest,
    Filter,
    Move,
    StateChange,
    Verb,
    Verdict,
)
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.logic.bulk import alter
from holdfast.stores.logic.claims import claim
from holdfast.stores.logic.enqueue import enqueue
from holdfast.stores.logic.ledgers import UnitLedgers
from holdfast.stores.logic.queues import require
from holdfast.stores.logic.sweep import delete_some, end_by_time
from holdfast.stores.logic.verdicts import save_state, settle
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.inspection import describe, find_matching, take_first
from holdfast.stores.memory.journal import MemoryJournal
from holdfast.stores.memory.payloads import WholePayloads
from holdfast.stores.memory.queue import MemoryQueue
from holdfast.stores.memory.schedules import MemorySchedules
from holdfast.stores.memory.unit import MemoryUnits
from holdfast.stores.values import AlterStep, Capabilities, Claims, JournalPage, Listing, QueueChange, Swept
from holdfast.telemetry.figures import Figures


class MemoryStore:
    """A `Store` in memory. Its contents are lost with the process."""

    capabilities = Capabilities(claims_inline=True, is_durable=False)
    # For tests that run this store with other steps.
    units_class: type[MemoryUnits] = MemoryUnits

    def __init__(self, dice: Dice, journal_retention_ms: int) -> None:
        self._dice = dice
        self._journal = MemoryJournal(journal_retention_ms)
        self.directory = self._directory = MemoryDirectory(self._row_changed)
        ids = IdMaker(int(dice.roll() * NODES))
        self._units = self.units_class(self._directory, self._journal, ids)
        self.schedules = MemorySchedules(self._directory, self._units)
        self.ledgers = UnitLedgers(self._units, dice.roll)
        self.payloads = WholePayloads()

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._units.open(listener)

    async def close(self) -> None:
        self._directory.is_closed = True

    def shard_of(self, ref: QueueRef) -> int:
        return 0

    def _row_changed(self, queue: MemoryQueue, change: QueueChange, now_ms: int) -> None:
        if change.drain_until is not None:
            self.schedules.delete_all(queue.row.ref)
        self._units.notify_listener(queue, now_ms)

    # --- Messages --------------------------------------------------------------------------------------------

    def enqueue(
        self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._units.run(ref, lambda unit: enqueue(unit, ref, drafts, auto_create=auto_create), now_ms)

    def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Coroutine[Any, Any, Claims]:
        return self._units.run(ref, lambda unit: claim(unit, ref, asks, self._dice.tokens), now_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> Coroutine[Any, Any, list[Result]]:
        return self._units.run(ref, lambda unit: settle(unit, ref, verdicts, self._dice.roll), now_ms)

    def save_state(
        self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int
    ) -> Coroutine[Any, Any, Saved]:
        return self._units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        entry = self._directory.require(ref).entries.get(id)
        return None if entry is None else describe(entry)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        due = self._directory.require(ref).peek_due(now_ms)
        return [describe(entry) for _, entry in zip(range(limit), due, strict=False)]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        queue = self._directory.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = take_first(limit + 1, find_matching(queue, states, which, after, now_ms))
        more = len(page) > limit
        return Listing([describe(entry) for entry in page[:limit]], page[limit - 1].envelope.id if more else None)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        if queue is not None:
            return self._directory.require(QueueRef(tenant, queue)).counts(now_ms)
        return Counts.total([queue.counts(now_ms) for queue in self._directory.queues_of(tenant)])

    # --- Operators -------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        target = verb.to if isinstance(verb, Move) else None
        return await self._units.run(
            ref, lambda unit: alter(unit, ref, verb, which, after, limit), now_ms, target=target
        )

    # --- Maintenance ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        changed = self._journal.trim(limit, now_ms)
        while changed < limit and (deadline := self._units.first_deadline()) is not None and deadline[0] <= now_ms:
            ref, left = deadline[1], limit - changed
            changed += await self._units.run(ref, partial(_sweep_queue, ref=ref, limit=left), now_ms)
        deadline = self._units.first_deadline()
        ends = [] if deadline is None else [deadline[0]]
        if (trim_at := self._journal.next_trim_at()) is not None:
            ends.append(trim_at)
        return Swept(changed, min(ends, default=None))

    async def backup(self, target: str) -> None:
        raise InvalidArgument("a memory:// store has nothing on disk to back up", field="url")

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        retention_ms = None if tenant is None else self._directory.config(tenant).journal_retention_ms
        oldest_at = now_ms - retention_ms if retention_ms is not None else 0
        return self._journal.read(after, limit, tenant, oldest_at, until)

    # --- Figures ---------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return self._journal.take_tallies()

    async def figures(self) -> Figures:
        return Figures(is_up=not self._directory.is_closed)


async def _sweep_queue(unit: MemoryUnits, ref: QueueRef, limit: int) -> int:
    queue = await require(unit, ref)
    unit.notify_ready(queue)
    changed = await end_by_time(unit, queue, limit)
    changed += unit.forget_keys(queue, limit - changed)
    kept = queue.ended(queue.kept, limit - changed, unit.now_ms)
    unit.drop(queue, kept)
    changed += len(kept)
    drain_until = queue.row.drain_until
    if drain_until is not None and changed < limit and (not queue.leases or drain_until <= unit.now_ms):
        changed += await delete_some(unit, queue, limit - changed)
    return changed
