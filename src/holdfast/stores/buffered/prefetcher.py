"""The next messages of busy queues, found ahead and reserved in Redis for later claims.

A reservation is not a claim. It names messages as they were, in order, for one second; it changes and locks nothing in
the database. A claim pops as many entries as it asks for. It gets the messages only if one statement finds each of them
unchanged, with no claimable message before them except those that other claims have popped. Otherwise the reservation
is out of date: it is dropped, and the claim goes by the index, as it does without a reservation. So a claim always
finds the messages it would have found without Redis; at worst it asks twice. Claims of one server pop together
(`claim_rounds.py`).
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
from holdfast.stores.buffered.redis_keys import decode_reserved
from holdfast.stores.reserved_message import Reserved
from holdfast.stores.values import Claims

# A queue is busy if two claims within this time got all the messages they asked for.
_BUSY_MS = 1_000
# Maximum number of reservations in progress, and of queues whose last full claim is remembered.
_AT_ONCE = 16
_REMEMBERED = 10_000

_NO_ENTRIES: frozenset[bytes] = frozenset()


class Reserver(Protocol):
    """The store, as reservations use it."""

    async def reserve(self, ref: QueueRef, number: int, behind: Reserved | None, now_ms: int) -> list[Reserved]:
        """Return up to `number` claimable messages after `behind`, in the order of delivery."""

    async def claim_reserved(
        self, ref: QueueRef, asks: list[ClaimRequest], mine: list[Reserved], others: list[Reserved], now_ms: int
    ) -> Claims | None:
        """Claim the messages `mine` if they are unchanged and the next ones, apart from `others`; else return None and
        change nothing."""


class Prefetcher:
    """The reservations of one server. It runs on the driver's loop."""

    def __init__(self, cache: Cache, reserver: Reserver, clock: Clock, *, batch: int) -> None:
        self._cache = cache
        self._reserver = reserver
        self._clock = clock
        self._batch = batch
        # When each queue last gave a claim all the messages it asked for.
        self._served_at: dict[QueueRef, int] = {}
        self._under_way: dict[QueueRef, asyncio.Task[None]] = {}
        # Claims of this server that go by the index now. Messages that they are about to take are not worth reserving.
        self._by_index: Counter[QueueRef] = Counter()
        self._none_by_index: dict[QueueRef, asyncio.Event] = {}
        # The popped entries that this server has claimed already, out of those that Redis still remembers as popped.
        self._claimed: dict[QueueRef, frozenset[bytes]] = {}
        self._is_ending = False
        self._backoff = Backoff("prefetch")
        # Claims that were served from a reservation, and claims that found it out of date.
        self.served = 0
        self.missed = 0

    @property
    def batch(self) -> int:
        """The maximum number of messages in a reservation."""
        return self._batch

    def wanted(self, asks: list[ClaimRequest]) -> int:
        """Return how many reserved messages the claim would pop; 0 if it cannot be served from a reservation."""
        total = sum(ask.limit for ask in asks)
        return total if asks[0].ledger is None and total <= self._batch else 0

    async def pop(self, ref: QueueRef, wanted: list[int]) -> Popped:
        """Pop reserved messages for the first of these claims, by the number that each wants: for as many claims as the
        reservation has enough for. If Redis fails, pop nothing: each server then lands its own calls within its
        interval."""
        if not self._cache.is_up:
            return NOTHING
        try:
            return await self._cache.pop(ref, list(accumulate(wanted)), 2 * self._batch)
        except StoreUnavailable:
            return NOTHING

    async def has_reserved(self, ref: QueueRef) -> bool:
        """Wait for the reservation in progress. Return False if there is none."""
        under_way = self._under_way.get(ref)
        if under_way is None:
            return False
        await asyncio.wait([under_way])
        return True

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], popped: Popped, now_ms: int) -> Claims | None:
        """Claim the popped messages, exactly as many as are asked for. Return None if the reservation is out of
        date."""
        claimed = self._claimed.pop(ref, _NO_ENTRIES)
        # Messages that this server has claimed already are no longer ready, so the statement need not skip them.
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
        """Note that a claim goes by the index. `went_by_index` must be called when it has ended."""
        self._by_index[ref] += 1

    def went_by_index(self, ref: QueueRef, *, is_full: bool) -> None:
        """Note the end of a claim by the index. With `is_full` it got all messages it asked for; two such claims within
        a second make the queue busy, and a reservation begins."""
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
        """Reserve messages after the last reserved one, or from the beginning, and return how many. Raise
        `StoreUnavailable`."""
        found = await self._reserver.reserve(ref, self._batch, decode_reserved(behind), self._clock.now_ms())
        return await self._cache.reserve(ref, found, behind) if found else 0

    def _begin(self, ref: QueueRef, behind: bytes) -> None:
        is_idle = ref not in self._under_way and len(self._under_way) < _AT_ONCE
        if self._cache.is_up and is_idle and not self._is_ending:
            self._under_way[ref] = asyncio.get_running_loop().create_task(self._reserve(ref, behind))

    async def _reserve(self, ref: QueueRef, behind: bytes) -> None:
        try:
            if self._by_index[ref]:
                # Claims that arrive meanwhile wait for this reservation.
                self._none_by_index[ref] = asyncio.Event()
                await self._none_by_index[ref].wait()
                del self._none_by_index[ref]
            await self.reserve_once(ref, behind)
        except Exception as error:  # no retry: claims go by the index until the next reservation
            self._backoff.failed(error, **ref._asdict())
        else:
            self._backoff.succeeded()
        finally:
            del self._under_way[ref]

    async def end(self) -> None:
        """Begin no more reservations, and wait for those in progress."""
        self._is_ending = True
        if self._under_way:
            await asyncio.wait(self._under_way.values())


def _reserved(entries: Iterable[bytes]) -> list[Reserved]:
    return [each for entry in entries if (each := decode_reserved(entry)) is not None]
