"""A store that answers enqueues from a local log and Redis, and stores them in bulk in the one it wraps.

What is buffered is Ready in every respect: whatever looks at a queue, or changes its messages, first lands what was
answered for on it, by this server or another. So all but enqueueing is the inner store's.

To PostgreSQL directly, before they are answered: messages with a key or in a group, calls too large to be held in
memory, queues whose tenant has a quota of messages or bytes, and a queue's first message.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from holdfast.model.answers import Counts, Enqueued, Found, LedgerEntry, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Ask, Filter, StateChange, Verb, Verdict
from holdfast.model.schedules import Schedule, Tick
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.buffered.commits import Offer
from holdfast.stores.buffered.path import FastPath, Ground, Terms
from holdfast.stores.contract import (
    AlterStep,
    Claims,
    DueSchedules,
    JournalPage,
    Listener,
    Listing,
    PayloadReader,
    PayloadWriter,
    QueueRow,
    Store,
    Swept,
    TenantRow,
)
from holdfast.stores.room import DiskRoom
from holdfast.telemetry.figures import Figures

T = TypeVar("T")

# A call with more bytes is not held in memory.
_CALL_BYTES = 1 << 20
# Nor is more than this, of all calls together.
_BUFFERED_BYTES = 64 << 20


class Wrapped(Store, Protocol):
    """A store that can be buffered for."""

    def ground(self) -> Ground: ...


class BufferedStore:
    def __init__(self, inner: Wrapped, terms: Terms) -> None:
        self._inner = inner
        self._terms = terms
        self.capabilities = inner.capabilities
        self._path: FastPath | None = None
        # Calls that closing left to the log.
        self.left = 0

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        await self._inner.open(listener, runtime)
        self._listener = listener
        self._runtime = runtime
        try:
            self._ground = self._inner.ground()
            path = FastPath(self._ground, self._terms, runtime.clock.now_ms, self._answer)
            await self._ground.call(path.open())
        except BaseException:
            await self._inner.close()
            raise
        self._room = DiskRoom(self._terms.wal_dir, runtime, self._terms.low_disk_bytes)
        self._path = path

    async def close(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            self._room.close()
            self.left = await self._ground.call(path.close())
        await self._inner.close()

    def shard_of(self, ref: QueueRef) -> int:
        return self._inner.shard_of(ref)

    # --- Enqueueing --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        path = self._required()
        path.check()
        if not path.is_open:
            self._ground.post(lambda: path.recover(now_ms))
        may_log = self._has_room(now_ms, sum(draft.bytes for draft in drafts))
        if may_log and path.is_open and _is_simple(drafts) and path.buffer.held_bytes() < _BUFFERED_BYTES:
            if not self._ground.is_known(ref):
                await self._ground.call(self._ground.ask(ref))
            admitted = self._ground.admit(ref, drafts)
            if admitted is not None and not path.buffer.is_stuck(admitted[0]):
                ticket: Ticket[list[Enqueued] | None] = self._runtime.ticket()
                offer = Offer(ref, drafts, now_ms, *admitted, ticket)
                self._ground.post(lambda: path.offer(offer))
                enqueued = await ticket
                if enqueued is not None:
                    return enqueued
        return await self._inner.enqueue(ref, drafts, now_ms, auto_create=auto_create)

    def _has_room(self, now_ms: int, added_bytes: int) -> bool:
        """Return whether new messages go through the log. While its disk is full, they go directly to the store if
        they may while Redis is down; otherwise raise `StoreUnavailable`."""
        if self._terms.on_redis_down == "direct":
            return self._room.refusal(now_ms, added_bytes) is None
        self._room.check(now_ms, added_bytes)
        return True

    def _answer(self, answers: list[tuple[Offer, Any]]) -> None:
        """From the driver's loop: in one step for all of them."""

        def settle() -> None:
            for offer, answer in answers:
                if isinstance(answer, list) and self._listener.is_waited_for(offer.ref):
                    at_ms = min(
                        offer.now_ms + draft.delay_ms if draft.deliver_at is None else draft.deliver_at
                        for draft in offer.drafts
                    )
                    self._listener.ready(offer.ref, at_ms)
                if offer.ticket.done():
                    continue  # the caller left
                if isinstance(answer, BaseException):
                    offer.ticket.set_exception(answer)
                else:
                    offer.ticket.set_result(answer)

        self._ground.enter(settle)

    def _required(self) -> FastPath:
        if self._path is None:
            raise StoreUnavailable("this queue was closed: open it again")
        return self._path

    async def _landed(self, ref: QueueRef, work: Coroutine[Any, Any, T]) -> T:
        """`work`, after what was answered for on this queue."""
        try:
            await self._ground.call(self._required().settle(ref))
        except BaseException:
            work.close()
            raise
        return await work

    async def _all_landed(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, after what this server has answered for, as far as its databases are up."""
        try:
            await self._ground.call(self._required().settle_all())
        except BaseException:
            work.close()
            raise
        return await work

    # --- What looks at messages, or changes them -----------------------------------------------------------------

    async def drain(self, ref: QueueRef, until_ms: int, now_ms: int) -> QueueRow:
        await self._ground.call(self._required().bar(ref))
        return await self._landed(ref, self._inner.drain(ref, until_ms, now_ms))

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        path = self._required()
        claims = await self._ground.call(path.claim(ref, asks, now_ms))
        if claims is not None:
            return claims
        if not path.prefetcher.wanted(asks):
            return await self._inner.claim(ref, asks, now_ms)
        is_full = False
        try:
            claims = await self._inner.claim(ref, asks, now_ms)
            is_full = all(len(given) == ask.limit for ask, given in zip(asks, claims.per_ask, strict=True))
            return claims
        finally:
            self._ground.post(lambda: path.prefetcher.went_by_index(ref, is_full=is_full))

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        return await self._landed(ref, self._inner.get(ref, id))

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        return await self._landed(ref, self._inner.peek(ref, limit, now_ms))

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        return await self._landed(ref, self._inner.browse(ref, state, which, after, limit, now_ms))

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        return await self._landed(ref, self._inner.counts(ref, now_ms))

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        refs = [row.ref for row in await self._inner.list_queues(tenant)]
        await self._ground.call(self._required().settle_many(refs))
        return await self._inner.tenant_counts(tenant, now_ms)

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        return await self._landed(ref, self._inner.alter(ref, verb, which, after, limit, now_ms))

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        # None: the log is being replayed, and what is in it is swept the next time.
        if self._path is None or self._path.is_landed_by_others:
            return await self._inner.sweep(limit, now_ms)
        return await self._all_landed(self._inner.sweep(limit, now_ms))

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        return await self._all_landed(self._inner.journal(after, limit, tenant, now_ms, until))

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        if self._required().is_landed_by_others:
            return await self._inner.take_tallies()
        return await self._all_landed(self._inner.take_tallies())

    async def figures(self) -> Figures:
        figures = await self._inner.figures()
        if self._path is None:
            return figures
        refusal = self._room.refusal(self._runtime.clock.now_ms())
        if self._terms.on_redis_down == "direct":
            refusal = None
        return replace(
            figures,
            refusal=figures.refusal or refusal,
            refusals=(figures.refusals or 0) + self._room.refusals,
            wal_free_bytes=self._room.free_bytes(),
        )

    # --- What is the inner store's alone -------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return await self._inner.find_tenant(tenant)

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return await self._inner.find_queue(ref)

    async def list_tenants(self) -> list[TenantRow]:
        return await self._inner.list_tenants()

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return await self._inner.list_queues(tenant)

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        # A quota counts what is stored.
        return await self._all_landed(self._inner.put_tenant(tenant, config))

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        return await self._inner.create_queue(ref, now_ms)

    async def put_policy(self, ref: QueueRef, policy: QueuePolicy, now_ms: int) -> QueueRow:
        return await self._inner.put_policy(ref, policy, now_ms)

    async def pause(self, ref: QueueRef, is_paused: bool, now_ms: int) -> QueueRow:
        return await self._inner.pause(ref, is_paused, now_ms)

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        return await self._inner.stage(ref, draft, now_ms, auto_create=auto_create)

    async def read_payload(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        return await self._inner.read_payload(ref, id, pieces, start)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        return await self._inner.settle(ref, verdicts, now_ms)

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        return await self._inner.save_state(ref, receipt, change, now_ms)

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        return await self._inner.ledger(ref, consumer, now_ms, number)

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        return await self._inner.ledger_ack(ref, consumer, upto, now_ms)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        return await self._inner.ledger_extend(ref, consumer, lease_ms, now_ms)

    async def find_schedule(self, ref: QueueRef, name: str) -> Schedule | None:
        return await self._inner.find_schedule(ref, name)

    async def list_schedules(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return await self._inner.list_schedules(ref, after, limit)

    async def put_schedule(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        return await self._inner.put_schedule(ref, was, schedule, now_ms)

    async def fire_schedule(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        return await self._inner.fire_schedule(ref, schedule, tick, now_ms)

    async def delete_schedule(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        return await self._inner.delete_schedule(ref, name, now_ms)

    async def due_schedules(self, limit: int, now_ms: int) -> DueSchedules:
        return await self._inner.due_schedules(limit, now_ms)

    async def backup(self, target: str) -> None:
        await self._inner.backup(target)


def _is_simple(drafts: list[Draft]) -> bool:
    """Nothing of it has to be decided together with what is stored already, and it can be held in memory."""
    return sum(draft.bytes for draft in drafts) <= _CALL_BYTES and not any(
        draft.key is not None or draft.group is not None or draft.pieces is not None or "\x00" in draft.content_type
        for draft in drafts
    )
