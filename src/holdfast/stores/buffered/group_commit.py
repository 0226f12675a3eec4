"""Group commit: all calls that wait at one moment share one write and one sync of the log, and one call of Redis.

Redis is called at the same time as the disk. A call gets its response once its record is on disk. If Redis did not take
a call that needs Redis, the call is voided in the log before it is refused: a refusal means that nothing is stored.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.background import Backoff, sleep_for, wait_for_event
from holdfast.clock import Clock
from holdfast.model.answers import Enqueued
from holdfast.model.errors import HoldfastError, Internal, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import Ticket
from holdfast.stores.buffered.buffer import Buffer, BufferedCall
from holdfast.stores.buffered.log.records import record_size
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.buffered.redis_cache import Cache, Held
from holdfast.stores.formats.logged_enqueue import LoggedCall, encode_call, log_call

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_CALLS = 2_000
_BYTES = 4 << 20
# The first pause after an error is short, because callers wait.
_FIRST_PAUSE_MS = 10


class PendingEnqueue(NamedTuple):
    """A call of `enqueue` that waits for group commit. Its ticket gets None if the call must go to the store
    directly."""

    ref: QueueRef
    drafts: list[Draft]
    now_ms: int
    shard: int
    queue_id: int
    default_ttl_ms: int | None
    ticket: Ticket[list[Enqueued] | None]


class Peers(Protocol):
    """The connection to the other servers: shared ids, the database's time, and wake-ups."""

    async def confirm_node(self) -> None:
        """Make sure that this server may make new message ids. Raise `StoreUnavailable` if it may not."""

    def take_ids(self, number: int, stored_ms: int) -> list[int]:
        """Return `number` new message ids for messages stored at `stored_ms`."""

    def stored_ms(self, shard: int, now_ms: int) -> int:
        """Return the time `now_ms` by the clock of a database."""

    def notify(self, ready: dict[QueueRef, int]) -> None:
        """Tell the other servers from which time on their waiting claims may find a message in these queues."""


class _LoggedEnqueue(NamedTuple):
    """A call with its position in the log, as the log stores it."""

    pending: PendingEnqueue
    number: int
    call: LoggedCall
    body: bytes


