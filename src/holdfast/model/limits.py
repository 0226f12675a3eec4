"""Token buckets: rates with bursts, as arithmetic over a given now (SPEC 8.7)."""

import math
from typing import Literal, NamedTuple

from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.policy import Limits, QueuePolicy

Kind = Literal["read", "write"]

# A rate of 0 closes the bucket. No wait would be long enough, so the caller is asked to look again after this one.
CLOSED_MS = 60_000

# A server that shares a bucket takes at most what comes in within this time beyond what it needs.
BLOCK_MS = 100
IDLE_MS = 60_000

# Tokens are floats: what is short by less than this part of a bucket is rounding, not a shortage.
ROUNDING = 1e-9


class Charge(NamedTuple):
    """So many tokens of one limit of a tenant (its name) or of a queue."""

    whose: str | QueueRef
    limit: str
    per_s: float
    capacity: float
    amount: int


class Shortage(NamedTuple):
    """A charge that cannot be paid before `wait_ms` have passed."""

    charge: Charge
    wait_ms: int


class TokenBucket:
    """Fills at `per_s` up to `capacity`. Whoever takes more than there is leaves a debt, which is filled up first.

    A call larger than the capacity is let in when the bucket is full: else it never would be, and by the debt it leaves
    the rate is kept all the same.
    """

    __slots__ = ("_at_ms", "_capacity", "_level", "_per_s")

    def __init__(self, per_s: float, capacity: float, now_ms: int) -> None:
        self._per_s = per_s
        self._capacity = capacity
        self._level = capacity
        self._at_ms = now_ms

    def shortage_ms(self, amount: int, now_ms: int) -> int:
        """How long until `amount` can be taken; 0: now."""
        self._fill(now_ms)
        missing = (min(amount, self._capacity) if self._capacity else amount) - self._level
        if missing <= self._rounding:
            return 0
        if not self._per_s:
            return CLOSED_MS
        return max(1, math.ceil(min((missing - self._rounding) / self._per_s * 1_000, MAX_MS)))

    def take(self, amount: int, now_ms: int) -> None:
        """Whether or not there is enough."""
        self._fill(now_ms)
        self._level -= amount

    def give_back(self, amount: int, now_ms: int) -> None:
        self._fill(now_ms)
        self._level = min(self._capacity, self._level + amount)

    def change(self, per_s: float, capacity: float, now_ms: int) -> None:
        """Another rate from now on. What was used stays used: setting a limit again is no way to fill it."""
        if (per_s, capacity) == (self._per_s, self._capacity):
            return
        self._fill(now_ms)
        self._per_s, self._capacity = per_s, capacity
        self._level = min(self._level, capacity)

    def is_full(self, now_ms: int) -> bool:
        """As good as a new one."""
        self._fill(now_ms)
        return self._level >= self._capacity - self._rounding

    @property
    def _rounding(self) -> float:
        return ROUNDING * max(1.0, self._capacity)

    def _fill(self, now_ms: int) -> None:
        # A clock that stepped back fills nothing, and what it counts a second time fills nothing either.
        if now_ms > self._at_ms:
            self._level = min(self._capacity, self._level + (now_ms - self._at_ms) * self._per_s / 1_000)
            self._at_ms = now_ms


class Allowance:
    """What one server has taken of a bucket that it shares, and has not used: it admits by that without asking.

    A server that has to ask again within `BLOCK_MS` takes more each time, twice as much and up to what the rate gives
    in that time; one that asks now and then takes what it needs. So a busy server asks a few times in `BLOCK_MS`, and
    all that the servers hold beyond the bucket is at most such a block each.
    """

    __slots__ = ("_asked_at", "_block", "per_s", "tokens")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.tokens = 0
        self._block = 0
        self._asked_at: int | None = None

    def drain(self, amount: int) -> int:
        """Pay of it what it covers; the rest."""
        paid = min(amount, self.tokens)
        self.tokens -= paid
        return amount - paid

    def block(self, now_ms: int) -> int:
        """How much to take beyond what is needed, now that the bucket is asked."""
        is_busy = self._asked_at is not None and now_ms - self._asked_at < BLOCK_MS
        most = int(self.per_s * BLOCK_MS / 1_000)
        self._block = min(most, max(1, 2 * self._block)) if is_busy else 0
        self._asked_at = now_ms
        return max(0, self._block - self.tokens)

    def is_idle(self, now_ms: int) -> bool:
        """Nobody has asked for a while: what it holds is a block at most, and may be forgotten."""
        return self._asked_at is None or now_ms - self._asked_at > IDLE_MS


def share_of(charge: Charge, servers: int) -> Charge:
    """The charge as one of so many servers takes it that cannot ask the others."""
    capacity = max(1.0, charge.capacity / servers) if charge.capacity else 0.0
    return charge._replace(per_s=charge.per_s / servers, capacity=capacity)


def capacity_of(per_s: float, burst_s: float) -> float:
    """What may be taken at once: at least one operation, unless the limit is 0."""
    return max(1.0, per_s * burst_s) if per_s else 0.0


def charges_of(limits: Limits, whose: str | QueueRef, kind: Kind, operations: int, size: int) -> list[Charge]:
    """What a call of so many operations and bytes costs under these limits."""
    if kind == "write":
        ops_per_s, bytes_per_s = limits.write_ops_per_s, limits.write_bytes_per_s
    else:
        ops_per_s, bytes_per_s = limits.read_ops_per_s, limits.read_bytes_per_s
    charges = []
    if ops_per_s is not None:
        capacity = capacity_of(ops_per_s, limits.burst_s)
        charges.append(Charge(whose, f"{kind}_ops_per_s", ops_per_s, capacity, operations))
    if bytes_per_s is not None:
        capacity = capacity_of(bytes_per_s, limits.burst_s)
        charges.append(Charge(whose, f"{kind}_bytes_per_s", bytes_per_s, capacity, size))
    return charges


def has_rates(limits: Limits) -> bool:
    return not (
        limits.write_ops_per_s is None
        and limits.write_bytes_per_s is None
        and limits.read_ops_per_s is None
        and limits.read_bytes_per_s is None
    )


def is_limited(policy: QueuePolicy) -> bool:
    """Whether admission has anything to look at on such a queue."""
    return policy.max_claims is not None or policy.max_enqueues is not None or has_rates(policy.limits)
