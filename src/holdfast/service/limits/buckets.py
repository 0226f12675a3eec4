"""Where the tokens of limits are kept: in this process, or by whatever else keeps the same promises."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.model.limits import Charge, Shortage, TokenBucket
from holdfast.model.names import QueueRef


class Buckets(Protocol):
    """Tokens of tenants and queues. `take` may have to ask somebody; the other two answer nothing, so they never wait:
    they are called where a caller that leaves would take messages along."""

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """All of them or none; the shortage that lasts longest, if any."""

    def owe(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Taken already: charged whatever there is, into debt if need be."""

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Taken, but not used after all."""


class MemoryBuckets:
    """A bucket for each limit in use. One that has filled up again is as good as none, and goes."""

    # Buckets that may be kept without looking for full ones.
    _SLACK = 1_024

    def __init__(self) -> None:
        self._buckets: dict[tuple[str | QueueRef, str], TokenBucket] = {}
        self._clear_above = self._SLACK

    def __len__(self) -> int:
        return len(self._buckets)

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        if len(self._buckets) >= self._clear_above:
            self._clear_full(
                now_ms
            )  # before any is looked up: a full one in hand would be lost with what it is charged
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
        for charge in charges:
            self._bucket(charge, now_ms).take(charge.amount, now_ms)

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
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
        # Those in use alone may exceed the slack: then let them double before looking again.
        self._clear_above = max(self._SLACK, 2 * len(self._buckets))
