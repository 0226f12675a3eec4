"""A store that answers enqueues from a local log and Redis, and stores them in bulk in the store it wraps.

A buffered message is Ready in every respect: any call that reads a queue or changes its messages first lands the
queue's buffered messages, of this server and of others. All operations except enqueue are therefore the inner store's.

Stored directly in PostgreSQL, before the response: messages with a key or in a group, calls too large to be held in
memory, messages for queues whose tenant has a quota of messages or bytes, and the first message of a queue.
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
from holdfast.stores.buffered.group_commit import PendingEnqueue
from holdfast.stores.contract import Listener, QueueDirectory, Store
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.values import AlterStep, Claims, JournalPage, Listing, QueueChange, QueueRow, Swept, TenantRow
from holdfast.telemetry.figures import Figures

T = TypeVar("T")

# A call with more bytes than this is not held in memory.
_CALL_BYTES = 1 << 20
# Maximum size of all calls held in memory.
_BUFFERED_BYTES = 64 << 20


class BufferableStore(Store, Protocol):
    """A store that the fast path can buffer for."""

    def buffer_target(self) -> BufferTarget:
        """Return the part of the store that the fast path uses. The store must be open."""


class LandingDirectory:
    """The `QueueDirectory` of the inner store; changes that concern buffered messages land them first."""

    def __init__(
        self,
        inner: QueueDirectory,
        block_queue: Callable[[QueueRef], Awaitable[None]],
        land_all: Callable[[], Awaitable[None]],
    ) -> None:
        self._inner = inner
        self._block_queue = block_queue
        self._land_all = land_all
        self.find_tenant = inner.find_tenant
        self.list_tenants = inner.list_tenants
        self.find_queue = inner.find_queue
        self.numbers_of = inner.numbers_of
        self.list_queues = inner.list_queues
        self.create_queue = inner.create_queue

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        await self._land_all()  # a quota counts stored messages
        return await self._inner.put_tenant(tenant, config)

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        if change.drain_until is not None:
            await self._block_queue(ref)
        return await self._inner.change_queue(ref, change, now_ms)


class BufferedStore:
    """A `Store` with the fast path before it."""

    def __init__(self, inner: BufferableStore, options: FastPathOptions) -> None:
        self._inner = inner
        self._options = options
        self.capabilities = inner.capabilities
        self.directory = LandingDirectory(inner.directory, self._block_queue, self._land_all)
        self.schedules = inner.schedules
        self.ledgers = inner.ledgers
        self.payloads = inner.payloads
        # These concern stored messages only.
        self.shard_of = inner.shard_of
        self.settle = inner.settle
        self.save_state = inner.save_state
        self.backup = inner.backup
        self._path: FastPath | None = None
        # The number of calls that remained in the log at the last close.
        self.left_in_log = 0

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        """Open the inner store, then the log, and land the calls of an earlier run."""
        await self._inner.open(listener, runtime)
        self._listener = listener
        self._runtime = runtime
        try:
            self._target = self._inner.buffer_target()
            path = FastPath(self._target, self._options, runtime.clock, self._send_answers)
            await self._target.call(path.open())
        except BaseException:
            await self._inner.close()
            raise
        self._room = DiskRoom(self._options.wal_dir, runtime, self._options.low_disk_bytes)
        self._path = path

    async def close(self) -> None:
        """Land the buffered calls, close the log, then the inner store. `left_in_log` says how many calls remain."""
        path, self._path = self._path, None
        if path is not None:
            self._room.close()
            self.left_in_log = await self._target.call(path.close())
        await self._inner.close()

    # --- Enqueueing --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        """Enqueue through the log and Redis where possible, else directly in the inner store."""
        path = self._required()
        path.check()
        if not path.is_open:
            self._target.post(lambda: path.recover(now_ms))
        may_log = self._has_room(now_ms, sum(draft.bytes for draft in drafts))
        if may_log and path.is_open and _is_simple(drafts) and path.buffer.held_bytes() < _BUFFERED_BYTES:
            if not self._target.is_known(ref):
                await self._target.call(self._target.refresh(ref))
            admitted = self._target.admit(ref, drafts)
            if admitted is not None and not path.buffer.is_stuck(admitted[0]):
                ticket: Ticket[list[Enqueued] | None] = self._runtime.ticket()
                call = PendingEnqueue(ref, drafts, now_ms, *admitted, ticket)
                self._target.post(lambda: path.add(call))
                enqueued = await ticket
                if enqueued is not None:
                    return enqueued
        return await self._inner.enqueue(ref, drafts, now_ms, auto_create=auto_create)

    def _has_room(self, now_ms: int, added_bytes: int) -> bool:
        """Return whether new messages may go through the log. While the log's disk is full, they go directly to the
        store if `on_redis_down` allows that; otherwise raise `StoreUnavailable`."""
        if self._options.on_redis_down == "direct":
            return self._room.refusal(now_ms, added_bytes) is None
        self._room.check(now_ms, added_bytes)
        return True

    def _send_answers(self, answers: list[tuple[PendingEnqueue, Any]]) -> None:
        """From the driver's loop: settle the tickets of all these calls in one step of the runtime."""

        def settle() -> None:
            for call, answer in answers:
                if isinstance(answer, list) and self._listener.is_waited_for(call.ref):
                    at_ms = min(
                        call.now_ms + draft.delay_ms if draft.deliver_at is None else draft.deliver_at
                        for draft in call.drafts
                    )
                    self._listener.ready(call.ref, at_ms)
                if call.ticket.done():
                    continue  # the caller left
                if isinstance(answer, BaseException):
                    call.ticket.set_exception(answer)
                else:
                    call.ticket.set_result(answer)

        self._target.enter(settle)

    def _required(self) -> FastPath:
        if self._path is None:
            raise StoreUnavailable("this store was closed; open it again")
        return self._path

    async def _landed(self, ref: QueueRef, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` after the buffered messages of this queue have landed."""
        try:
            await self._target.call(self._required().land_queue(ref))
        except BaseException:
            work.close()
            raise
        return await work

    async def _all_landed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` after all messages that this server has buffered have landed, as far as their databases
        are up."""
        try:
            await self._land_all()
        except BaseException:
            work.close()
            raise
        return await work

    async def _land_all(self) -> None:
        await self._target.call(self._required().land_all())

    async def _block_queue(self, ref: QueueRef) -> None:
        """Buffer no more messages for a queue, and land those that were buffered."""
        await self._target.call(self._required().block_queue(ref))
        await self._target.call(self._required().land_queue(ref))

    # --- Reading and changing messages ---------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        path = self._required()
        claims = await self._target.call(path.claim(ref, asks, now_ms))
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
            self._target.post(lambda: path.prefetcher.went_by_index(ref, is_full=is_full))

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
        await self._target.call(self._required().land_queues(refs))
        return await self._inner.counts(tenant, None, now_ms)

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        return await self._landed(ref, self._inner.alter(ref, verb, which, after, limit, now_ms))

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        # Without a path, the log is being replayed; its messages are swept the next time.
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
        if self._options.on_redis_down == "direct":
            refusal = None
        return replace(
            figures,
            refusal=figures.refusal or refusal,
            refusals=(figures.refusals or 0) + self._room.refusals,
            wal_free_bytes=self._room.free_bytes(),
        )


def _is_simple(drafts: list[Draft]) -> bool:
    """Return whether the drafts can be held in memory, and need no decision together with stored messages."""
    return sum(draft.bytes for draft in drafts) <= _CALL_BYTES and not any(
        draft.key is not None or draft.group is not None or draft.pieces is not None or "\x00" in draft.content_type
        for draft in drafts
    )
