"""The fast path's parts, put together: the log, Redis, what is buffered, and what runs in the background."""

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
from holdfast.stores.buffered.buffer import Buffer, Lander, Waiting
from holdfast.stores.buffered.claim_rounds import ClaimRounds
from holdfast.stores.buffered.group_commit import GroupCommit, Offer, Peers
from holdfast.stores.buffered.log.wal import SEGMENT_BYTES, Wal
from holdfast.stores.buffered.prefetcher import Prefetcher, Reserver
from holdfast.stores.buffered.redis_cache import Cache
from holdfast.stores.contract import Claims
from holdfast.stores.disk.free_space import LOW_DISK_BYTES
from holdfast.stores.formats.logged_enqueue import decode_call

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_PAUSE_MS = 50
# A log that a job reads: so long after its last call it tells that this was kept.
_KEPT_MS = 200
# The longest pause between two tries to go on with a log that has failed.
_MOST_PAUSE_MS = 60_000


class FastPathOptions(NamedTuple):
    """How it was set up."""

    redis_url: str
    wal_dir: str
    on_redis_down: Literal["fail", "direct"] = "fail"
    # Who stores what waits, unless somebody asks for it: this server, or a job that reads its log.
    flusher: Literal["server", "spark"] = "server"
    # So many messages are not waited with.
    flush_batch: int = 50
    flush_interval_ms: int = 100
    # So many messages of a busy queue are reserved ahead at most; 0: none.
    prefetch_batch: int = 0
    # How long a closing store tries to land what it has; the rest is left to the log.
    drain_ms: int = 10_000
    segment_bytes: int = SEGMENT_BYTES
    # With less than this free on the log's disk, nothing new goes into the log.
    low_disk_bytes: int = LOW_DISK_BYTES
    # Time until a log that has failed is first tried again; doubles.
    reopen_after_ms: int = 5_000


class BufferTarget(Lander, Peers, Reserver, Protocol):
    """The store that is buffered for, beyond the contract. All but `call` on its driver's loop."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T: ...

    def post(self, callback: Callable[[], None]) -> None:
        """On the driver's loop, soon."""

    def enter(self, callback: Callable[[], None]) -> None:
        """From there: a step of the runtime."""

    def lanes(self) -> int: ...

    def lane_of(self, ref: QueueRef) -> int: ...

    def admit(self, ref: QueueRef, drafts: list[Draft]) -> tuple[int, int, int | None] | None:
        """(lane, queue_id, default TTL) of a queue that is known, and takes them without more ado."""

    def is_known(self, ref: QueueRef) -> bool:
        """What is known of it is no older than a few seconds."""

    async def ask(self, ref: QueueRef) -> None:
        """What there is to know of it, if it exists."""


