"""The fast path as a whole: the log, Redis, the buffer, and their background loops."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from holdfast.background import sleep_for
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.buffered.buffer import Buffer, BufferedCall, Lander
from holdfast.stores.buffered.claim_rounds import ClaimRounds
from holdfast.stores.buffered.group_commit import GroupCommit, Peers, PendingEnqueue
from holdfast.stores.buffered.log.wal import SEGMENT_BYTES, Wal
from holdfast.stores.buffered.prefetcher import Prefetcher, Reserver
from holdfast.stores.buffered.redis_cache import Cache
from holdfast.stores.disk.free_space import LOW_DISK_BYTES
from holdfast.stores.formats.logged_enqueue import decode_call
from holdfast.stores.values import Claims

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_PAUSE_MS = 50
# In a log that a job reads: the time without a call after which the log records that the last group was kept.
_RECORD_KEPT_MS = 200
# The longest pause between two attempts to reopen a failed log.
_MOST_PAUSE_MS = 60_000


class FastPathOptions(NamedTuple):
    """The settings of the fast path."""

    redis_url: str
    wal_dir: str
    on_redis_down: Literal["fail", "direct"] = "fail"
    # Who lands buffered calls that no request needs first: this server, or a Spark job that reads its log.
    flusher: Literal["server", "spark"] = "server"
    # Buffered messages of a database that are landed without waiting for the interval.
    flush_batch: int = 50
    flush_interval_ms: int = 100
    # Maximum number of messages of a busy queue that are reserved ahead; 0 reserves none.
    prefetch_batch: int = 0
    # How long a closing store tries to land its buffered calls. The rest stays in the log.
    drain_ms: int = 10_000
    segment_bytes: int = SEGMENT_BYTES
    # With less free space than this on the log's disk, the log takes no new calls.
    low_disk_bytes: int = LOW_DISK_BYTES
    # Time until the first attempt to reopen a failed log; it doubles after each failure.
    reopen_after_ms: int = 5_000


class BufferTarget(Lander, Peers, Reserver, Protocol):
    """The store that is buffered for, beyond the contract. All methods but `call` run on its driver's loop."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the driver's loop and return its result."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call back on the driver's loop, soon."""

    def enter(self, callback: Callable[[], None]) -> None:
        """From the driver's loop: run a step of the runtime."""

    def shard_count(self) -> int:
        """Return the number of databases. Each has a part of the log of its own."""

    def shard_of(self, ref: QueueRef) -> int:
        """Return the number of the database that owns the queue."""

    def admit(self, ref: QueueRef, drafts: list[Draft]) -> tuple[int, int, int | None] | None:
        """Return (database number, queue id, default TTL) of a known queue that takes these messages without any check
        against stored messages; else None."""

    def is_known(self, ref: QueueRef) -> bool:
        """Return whether the queue was seen within the last few seconds."""

    async def refresh(self, ref: QueueRef) -> None:
        """Read the queue from the database and remember it, if it exists."""


