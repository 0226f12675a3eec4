"""The calls of this server that were answered and not stored yet, in memory, one buffer for each database.

The log has the same calls on disk. Redis has them too, for other servers; nothing here depends on Redis.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from holdfast.background import Backoff, wait_for_event
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.replay import WalPosition
from holdfast.stores.buffered.redis_cache import Cache
from holdfast.stores.formats.logged_enqueue import LoggedCall, decode_call

_log = logging.getLogger("holdfast")

# Limits of one transaction.
_MESSAGES = 5_000
_BYTES = 8 << 20
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 1_000
# Where others land this server's calls: the interval between two looks, and the time without a landing until a warning
# is logged.
_LOOK_MS, _STALL_MS = 500, 60_000


class Lander(Protocol):
    """The store that lands logged calls."""

    async def landed(self, node: UUID, epoch: int, shard: int) -> list[range]:
        """Return the record numbers of one part of a log that are stored, by whichever server."""

    async def land(
        self, node: UUID, epoch: int, shard: int, calls: list[tuple[int, LoggedCall]], span: range | None, now_ms: int
    ) -> int:
        """Store logged calls in one transaction, as `landing.land.land` says. Return the number of stored messages."""


class BufferedCall(NamedTuple):
    """A call that waits to be landed, with its position and segment in the log and its size in bytes."""

    position: WalPosition
    segment: int
    call: LoggedCall
    size: int


@dataclass(slots=True)
class _ShardBuffer:
    """The waiting calls of one database."""

    waiting: deque[BufferedCall] = field(default_factory=deque)
    refs: Counter[QueueRef] = field(default_factory=Counter)
    messages: int = 0
    bytes: int = 0
    # By epoch of the log: all records below this number have landed.
    landed_below: dict[int, int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Set when a call waits, and when enough messages wait to land them without waiting for the interval.
    has_calls: asyncio.Event = field(default_factory=asyncio.Event)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None


class Buffer:
    """All calls of this server that wait to be landed. It runs on the driver's loop."""

    def __init__(
        self,
        lander: Lander,
        cache: Cache,
        landed: Callable[[list[int]], None],
        clock: Clock,
        *,
        batch: int,
        interval_ms: int,
    ) -> None:
        """`landed` is called with the segment of each record that has landed. A database's buffer is landed once it has
        `batch` messages or the oldest call has waited for `interval_ms`."""
        self._lander = lander
        self._cache = cache
        self._landed = landed
        self._clock = clock
        self._batch = batch
        self._interval_ms = interval_ms
        self._shards: defaultdict[int, _ShardBuffer] = defaultdict(_ShardBuffer)
        self._ending = asyncio.Event()

    def add(self, waiting: list[BufferedCall]) -> None:
        """Add calls, in the order of their positions."""
        for each in waiting:
            shard = self._shards[each.position.shard]
            shard.waiting.append(each)
            shard.refs[each.call.ref] += 1
            shard.messages += len(each.call.messages)
            shard.bytes += each.size
            if len(shard.waiting) == 1:
                shard.has_calls.set()
            if shard.messages >= self._batch:
                shard.full.set()

    def held_bytes(self) -> int:
        """Return the size of all waiting calls."""
        return sum(shard.bytes for shard in self._shards.values())

    def is_stuck(self, shard: int) -> bool:
        """Return whether the last attempt to land on this database failed."""
        return self._shards[shard].failure is not None

    def is_empty(self) -> bool:
        """Return whether no call waits."""
        return not any(shard.waiting for shard in self._shards.values())

    # --- Landing this server's calls ---------------------------------------------------------------------------------

    async def run(self, shard: int) -> None:
        """Land the calls of one database until `end`. A landing in progress completes."""
        state = self._shards[shard]
        backoff = _backoff("flush", shard)
        while True:
            await state.has_calls.wait()
            # Calls of the interval land together, even if a claim lands all of them meanwhile.
            await wait_for_event(self._clock, state.full, self._interval_ms)
            if self._ending.is_set():
                return
            state.has_calls.clear()
            state.full.clear()
            try:
                while await self.flush_once(shard):
                    backoff.succeeded()
            except Exception as error:
                await wait_for_event(self._clock, self._ending, backoff.failed(error))
                state.has_calls.set()
                state.full.set()

    def end(self) -> None:
        """End `run` and `watch`."""
        self._ending.set()
        for state in self._shards.values():
            state.has_calls.set()
            state.full.set()

    async def run_landed_by_others(self, shard: int) -> None:
        """Follow what others land of this server's calls, until `end`. It replaces `run` where a job lands the log."""
        state = self._shards[shard]
        moved_at = self._clock.now_ms()
        backoff = _backoff("landed_by_others", shard)
        pause_ms = _LOOK_MS
        while not self._ending.is_set():
            await wait_for_event(self._clock, self._ending, pause_ms)
            pause_ms = _LOOK_MS
            try:
                if await self.watch_once(shard) or not state.waiting:
                    moved_at = self._clock.now_ms()
            except Exception as error:
                pause_ms = backoff.failed(error)
            else:
                backoff.succeeded()
            if self._clock.now_ms() - moved_at > _STALL_MS:
                moved_at = self._clock.now_ms()
                _log.warning(
                    "flush_stalled messages=%d: nothing landed for a minute; is `holdfast pipeline flush` running?",
                    state.messages,
                )

    async def flush_once(self, shard: int) -> int:
        """Land the oldest waiting calls in one transaction, and return how many calls landed."""
        state = self._shards[shard]
        async with state.turn:
            batch = _head(state.waiting)
            if not batch:
                return 0
            first, last = batch[0].position, batch[-1].position
            # All records between were written by this opening of the log, and are in the batch or must not be stored.
            span = range(min(state.landed_below.get(first.epoch, first.number), first.number), last.number + 1)
            calls = [(each.position.number, each.call) for each in batch]
            try:
                await self._lander.land(first.node, first.epoch, shard, calls, span, self._clock.now_ms())
            except Exception as error:
                state.failure = error
                raise
            state.failure = None
            self._remove_landed(state, batch)
        await self._report_landed(batch)
        return len(batch)

    async def watch_once(self, shard: int) -> int:
        """Ask which of the oldest waiting calls others have landed, and return how many."""
        state = self._shards[shard]
        async with state.turn:
            if not state.waiting:
                return 0
            first = state.waiting[0].position
            try:
                ranges = await self._lander.landed(first.node, first.epoch, shard)
            except Exception as error:
                state.failure = error
                raise
            state.failure = None
            batch = list(takewhile(lambda each: _is_among(each.position, first.epoch, ranges), state.waiting))
            if batch:
                self._remove_landed(state, batch)
        if batch:
            await self._report_landed(batch)
        return len(batch)

    def _remove_landed(self, state: _ShardBuffer, batch: list[BufferedCall]) -> None:
        """Remove landed calls, which are the oldest of those that wait."""
        state.landed_below[batch[-1].position.epoch] = batch[-1].position.number + 1
        for each in batch:
            state.waiting.popleft()
            state.refs[each.call.ref] -= 1
            if not state.refs[each.call.ref]:
                del state.refs[each.call.ref]
            state.messages -= len(each.call.messages)
            state.bytes -= each.size

    async def _report_landed(self, batch: list[BufferedCall]) -> None:
        """Report landed calls to the log, and remove them from Redis."""
        self._landed([each.segment for each in batch])
        gone: defaultdict[QueueRef, list[WalPosition]] = defaultdict(list)
        for each in batch:
            gone[each.call.ref].append(each.position)
        await self._cache.remove(gone)

    async def flush(self) -> None:
        """Land all calls that wait now. Raise the last error after every database was tried."""
        failure: Exception | None = None
        for shard in list(self._shards):
            try:
                await self._flush_shard(shard)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    async def _flush_shard(self, shard: int) -> None:
        state = self._shards[shard]
        last = state.waiting[-1].position if state.waiting else None
        while last is not None and state.landed_below.get(last.epoch, -1) <= last.number:
            await self.flush_once(shard)

    async def mark_void(self, positions: list[WalPosition]) -> None:
        """Mark the records of refused calls as landed, so that no server stores a copy it may find in Redis."""
        by_shard: defaultdict[int, list[WalPosition]] = defaultdict(list)
        for position in positions:
            by_shard[position.shard].append(position)
        for shard, gone in by_shard.items():
            first, last = gone[0], gone[-1]  # all of one group commit
            span = range(first.number, last.number + 1)
            try:
                await self._lander.land(first.node, first.epoch, shard, [], span, self._clock.now_ms())
            except StoreUnavailable as error:
                _log.warning(
                    "void_not_recorded error=%s: if Redis has taken the refused calls, another server may store them",
                    error.message,
                )

    # --- Landing a queue's calls -------------------------------------------------------------------------------

    async def land_queue(self, ref: QueueRef, shard: int) -> None:
        """Land all buffered calls of this queue, of this server and of others."""
        await self.land_own(ref, shard)
        if self._cache.is_up:
            try:
                held = await self._cache.held(ref)
            except StoreUnavailable:
                return  # each server lands its own calls within its interval
            if held:
                await self.land_held(ref, held)

    async def land_own(self, ref: QueueRef, shard: int) -> None:
        """Land this server's buffered calls of the queue."""
        for number in {shard, *self._shards}:  # the queue may have been on another database when the call was logged
            if ref in self._shards[number].refs:
                await self._flush_shard(number)

    async def land_held(self, ref: QueueRef, held: list[tuple[WalPosition, bytes]]) -> None:
        """Land calls of a queue that were found in Redis."""
        by_shard: defaultdict[tuple[UUID, int, int], list[tuple[int, LoggedCall]]] = defaultdict(list)
        done: list[WalPosition] = []
        for position, body in held:
            below = (
                self._shards[position.shard].landed_below.get(position.epoch)
                if position.shard in self._shards
                else None
            )
            if below is not None:  # logged by this server, which lands it or has landed it
                if position.number < below:
                    done.append(position)
                continue
            done.append(position)
            call = _decode_or_none(body)
            if call is None or call.ref != ref or position.shard not in self._shards:
                _log.error(
                    "buffered_call_removed queue=%s: it belongs to another queue, or is unreadable",
                    ref,
                    extra=ref._asdict(),
                )
            else:
                by_shard[position.node, position.epoch, position.shard].append((position.number, call))
        for (node, epoch, logged_for), calls in by_shard.items():
            calls.sort(key=lambda each: each[0])
            await self._lander.land(node, epoch, logged_for, calls, None, self._clock.now_ms())
        if done:
            await self._cache.remove({ref: done})

    def note_opening(self, epoch: int, shards: int) -> None:
        """Note this opening of the log: calls of it that are found in Redis are landed from here."""
        for shard in range(shards):
            self._shards[shard].landed_below[epoch] = 0


def _backoff(loop: str, shard: int) -> Backoff:
    return Backoff(loop, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS, shard=shard)


def _decode_or_none(body: bytes) -> LoggedCall | None:
    """Return the call, or None if these bytes are not a call. The server that wrote them has the call in its log."""
    try:
        return decode_call(body)
    except msgspec.MsgspecError:
        return None


def _is_among(position: WalPosition, epoch: int, ranges: list[range]) -> bool:
    return position.epoch == epoch and any(position.number in each for each in ranges)


def _head(waiting: deque[BufferedCall]) -> list[BufferedCall]:
    """Return the oldest calls that one transaction takes, all of one opening of the log; at least one."""
    batch: list[BufferedCall] = []
    messages = size = 0
    for each in islice(waiting, _MESSAGES):
        messages += len(each.call.messages)
        size += each.size
        if batch and (messages > _MESSAGES or size > _BYTES or each.position.epoch != batch[0].position.epoch):
            break
        batch.append(each)
    return batch
