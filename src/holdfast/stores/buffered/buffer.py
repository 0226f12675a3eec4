"""What this server has answered for and not stored yet, in memory, by lane; and how it lands.

The log has the same on disk. Redis has it too, for other servers; nothing here depends on that.
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
from holdfast.stores.buffered.log.wal import WalPosition
from holdfast.stores.buffered.redis_cache import Cache
from holdfast.stores.formats.logged_enqueue import LoggedCall, decode_call

_log = logging.getLogger("holdfast")

# In one transaction at most.
_MESSAGES = 5_000
_BYTES = 8 << 20
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 1_000
# Where others land what is here: how often it is asked for, and how long nothing may have landed until that is said.
_LOOK_MS, _PATIENCE_MS = 500, 60_000


class Lander(Protocol):
    async def landed(self, node: UUID, epoch: int, lane: int) -> list[range]:
        """Which places are stored, whoever stored them."""

    async def land(
        self, node: UUID, epoch: int, lane: int, calls: list[tuple[int, LoggedCall]], span: range | None, now_ms: int
    ) -> int: ...


class Waiting(NamedTuple):
    place: WalPosition
    segment: int
    call: LoggedCall
    size: int


@dataclass(slots=True)
class _Lane:
    waiting: deque[Waiting] = field(default_factory=deque)
    refs: Counter[QueueRef] = field(default_factory=Counter)
    messages: int = 0
    bytes: int = 0
    # Of each opening of the log: below it everything has landed.
    landed_below: dict[int, int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Something waits; and so much that it is not waited with.
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None


class Buffer:
    """All of it runs on the driver's loop."""

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
        self._lander = lander
        self._cache = cache
        # Told the segment of each record that has landed.
        self._landed = landed
        self._clock = clock
        self._batch = batch
        self._interval_ms = interval_ms
        self._lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
        self._ending = asyncio.Event()

    def add(self, waiting: list[Waiting]) -> None:
        """In the order of their places."""
        for each in waiting:
            lane = self._lanes[each.place.lane]
            lane.waiting.append(each)
            lane.refs[each.call.ref] += 1
            lane.messages += len(each.call.messages)
            lane.bytes += each.size
            if len(lane.waiting) == 1:
                lane.begun.set()
            if lane.messages >= self._batch:
                lane.full.set()

    def held_bytes(self) -> int:
        return sum(lane.bytes for lane in self._lanes.values())

    def is_stuck(self, lane: int) -> bool:
        """What is here does not land at the moment."""
        return self._lanes[lane].failure is not None

    def is_empty(self) -> bool:
        return not any(lane.waiting for lane in self._lanes.values())

    # --- Landing what is ours ------------------------------------------------------------------------------------

    async def run(self, lane: int) -> None:
        """Until `end`; a flush that is under way comes to its end."""
        state = self._lanes[lane]
        backoff = _backoff("flush", lane)
        while True:
            await state.begun.wait()
            # Whoever comes within the interval goes along, also if a claim lands all of it meanwhile.
            await wait_for_event(self._clock, state.full, self._interval_ms)
            if self._ending.is_set():
                return
            state.begun.clear()
            state.full.clear()
            try:
                while await self.flush_once(lane):
                    backoff.succeeded()
            except Exception as error:
                await wait_for_event(self._clock, self._ending, backoff.failed(error))
                state.begun.set()
                state.full.set()

    def end(self) -> None:
        self._ending.set()
        for state in self._lanes.values():
            state.begun.set()
            state.full.set()

    async def watch(self, lane: int) -> None:
        """Until `end`, instead of `run`, where others land what is here."""
        state = self._lanes[lane]
        moved_at = self._clock.now_ms()
        backoff = _backoff("landed_by_others", lane)
        pause_ms = _LOOK_MS
        while not self._ending.is_set():
            await wait_for_event(self._clock, self._ending, pause_ms)
            pause_ms = _LOOK_MS
            try:
                if await self.look_once(lane) or not state.waiting:
                    moved_at = self._clock.now_ms()
            except Exception as error:
                pause_ms = backoff.failed(error)
            else:
                backoff.succeeded()
            if self._clock.now_ms() - moved_at > _PATIENCE_MS:
                moved_at = self._clock.now_ms()
                _log.warning(
                    "nothing has landed for a minute, and %d messages wait: is `holdfast pipeline flush` running?",
                    state.messages,
                )

    async def flush_once(self, lane: int) -> int:
        """One transaction with what waits longest; answers how many calls have landed."""
        state = self._lanes[lane]
        async with state.turn:
            batch = _head(state.waiting)
            if not batch:
                return 0
            first, last = batch[0].place, batch[-1].place
            # All between was this opening's, and was here, or is not to be stored.
            span = range(min(state.landed_below.get(first.epoch, first.place), first.place), last.place + 1)
            calls = [(each.place.place, each.call) for each in batch]
            try:
                await self._lander.land(first.node, first.epoch, lane, calls, span, self._clock.now_ms())
            except Exception as error:
                state.failure = error
                raise
            state.failure = None
            self._take_out(state, batch)
        await self._tell_landed(batch)
        return len(batch)

    async def look_once(self, lane: int) -> int:
        """Find out what others have landed of what waits here longest; answers how many calls."""
        state = self._lanes[lane]
        async with state.turn:
            if not state.waiting:
                return 0
            first = state.waiting[0].place
            try:
                ranges = await self._lander.landed(first.node, first.epoch, lane)
            except Exception as error:
                state.failure = error
                raise
            state.failure = None
            batch = list(takewhile(lambda each: _is_among(each.place, first.epoch, ranges), state.waiting))
            if batch:
                self._take_out(state, batch)
        if batch:
            await self._tell_landed(batch)
        return len(batch)

    def _take_out(self, state: _Lane, batch: list[Waiting]) -> None:
        """The first of those that wait: they have landed."""
        state.landed_below[batch[-1].place.epoch] = batch[-1].place.place + 1
        for each in batch:
            state.waiting.popleft()
            state.refs[each.call.ref] -= 1
            if not state.refs[each.call.ref]:
                del state.refs[each.call.ref]
            state.messages -= len(each.call.messages)
            state.bytes -= each.size

    async def _tell_landed(self, batch: list[Waiting]) -> None:
        self._landed([each.segment for each in batch])
        gone: defaultdict[QueueRef, list[WalPosition]] = defaultdict(list)
        for each in batch:
            gone[each.call.ref].append(each.place)
        await self._cache.remove(gone)

    async def flush(self) -> None:
        """All that is here now. A database that is down keeps nothing from the others; then it raises."""
        failure: Exception | None = None
        for lane in list(self._lanes):
            try:
                await self._flush_lane(lane)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    async def _flush_lane(self, lane: int) -> None:
        state = self._lanes[lane]
        last = state.waiting[-1].place if state.waiting else None
        while last is not None and state.landed_below.get(last.epoch, -1) <= last.place:
            await self.flush_once(lane)

    async def forgo(self, places: list[WalPosition]) -> None:
        """These are of calls that are refused: nobody is to store them, wherever he finds them."""
        by_lane: defaultdict[int, list[WalPosition]] = defaultdict(list)
        for place in places:
            by_lane[place.lane].append(place)
        for lane, gone in by_lane.items():
            first, last = gone[0], gone[-1]  # of one group, all of it
            span = range(first.place, last.place + 1)
            try:
                await self._lander.land(first.node, first.epoch, lane, [], span, self._clock.now_ms())
            except StoreUnavailable as error:
                _log.warning(
                    "calls were refused because Redis did not answer; if it took them all the same, another server may "
                    "store them: %s",
                    error.message,
                )

    # --- Landing what is anybody's -------------------------------------------------------------------------------

    async def settle(self, ref: QueueRef, lane: int) -> None:
        """Land all that was answered for on this queue, here or by another server."""
        await self.settle_own(ref, lane)
        if self._cache.is_up:
            try:
                held = await self._cache.held(ref)
            except StoreUnavailable:
                return  # each server lands its own within its interval
            if held:
                await self.land_held(ref, held)

    async def settle_own(self, ref: QueueRef, lane: int) -> None:
        for number in {lane, *self._lanes}:  # its queue may have been on another database when it was logged
            if ref in self._lanes[number].refs:
                await self._flush_lane(number)

    async def land_held(self, ref: QueueRef, held: list[tuple[WalPosition, bytes]]) -> None:
        by_lane: defaultdict[tuple[UUID, int, int], list[tuple[int, LoggedCall]]] = defaultdict(list)
        done: list[WalPosition] = []
        for place, body in held:
            below = self._lanes[place.lane].landed_below.get(place.epoch) if place.lane in self._lanes else None
            if below is not None:  # ours: it lands from here, or has
                if place.place < below:
                    done.append(place)
                continue
            done.append(place)
            call = _call_of(body)
            if call is None or call.ref != ref or place.lane not in self._lanes:
                _log.error("what was found in the buffer of %s in Redis is not of that queue: it is removed", ref)
            else:
                by_lane[place.node, place.epoch, place.lane].append((place.place, call))
        for (node, epoch, logged_for), calls in by_lane.items():
            calls.sort(key=lambda each: each[0])
            await self._lander.land(node, epoch, logged_for, calls, None, self._clock.now_ms())
        if done:
            await self._cache.remove({ref: done})

    def own(self, epoch: int, lanes: int) -> None:
        """This server's own opening of the log: what others find of it in Redis it lands from here."""
        for lane in range(lanes):
            self._lanes[lane].landed_below[epoch] = 0


def _backoff(loop: str, lane: int) -> Backoff:
    return Backoff(loop, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS, lane=lane)


def _call_of(body: bytes) -> LoggedCall | None:
    """None: these are not the bytes of a call. Whoever wrote it has it in its log."""
    try:
        return decode_call(body)
    except msgspec.MsgspecError:
        return None


def _is_among(place: WalPosition, epoch: int, ranges: list[range]) -> bool:
    return place.epoch == epoch and any(place.place in each for each in ranges)


def _head(waiting: deque[Waiting]) -> list[Waiting]:
    """Of one opening of the log, as much as one transaction takes; one call at least."""
    batch: list[Waiting] = []
    messages = size = 0
    for each in islice(waiting, _MESSAGES):
        messages += len(each.call.messages)
        size += each.size
        if batch and (messages > _MESSAGES or size > _BYTES or each.place.epoch != batch[0].place.epoch):
            break
        batch.append(each)
    return batch
