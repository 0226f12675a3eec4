"""A store that answers enqueues from a local log and Redis, and stores them in bulk in the one it wraps.

What is buffered is Ready in every respect: whatever looks at a queue, or changes its messages, first lands what was
answered for on it, by this server or another. So all but enqueueing is the inner store's.

To PostgreSQL directly, before they are answered: messages with a key or in a group, calls too large to be held in
memory, queues whose tenant has a quota of messages or bytes, and a queue's first message.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from holdfast.model.answers import Counts, Enqueued, Found
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.model.requests import ClaimRequest, Filter, Verb
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.buffered.fast_path import BufferTarget, FastPath, FastPathOptions
from holdfast.stores.buffered.group_commit import Offer
from holdfast.stores.contract import (
    AlterStep,
    Claims,
    JournalPage,
    Listener,
    Listing,
    QueueChange,
    QueueDirectory,
    QueueRow,
    Store,
    Swept,
    TenantRow,
)
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.telemetry.figures import Figures

T = TypeVar("T")

# A call with more bytes is not held in memory.
_CALL_BYTES = 1 << 20
# Nor is more than this, of all calls together.
_BUFFERED_BYTES = 64 << 20


class Wrapped(Store, Protocol):
    """A store that can be buffered for."""

    def ground(self) -> BufferTarget: ...


class LandingDirectory:
    """`QueueDirectory` of the inner store; changes that concern buffered messages land them first."""

    def __init__(
        self,
        inner: QueueDirectory,
        bar: Callable[[QueueRef], Awaitable[None]],
        land_all: Callable[[], Awaitable[None]],
    ) -> None:
        self._inner = inner
        self._bar = bar
        self._land_all = land_all
        self.find_tenant = inner.find_tenant
        self.list_tenants = inner.list_tenants
        self.find_queue = inner.find_queue
        self.list_queues = inner.list_queues
        self.create_queue = inner.create_queue

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        await self._land_all()  # a quota counts what is stored
        return await self._inner.put_tenant(tenant, config)

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        if change.drain_until is not None:
            await self._bar(ref)
        return await self._inner.change_queue(ref, change, now_ms)


class BufferedStore:
    def __init__(self, inner: Wrapped, terms: FastPathOptions) -> None:
        self._inner = inner
        self._terms = terms
        self.capabilities = inner.capabilities
        self.directory = LandingDirectory(inner.directory, self._bar, self._land_all)
        self.schedules = inner.schedules
        self.ledgers = inner.ledgers
        self.payloads = inner.payloads
        # These concern stored messages alone.
        self.shard_of = inner.shard_of
        self.settle = inner.settle
        self.save_state = inner.save_state
        self.backup = inner.backup
        self._path: FastPath | None = None
        # Calls that closing left to the log.
        self.left = 0

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        await self._inner.open(listener, runtime)
        self._listener = listener
        self._runtime = runtime
        try:
            self._ground = self._inner.ground()
            path = FastPath(self._ground, self._terms, runtime.clock, self._answer)
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
            await self._land_all()
        except BaseException:
            work.close()
            raise
        return await work

    async def _land_all(self) -> None:
        await self._ground.call(self._required().settle_all())

    async def _bar(self, ref: QueueRef) -> None:
        """Buffer no more for a queue, and land the messages that were buffered for it."""
        await self._ground.call(self._required().bar(ref))
        await self._ground.call(self._required().settle(ref))

    # --- What looks at messages, or changes them -----------------------------------------------------------------

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
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

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        if queue is not None:
            return await self._landed(QueueRef(tenant, queue), self._inner.counts(tenant, queue, now_ms))
        refs = [row.ref for row in await self._inner.directory.list_queues(tenant)]
        await self._ground.call(self._required().settle_many(refs))
        return await self._inner.counts(tenant, None, now_ms)

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


def _is_simple(drafts: list[Draft]) -> bool:
    """Nothing of it has to be decided together with what is stored already, and it can be held in memory."""
    return sum(draft.bytes for draft in drafts) <= _CALL_BYTES and not any(
        draft.key is not None or draft.group is not None or draft.pieces is not None or "\x00" in draft.content_type
        for draft in drafts
    )