class GroupCommit:
    """The loop that commits waiting calls in groups. It runs on the driver's loop; the log's own calls run on a
    thread."""

    def __init__(
        self,
        wal: Wal,
        cache: Cache,
        buffer: Buffer,
        peers: Peers,
        thread: Executor,
        answer: Callable[[list[tuple[PendingEnqueue, Any]]], None],
        clock: Clock,
        *,
        needs_redis: bool,
        record_kept_ms: int | None = None,
    ) -> None:
        """Start without calls.

        `answer` is called with each call and its result: the enqueued messages, None if the call must go to the store
        directly, or the error to raise. With `record_kept_ms`, for a log that a job reads, the loop records that the
        last group was kept once no further call has come for that long.
        """
        self._wal = wal
        self._cache = cache
        self._buffer = buffer
        self._peers = peers
        self._thread = thread
        self._answer = answer
        self._needs_redis = needs_redis
        self._clock = clock
        self._record_kept_ms = record_kept_ms
        self._is_recorded = True
        self._pending: deque[PendingEnqueue] = deque()
        self._wanted = asyncio.Event()
        self._is_ending = False

    def add(self, call: PendingEnqueue) -> None:
        """Add a call to the next group. After `end` it goes to the store directly."""
        if self._is_ending:
            self._answer([(call, None)])
            return
        self._pending.append(call)
        self._wanted.set()

    async def run(self) -> None:
        """Commit groups until `end` was called and no call waits."""
        backoff = Backoff("commits", first_ms=_FIRST_PAUSE_MS)
        while not self._is_ending or self._pending:
            try:
                await self._wait_for_calls()
                self._wanted.clear()
                while self._pending:
                    await self.commit_once()
            except Exception as error:  # callers wait for this loop, so it goes on until `end`
                await sleep_for(self._clock, backoff.failed(error))
                self._wanted.set()
            else:
                backoff.succeeded()
        await self.record_kept()

    async def _wait_for_calls(self) -> None:
        """Wait until a call waits."""
        kept_ms = None if self._is_recorded else self._record_kept_ms
        if kept_ms is not None and not await wait_for_event(self._clock, self._wanted, kept_ms):
            await self.record_kept()
        await self._wanted.wait()

    async def record_kept(self) -> None:
        """Record in the log, for its readers, that the last group was kept. The next group would record it too, but
        there is none yet.

        Errors are logged, not raised: the next call reports a full disk or a failed log.
        """
        if self._record_kept_ms is None or self._is_recorded:
            return
        self._is_recorded = True
        try:
            await self._on_thread(lambda: self._wal.void([]))
        except StoreUnavailable as error:
            _log.debug("log_end_not_recorded error=%s", error.message, extra={"error": error.message})
        except Exception as error:  # an unexpected error; callers wait for this loop, so it goes on
            _log.warning("log_end_not_recorded error=%s", error, exc_info=True, extra={"error": str(error)})

    def end(self) -> None:
        """Take no more calls into the log, and end `run` once no call waits."""
        self._is_ending = True
        self._wanted.set()

    async def commit_once(self) -> int:
        """Commit one group, and return how many calls it had. Groups follow one after the other, so the buffer receives
        the calls in the order of their positions."""
        pending = self._take()
        try:
            await self._commit(pending)
        except HoldfastError as error:
            self._answer([(call, error) for call in pending])
        except Exception as error:
            failure = Internal(f"writing to the log failed: {error}")
            failure.__cause__ = error
            self._answer([(call, failure) for call in pending])
        return len(pending)

    def _take(self) -> list[PendingEnqueue]:
        """Remove and return the calls of the next group."""
        pending: list[PendingEnqueue] = []
        size = 0
        while self._pending and len(pending) < _CALLS and size < _BYTES:
            pending.append(self._pending.popleft())
            size += sum(draft.bytes for draft in pending[-1].drafts)
        return pending

    async def _commit(self, pending: list[PendingEnqueue]) -> None:
        await self._peers.confirm_node()
        calls = self._calls(pending)
        bodies = [encode_call(call) for call in calls]
        size = sum(map(record_size, bodies))
        if not self._wal.has_room(size):
            await self._on_thread(lambda: self._wal.make_room(size))
        logged = []
        for enqueue, call, body in zip(pending, calls, bodies, strict=True):
            [number] = self._wal.take_numbers(enqueue.shard, 1)
            logged.append(_LoggedEnqueue(enqueue, number, call, body))
        records = [(each.pending.shard, each.number, each.body) for each in logged]
        written = self._on_thread(lambda: self._wal.append(records))
        segment, pushed = await asyncio.gather(written, self._push(logged), return_exceptions=True)
        if isinstance(segment, BaseException):
            raise segment
        self._is_recorded = False
        is_refused = isinstance(pushed, BaseException) and self._needs_redis
        barred: set[QueueRef] = pushed if isinstance(pushed, set) else set()
        void = logged if is_refused else [each for each in logged if each.pending.ref in barred]
        if void:
            await self._on_thread(lambda: self._wal.void([(each.pending.shard, each.number) for each in void]))
            self._is_recorded = True
            # `append` counted them as waiting to land; voided calls never land.
            self._wal.landed([segment] * len(void))
            if is_refused:
                # Redis may have taken the calls although it did not answer, and another server would then land them.
                await self._buffer.mark_void([self._wal.position(each.pending.shard, each.number) for each in void])
        kept = [] if is_refused else [each for each in logged if each.pending.ref not in barred]
        self._buffer.add(
            [
                BufferedCall(self._wal.position(each.pending.shard, each.number), segment, each.call, len(each.body))
                for each in kept
            ]
        )
        ready: dict[QueueRef, int] = {}
        for each in kept:
            at_ms = min(message.visible_at for message in each.call.messages)
            ready[each.pending.ref] = min(at_ms, ready.get(each.pending.ref, at_ms))
        self._peers.notify(ready)
        answers: list[tuple[PendingEnqueue, Any]] = [(each.pending, _enqueued(each)) for each in kept]
        answers += [(each.pending, pushed if is_refused else None) for each in void]
        self._answer(answers)

    def _calls(self, pending: list[PendingEnqueue]) -> list[LoggedCall]:
        """Return the calls as the log stores them, with ids and the time of their database."""
        calls = []
        for ref, drafts, now_ms, shard, queue_id, default_ttl_ms, _ in pending:
            stored_ms = self._peers.stored_ms(shard, now_ms)
            ids = self._peers.take_ids(len(drafts), stored_ms)
            calls.append(log_call(ref, queue_id, drafts, ids, stored_ms, default_ttl_ms))
        return calls

    async def _push(self, logged: list[_LoggedEnqueue]) -> set[QueueRef]:
        """Put the calls into Redis. Return the queues whose calls Redis refused because the queue is being deleted."""
        held: defaultdict[QueueRef, list[Held]] = defaultdict(list)
        for each in logged:
            held[each.pending.ref].append((self._wal.position(each.pending.shard, each.number), each.body))
        try:
            return await self._cache.push(held)
        except HoldfastError:
            raise
        except Exception as error:
            # After any error, the records in the log must be kept or voided.
            raise StoreUnavailable(f"the call of Redis failed: {error}") from error

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _enqueued(logged: _LoggedEnqueue) -> list[Enqueued]:
    return [
        Enqueued(snowflake=message.id, given_correlation_id=message.correlation_id, duplicate=False)
        for message in logged.call.messages
    ]
