"""Token buckets, which enforce rates with bursts (SPEC 8.7). Each function is given the time."""

import math
from typing import Literal, NamedTuple

from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.policy import Limits, QueuePolicy

Kind = Literal["read", "write"]

# A rate of 0 closes the bucket. No wait is long enough then, so the caller is told to retry after this one.
CLOSED_MS = 60_000

# A server that shares a bucket reserves at most the tokens that this time adds, beyond those it needs at once.
BLOCK_MS = 100
IDLE_MS = 60_000

# Tokens are floats. A shortage below this fraction of a bucket is a rounding error.
ROUNDING = 1e-9


class Charge(NamedTuple):
    """A number of tokens to take from the bucket of one limit. The owner is a tenant (its name) or a queue."""

    owner: str | QueueRef
    limit: str
    per_s: float
    capacity: float
    amount: int


class Shortage(NamedTuple):
    """A charge for which the bucket has enough tokens only after `wait_ms`."""

    charge: Charge
    wait_ms: int


class TokenBucket:
    """A bucket of tokens that fills at `per_s` up to `capacity`. Its level may be negative, which is a debt.

    A call that needs more than the capacity is admitted when the bucket is full; otherwise it never could be. It leaves
    a debt, so the rate holds on average all the same.
    """

    __slots__ = ("_at_ms", "_capacity", "_level", "_per_s")

    def __init__(self, per_s: float, capacity: float, now_ms: int) -> None:
        self._per_s = per_s
        self._capacity = capacity
        self._level = capacity
        self._at_ms = now_ms

    def shortage_ms(self, amount: int, now_ms: int) -> int:
        """Return the milliseconds until `amount` can be taken; 0 if it can be taken now."""
        self._fill(now_ms)
        missing = (min(amount, self._capacity) if self._capacity else amount) - self._level
        if missing <= self._rounding:
            return 0
        if not self._per_s:
            return CLOSED_MS
        return max(1, math.ceil(min((missing - self._rounding) / self._per_s * 1_000, MAX_MS)))

    def take(self, amount: int, now_ms: int) -> None:
        """Take `amount` tokens, even if that leaves a debt."""
        self._fill(now_ms)
        self._level -= amount

    def give_back(self, amount: int, now_ms: int) -> None:
        """Return `amount` tokens that were taken but not used."""
        self._fill(now_ms)
        self._level = min(self._capacity, self._level + amount)

    def change(self, per_s: float, capacity: float, now_ms: int) -> None:
        """Set another rate and capacity. The level stays, so that setting a limit anew does not fill the bucket."""
        if (per_s, capacity) == (self._per_s, self._capacity):
            return
        self._fill(now_ms)
        self._per_s, self._capacity = per_s, capacity
        self._level = min(self._level, capacity)

    def is_full(self, now_ms: int) -> bool:
        """Return whether the bucket is full, so that it could be replaced by a new one."""
        self._fill(now_ms)
        return self._level >= self._capacity - self._rounding

    @property
    def _rounding(self) -> float:
        return ROUNDING * max(1.0, self._capacity)

    def _fill(self, now_ms: int) -> None:
        # A clock that stepped back adds no tokens, neither then nor until it reaches the latest time again.
        if now_ms > self._at_ms:
            self._level = min(self._capacity, self._level + (now_ms - self._at_ms) * self._per_s / 1_000)
            self._at_ms = now_ms


class Allowance:
    """Tokens of a shared bucket that one server has reserved, so that it can admit calls without asking for each.

    A server that asks again within `BLOCK_MS` doubles its reserve each time, up to the tokens that the rate adds in
    `BLOCK_MS`. A server that asks more rarely reserves nothing. A busy server thus asks a few times in `BLOCK_MS`, and
    each server holds at most one such block beyond the bucket.
    """

    __slots__ = ("_asked_at", "_block", "per_s", "tokens")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.tokens = 0
        self._block = 0
        self._asked_at: int | None = None

    def drain(self, amount: int) -> int:
        """Take up to `amount` tokens, and return the part that they do not cover."""
        paid = min(amount, self.tokens)
        self.tokens -= paid
        return amount - paid

    def block(self, now_ms: int) -> int:
        """Return the number of tokens to reserve beyond those needed, when the shared bucket is asked at `now_ms`."""
        is_busy = self._asked_at is not None and now_ms - self._asked_at < BLOCK_MS
        most = int(self.per_s * BLOCK_MS / 1_000)
        self._block = min(most, max(1, 2 * self._block)) if is_busy else 0
        self._asked_at = now_ms
        return max(0, self._block - self.tokens)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether it was not used for a while. It then holds at most one block, which may be dropped."""
        return self._asked_at is None or now_ms - self._asked_at > IDLE_MS


def share_of(charge: Charge, servers: int) -> Charge:
    """Return the charge against one server's share of a bucket, when the servers cannot reach the shared one."""
    capacity = max(1.0, charge.capacity / servers) if charge.capacity else 0.0
    return charge._replace(per_s=charge.per_s / servers, capacity=capacity)


def capacity_of(per_s: float, burst_s: float) -> float:
    """Return the capacity of a bucket in tokens: at least one operation, unless the rate is 0."""
    return max(1.0, per_s * burst_s) if per_s else 0.0


def charges_of(limits: Limits, owner: str | QueueRef, kind: Kind, operations: int, size: int) -> list[Charge]:
    """Return the charges of a call with this number of operations and bytes, one for each limit that is set."""
    if kind == "write":
        ops_per_s, bytes_per_s = limits.write_ops_per_s, limits.write_bytes_per_s
    else:
        ops_per_s, bytes_per_s = limits.read_ops_per_s, limits.read_bytes_per_s
    charges = []
    if ops_per_s is not None:
        capacity = capacity_of(ops_per_s, limits.burst_s)
        charges.append(Charge(owner, f"{kind}_ops_per_s", ops_per_s, capacity, operations))
    if bytes_per_s is not None:
        capacity = capacity_of(bytes_per_s, limits.burst_s)
        charges.append(Charge(owner, f"{kind}_bytes_per_s", bytes_per_s, capacity, size))
    return charges


def has_rates(limits: Limits) -> bool:
    """Return whether any rate is limited."""
    return not (
        limits.write_ops_per_s is None
        and limits.write_bytes_per_s is None
        and limits.read_ops_per_s is None
        and limits.read_bytes_per_s is None
    )


def is_limited(policy: QueuePolicy) -> bool:
    """Return whether a queue with this policy has any limit that admission must check."""
    return policy.max_claims is not None or policy.max_enqueues is not None or has_rates(policy.limits)
