"""The token buckets of all limits: their interface, and the implementation in memory."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.model.limits import Charge, Shortage, TokenBucket
from holdfast.model.names import QueueRef


class Buckets(Protocol):
    """The tokens of tenants and queues.

    Only `take` may wait, for example for Redis. The other methods must not: they run after messages were claimed, and a
    caller that was cancelled there would strand the messages.
    """

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Take the tokens of all charges, or of none. Return the longest shortage, or None if they were taken."""

    def owe(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Take the tokens of all charges, even if that leaves debts. The caller has used them already."""

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Return tokens that were taken but not used."""


class MemoryBuckets:
    """The buckets of one process, one for each limit in use. Full buckets are removed, as they equal new ones."""

    # The number of buckets up to which full ones are not removed.
    _SLACK = 1_024

    def __init__(self) -> None:
        self._buckets: dict[tuple[str | QueueRef, str], TokenBucket] = {}
        self._clear_above = self._SLACK

    def __len__(self) -> int:
        return len(self._buckets)

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Take the tokens of all charges, or of none. It never waits."""
        if len(self._buckets) >= self._clear_above:
            # Before any look-up: a bucket that is removed after its look-up would lose the tokens that are taken.
            self._clear_full(now_ms)
        longest: Shortage | None = None
        buckets = [self._bucket(charge, now_ms) for charge in charges]
        for charge, bucket in zip(charges, buckets, strict=True):
            wait_ms = bucket.shortage_ms(charge.amount, now_ms)
            if wait_ms and (longest is None or wait_ms > longest.wait_ms):
                longest = Shortage(charge, wait_ms)
        if longest is None:
            for charge, bucket in zip(charges, buckets, strict=True):
                bucket.take(charge.amount, now_ms)
        return longest

    def owe(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Take the tokens of all charges, even if that leaves debts."""
        for charge in charges:
            self._bucket(charge, now_ms).take(charge.amount, now_ms)

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Return tokens that were taken but not used."""
        for charge in charges:
            self._bucket(charge, now_ms).give_back(charge.amount, now_ms)

    def _bucket(self, charge: Charge, now_ms: int) -> TokenBucket:
        key = charge.owner, charge.limit
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.change(charge.per_s, charge.capacity, now_ms)
            return bucket
        bucket = self._buckets[key] = TokenBucket(charge.per_s, charge.capacity, now_ms)
        return bucket

    def _clear_full(self, now_ms: int) -> None:
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_ms)}
        # If the remaining buckets exceed the slack, let their number double before the next pass.
        self._clear_above = max(self._SLACK, 2 * len(self._buckets))