class FastPath:
    """On the driver's loop, but for `check`, `is_open` and the buffer's figures, which any thread may read."""

    def __init__(
        self,
        ground: BufferTarget,
        terms: FastPathOptions,
        clock: Clock,
        answer: Callable[[list[tuple[Offer, Any]]], None],
    ) -> None:
        self._ground = ground
        self._terms = terms
        self._clock = clock
        self._answer = answer
        self._tasks: list[asyncio.Task[None]] = []
        # For a log that has failed: when the next attempt is due, and the attempt under way.
        self._recovers_at: int | None = None
        self._pause_ms = terms.reopen_after_ms
        self._recovery: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-log")
        terms = self._terms
        try:
            self._wal = await self._on_thread(lambda: Wal(terms.wal_dir, segment_bytes=terms.segment_bytes))
        except BaseException:
            self._thread.shutdown()
            raise
        self._cache = Cache(terms.redis_url, self._clock)
        self.buffer = Buffer(
            self._ground,
            self._cache,
            self._landed,
            self._clock,
            batch=terms.flush_batch,
            interval_ms=terms.flush_interval_ms,
        )
        self.prefetcher = Prefetcher(self._cache, self._ground, self._clock, batch=terms.prefetch_batch)
        self._rounds = ClaimRounds(self.prefetcher, self.buffer, self._ground.lane_of)
        self._commits = GroupCommit(
            self._wal,
            self._cache,
            self.buffer,
            self._ground,
            self._thread,
            self._answer,
            self._clock,
            needs_redis=terms.on_redis_down == "fail",
            tells_kept_ms=_KEPT_MS if self.is_landed_by_others else None,
        )
        try:
            await self._cache.look()
            await self._replay()
        except BaseException:
            await self._let_go()
            raise
        lanes = range(self._ground.lanes())
        land = self.buffer.watch if self.is_landed_by_others else self.buffer.run
        works = [self._commits.run(), self._cache.watch(), *(land(lane) for lane in lanes)]
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def _replay(self) -> None:
        """What an earlier run left: landed before anything else is done, as far as its databases are up."""
        self.buffer.own(self._wal.epoch, self._ground.lanes())
        replayed = self._wal.replay()
        self.buffer.add(
            [Waiting(logged.place, logged.segment, decode_call(logged.body), len(logged.body)) for logged in replayed]
        )
        if replayed:
            _log.info("%d calls of an earlier run are in the log", len(replayed))
        await self.settle_all()
        await self._trim()

    # --- Calls ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to write while Redis is away, if that is what was asked for."""
        if self._terms.on_redis_down == "fail":
            self._cache.check()

    @property
    def is_landed_by_others(self) -> bool:
        return self._terms.flusher == "spark"

    @property
    def is_open(self) -> bool:
        """Else everything goes to the store directly."""
        return self._cache.is_up and self._wal.failure is None

    def offer(self, offer: Offer) -> None:
        self._commits.add(offer)

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims | None:
        """Land what was answered for on the queue, and claim from what is reserved. None: the claim goes by the index,
        and if it could have popped, the prefetcher is to hear how it went."""
        if not self.prefetcher.wanted(asks):
            await self.settle(ref)
            return None
        return await self._rounds.claim(ref, asks, now_ms)

    def recover(self, now_ms: int) -> None:
        """Try to go on with a log that has failed, if the pause is over. Called with every enqueue meanwhile: nobody
        else needs the log."""
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
            _log.debug("the log in %s still fails: %s", self._wal.path, error)
            self._pause_ms = min(2 * self._pause_ms, max(_MOST_PAUSE_MS, self._terms.reopen_after_ms))
            self._recovers_at = now_ms + self._pause_ms
        else:
            self._pause_ms, self._recovers_at = self._terms.reopen_after_ms, None
        finally:
            self._recovery = None

    async def settle(self, ref: QueueRef) -> None:
        await self.buffer.settle(ref, self._ground.lane_of(ref))

    async def settle_many(self, refs: list[QueueRef]) -> None:
        for ref in refs:
            await self.settle(ref)

    async def settle_all(self) -> None:
        """A database that is down keeps nobody from the others."""
        try:
            await self.buffer.flush()
        except StoreUnavailable as error:
            _log.debug("not all that is buffered has landed: %s", error.message)

    async def bar(self, ref: QueueRef) -> None:
        """No server is to take messages for it any more. Without Redis none does."""
        if self._cache.is_up:
            await self._cache.bar(ref)

    # --- The end ---------------------------------------------------------------------------------------------------

    async def close(self) -> int:
        """Land what there is, for a bounded time; the log has the rest: so many calls."""
        ends_at = self._clock.now_ms() + self._terms.drain_ms
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
                _log.debug("not all that is buffered has landed: %s", error)
                await sleep_for(self._clock, _PAUSE_MS)
        await self._trim()
        left = self._wal.waiting
        if left:
            _log.warning("%d calls are left to the log in %s: the next start lands them", left, self._terms.wal_dir)
        await self._let_go()
        return left

    async def _let_go(self) -> None:
        await self._on_thread(self._wal.close)
        await self._cache.close()
        self._thread.shutdown()

    # --- The log ---------------------------------------------------------------------------------------------------

    def _landed(self, segments: list[int]) -> None:
        self._wal.landed(segments)
        if self._wal.can_trim():
            self._thread.submit(self._trim_quietly)

    async def _trim(self) -> None:
        await self._on_thread(self._trim_quietly)

    def _trim_quietly(self) -> None:
        try:
            self._wal.trim()
        except OSError as error:  # it is tried again with what lands next, and by the next opening
            _log.warning("a segment of the log in %s could not be removed: %s", self._wal.path, error)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
