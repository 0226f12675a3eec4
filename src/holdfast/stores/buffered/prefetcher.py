"""What is next in busy queues is found ahead, and reserved in Redis for claims to come.

A reservation is no claim. It names messages as they were, in order, for a second; in the database nothing is changed or
locked by it. A claim pops as many as it asks for, and has them only if one statement finds each of them as it was, and
nothing before them but what was popped by others. Else the reservation is out of date: it is dropped, and the claim
goes by the index, as it does where nothing is reserved. So whatever happens to a message, to its queue or to Redis, a
claim finds what it would have found; at worst it asks twice. Claims of one server pop together (`rounds.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Protocol

from holdfast.background import Backoff
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.buffered.redis_cache import NOTHING, Cache, Popped
from holdfast.stores.buffered.redis_keys import reserved_of
from holdfast.stores.contract import Claims
from holdfast.stores.reserved_message import Reserved

# A queue from which two claims within this time got all they asked for is a busy one.
_BUSY_MS = 1_000
# Queues that are looked at, and remembered as busy, at once.
_AT_ONCE = 16
_REMEMBERED = 10_000

_NO_ENTRIES: frozenset[bytes] = frozenset()


class Reserver(Protocol):
    async def reserve(self, ref: QueueRef, number: int, behind: Reserved | None, now_ms: int) -> list[Reserved]: ...

    async def claim_reserved(
        self, ref: QueueRef, asks: list[ClaimRequest], mine: list[Reserved], others: list[Reserved], now_ms: int
    ) -> Claims | None: ...


class Prefetcher:
    """All of it runs on the driver's loop."""

    def __init__(self, cache: Cache, reserver: Reserver, clock: Clock, *, batch: int) -> None:
        self._cache = cache
        self._reserver = reserver
        self._clock = clock
        self._batch = batch
        # When each queue last gave a claim all it asked for.
        self._served_at: dict[QueueRef, int] = {}
        self._under_way: dict[QueueRef, asyncio.Task[None]] = {}
        # Claims of this server that go by the index at the moment: what they are about to take is not worth reserving.
        self._by_index: Counter[QueueRef] = Counter()
        self._none_by_index: dict[QueueRef, asyncio.Event] = {}
        # What was claimed here of what Redis remembers as handed out.
        self._claimed: dict[QueueRef, frozenset[bytes]] = {}
        self._is_ending = False
        self._backoff = Backoff("prefetch")
        # Claims that were served from what was reserved, and those that found it out of date.
        self.served = 0
        self.missed = 0

    @property
    def batch(self) -> int:
        return self._batch

    def wanted(self, asks: list[ClaimRequest]) -> int:
        """How many a claim is to pop; 0: it is none that could."""
        total = sum(ask.limit for ask in asks)
        return total if asks[0].ledger is None and total <= self._batch else 0

    async def pop(self, ref: QueueRef, wanted: list[int]) -> Popped:
        """For the first of these claims, by how many each wants: as many claims as there is enough reserved for. If
        Redis goes away meanwhile, nothing: then each server lands its own within its interval."""
        if not self._cache.is_up:
            return NOTHING
        try:
            return await self._cache.pop(ref, list(accumulate(wanted)), 2 * self._batch)
        except StoreUnavailable:
            return NOTHING

    async def has_reserved(self, ref: QueueRef) -> bool:
        """Once what is under way is done; False: nothing was."""
        under_way = self._under_way.get(ref)
        if under_way is None:
            return False
        await asyncio.wait([under_way])
        return True

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], popped: Popped, now_ms: int) -> Claims | None:
        """A claim of what was popped, which is as many as are asked for. None: what was reserved is out of date."""
        claimed = self._claimed.pop(ref, _NO_ENTRIES)
        # What this server has claimed of it is nobody's to wait for.
        others = [entry for entry in popped.others if entry not in claimed]
        if popped.left * 2 < self._batch:
            self._begin(ref, popped.last)
        claims = None
        try:
            claims = await self._reserver.claim_reserved(ref, asks, _reserved(popped.mine), _reserved(others), now_ms)
        finally:
            if claims is None:
                self.missed += 1
                await self._cache.drop(ref)
        if claims is not None:
            self.served += 1
            if len(self._claimed) >= _REMEMBERED:
                self._claimed.pop(next(iter(self._claimed)))
            self._claimed[ref] = claimed.intersection(popped.others).union(popped.mine)
        return claims

    def goes_by_index(self, ref: QueueRef) -> None:
        """A claim does, and `went_by_index` is to be called when it has."""
        self._by_index[ref] += 1

    def went_by_index(self, ref: QueueRef, *, is_full: bool) -> None:
        """Whether the claim got all it asked for."""
        self._by_index[ref] -= 1
        if not self._by_index[ref]:
            del self._by_index[ref]
            if ref in self._none_by_index:
                self._none_by_index[ref].set()
        if not is_full:
            return
        now_ms = self._clock.now_ms()
        is_busy = now_ms - self._served_at.pop(ref, now_ms - _BUSY_MS) < _BUSY_MS
        if len(self._served_at) >= _REMEMBERED:
            self._served_at.pop(next(iter(self._served_at)))
        self._served_at[ref] = now_ms
        if is_busy:
            self._begin(ref, b"")

    async def reserve_once(self, ref: QueueRef, behind: bytes = b"") -> int:
        """Behind the last that was reserved, or from the beginning; answers how many were. `StoreUnavailable`."""
        found = await self._reserver.reserve(ref, self._batch, reserved_of(behind), self._clock.now_ms())
        return await self._cache.reserve(ref, found, behind) if found else 0

    def _begin(self, ref: QueueRef, behind: bytes) -> None:
        is_idle = ref not in self._under_way and len(self._under_way) < _AT_ONCE
        if self._cache.is_up and is_idle and not self._is_ending:
            self._under_way[ref] = asyncio.get_running_loop().create_task(self._reserve(ref, behind))

    async def _reserve(self, ref: QueueRef, behind: bytes) -> None:
        try:
            if self._by_index[ref]:
                # Those that come meanwhile wait for this.
                self._none_by_index[ref] = asyncio.Event()
                await self._none_by_index[ref].wait()
                del self._none_by_index[ref]
            await self.reserve_once(ref, behind)
        except Exception as error:  # not tried again: claims go by the index until the next reservation
            self._backoff.failed(error, queue=ref)
        else:
            self._backoff.succeeded()
        finally:
            del self._under_way[ref]

    async def end(self) -> None:
        self._is_ending = True
        if self._under_way:
            await asyncio.wait(self._under_way.values())


def _reserved(entries: Iterable[bytes]) -> list[Reserved]:
    return [each for entry in entries if (each := reserved_of(entry)) is not None]