class FastPath:
    """The log, Redis and the buffer of one server. It runs on the driver's loop; any thread may call `check` and
    `is_open` and read the buffer's figures."""

    def __init__(
        self,
        target: BufferTarget,
        options: FastPathOptions,
        clock: Clock,
        answer: Callable[[list[tuple[PendingEnqueue, Any]]], None],
    ) -> None:
        """`answer` is called with each call and its result, as `GroupCommit` says."""
        self._target = target
        self._options = options
        self._clock = clock
        self._answer = answer
        self._tasks: list[asyncio.Task[None]] = []
        # For a failed log: the time of the next attempt to reopen it, and the attempt in progress.
        self._recovers_at: int | None = None
        self._pause_ms = options.reopen_after_ms
        self._recovery: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the log, connect to Redis, land what an earlier run left in the log, and start the loops."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-log")
        options = self._options
        try:
            self._wal = await self._on_thread(lambda: Wal(options.wal_dir, segment_bytes=options.segment_bytes))
        except BaseException:
            self._thread.shutdown()
            raise
        self._cache = Cache(options.redis_url, self._clock)
        self.buffer = Buffer(
            self._target,
            self._cache,
            self._landed,
            self._clock,
            batch=options.flush_batch,
            interval_ms=options.flush_interval_ms,
        )
        self.prefetcher = Prefetcher(self._cache, self._target, self._clock, batch=options.prefetch_batch)
        self._rounds = ClaimRounds(self.prefetcher, self.buffer, self._target.shard_of)
        self._commits = GroupCommit(
            self._wal,
            self._cache,
            self.buffer,
            self._target,
            self._thread,
            self._answer,
            self._clock,
            needs_redis=options.on_redis_down == "fail",
            record_kept_ms=_RECORD_KEPT_MS if self.is_landed_by_others else None,
        )
        try:
            await self._cache.check_once()
            await self._replay()
        except BaseException:
            await self._release()
            raise
        shards = range(self._target.shard_count())
        land = self.buffer.run_landed_by_others if self.is_landed_by_others else self.buffer.run
        works = [self._commits.run(), self._cache.run(), *(land(shard) for shard in shards)]
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def _replay(self) -> None:
        """Land the calls that an earlier run left in the log, as far as their databases are up, before any new call."""
        self.buffer.note_opening(self._wal.epoch, self._target.shard_count())
        replayed = self._wal.replay()
        self.buffer.add(
            [
                BufferedCall(logged.position, logged.segment, decode_call(logged.body), len(logged.body))
                for logged in replayed
            ]
        )
        if replayed:
            _log.info("log_replayed calls=%d: the calls of an earlier run are landed first", len(replayed))
        await self.land_all()
        await self._trim()

    # --- Calls ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `StoreUnavailable` if Redis is down and writes may not go to the database directly."""
        if self._options.on_redis_down == "fail":
            self._cache.check()

    @property
    def is_landed_by_others(self) -> bool:
        """Return whether a job reads the log and lands its calls."""
        return self._options.flusher == "spark"

    @property
    def is_open(self) -> bool:
        """Return whether Redis and the log both work; otherwise every call goes to the store directly."""
        return self._cache.is_up and self._wal.failure is None

    def add(self, call: PendingEnqueue) -> None:
        """Add a call to the next group commit."""
        self._commits.add(call)

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims | None:
        """Land the buffered messages of the queue, and claim from the reserved ones. Return None if the claim must go
        by the index; if it could have been served from a reservation, `Prefetcher.went_by_index` must be called
        afterwards."""
        if not self.prefetcher.wanted(asks):
            await self.land_queue(ref)
            return None
        return await self._rounds.claim(ref, asks, now_ms)

    def recover(self, now_ms: int) -> None:
        """Try to reopen a log that has failed, if its pause is over. Every enqueue calls this while the log is down:
        nothing else needs the log."""
        if self._recovery is not None or self._wal.failure is None or not self._tasks:
            return
        if self._recovers_at is None:
            self._recovers_at = now_ms + self._pause_ms
        elif now_ms >= self._recovers_at:
            self._recovery = asyncio.get_running_loop().create_task(self._recover(now_ms))

    async def _recover(self, now_ms: int) -> None:
        try:
            await self._on_thread(self._wal.recover)
        except (StoreUnavailable, OSError) as error:
            _log.debug("log_not_reopened path=%s error=%s", self._wal.path, error)
            self._pause_ms = min(2 * self._pause_ms, max(_MOST_PAUSE_MS, self._options.reopen_after_ms))
            self._recovers_at = now_ms + self._pause_ms
        else:
            self._pause_ms, self._recovers_at = self._options.reopen_after_ms, None
        finally:
            self._recovery = None

    async def land_queue(self, ref: QueueRef) -> None:
        """Land all buffered messages of the queue, of this server and of others."""
        await self.buffer.land_queue(ref, self._target.shard_of(ref))

    async def land_queues(self, refs: list[QueueRef]) -> None:
        """Land all buffered messages of these queues."""
        for ref in refs:
            await self.land_queue(ref)

    async def land_all(self) -> None:
        """Land all that this server has buffered, as far as its databases are up."""
        try:
            await self.buffer.flush()
        except StoreUnavailable as error:
            _log.debug("calls_not_landed error=%s", error.message)

    async def block_queue(self, ref: QueueRef) -> None:
        """Stop every server from buffering messages for the queue. Without Redis, no server buffers any."""
        if self._cache.is_up:
            await self._cache.block_queue(ref)

    # --- The end ---------------------------------------------------------------------------------------------------

    async def close(self) -> int:
        """Land the buffered calls, for at most `drain_ms`. Return how many calls remain in the log for the next
        start."""
        ends_at = self._clock.now_ms() + self._options.drain_ms
        for part in (self._commits, self._cache, self.buffer):
            part.end()
        await asyncio.wait(self._tasks)
        self._tasks = []
        if self._recovery is not None:
            await self._recovery
        await self.prefetcher.end()
        while not self.buffer.is_empty() and self._clock.now_ms() < ends_at:
            try:
                await self.buffer.flush()
            except Exception as error:
                _log.debug("calls_not_landed error=%s", error)
                await sleep_for(self._clock, _PAUSE_MS)
        await self._trim()
        left = self._wal.waiting
        if left:
            _log.warning("log_not_empty calls=%d path=%s: the next start lands them", left, self._options.wal_dir)
        await self._release()
        return left

    async def _release(self) -> None:
        await self._on_thread(self._wal.close)
        await self._cache.close()
        self._thread.shutdown()

    # --- The log ---------------------------------------------------------------------------------------------------

    def _landed(self, segments: list[int]) -> None:
        """Count landed records, and remove segments that have landed whole."""
        self._wal.landed(segments)
        if self._wal.can_trim():
            self._thread.submit(self._trim_quietly)

    async def _trim(self) -> None:
        await self._on_thread(self._trim_quietly)

    def _trim_quietly(self) -> None:
        try:
            self._wal.trim()
        except OSError as error:  # removed by the next landing or the next opening
            _log.warning(
                "segment_not_removed path=%s error=%s: the next landing tries again",
                self._wal.path,
                error,
            )

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
