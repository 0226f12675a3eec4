"""The rates of tenants in a divided store (SPEC 8.7): the first process has the buckets, and all take from them.

A busy process reserves a block of tokens at a time (`model.limits.Allowance`), so that most calls need no other one. In
any period the processes together admit at most the limit and one block each. The limits of a queue concern one
process, which has their buckets itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.limits import Allowance, Charge, Shortage, TokenBucket
from holdfast.server.processes.link import StoreLink
from holdfast.server.processes.reports import NO_CALLER
from holdfast.service.access import ANYONE
from holdfast.service.limits.buckets import MemoryBuckets
from holdfast.wire.framed.links import SharedTokens, TakeTokensCall, read_shared_tokens, write_link_call

Take = Callable[[TakeTokensCall], Awaitable[SharedTokens]]

_MAX_KEPT = 10_000


class TokenServer:
    """The buckets of tenants, in the first process."""

    def __init__(self, clock: Clock) -> None:
        self._now_ms = clock.now_ms
        self._buckets: dict[tuple[object, str], TokenBucket] = {}

    def take(self, given: TakeTokensCall) -> SharedTokens:
        """Take the tokens that are asked for, all of them or none, and reserve as many as there are."""
        now_ms = self._now_ms()
        if len(self._buckets) > _MAX_KEPT:
            self._buckets = {key: each for key, each in self._buckets.items() if not each.is_full(now_ms)}
        for charge in given.adjusted:
            bucket = self._bucket(charge, now_ms)
            if charge.amount >= 0:
                bucket.take(charge.amount, now_ms)
            else:
                bucket.give_back(-charge.amount, now_ms)
        waits = [self._bucket(charge, now_ms).shortage_ms(charge.amount, now_ms) for charge in given.asked]
        wait_ms = max(waits, default=0)
        if wait_ms:
            return SharedTokens(wait_ms, waits.index(wait_ms), [0] * len(given.reserved))
        for charge in given.asked:
            self._bucket(charge, now_ms).take(charge.amount, now_ms)
        return SharedTokens(0, 0, [self._reserve(charge, now_ms) for charge in given.reserved])

    def _reserve(self, charge: Charge, now_ms: int) -> int:
        bucket = self._bucket(charge, now_ms)
        if charge.amount > charge.capacity or bucket.shortage_ms(charge.amount, now_ms):
            return 0
        bucket.take(charge.amount, now_ms)
        return charge.amount

    def _bucket(self, charge: Charge, now_ms: int) -> TokenBucket:
        key = charge.owner, charge.limit
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(charge.per_s, charge.capacity, now_ms)
        bucket.change(charge.per_s, charge.capacity, now_ms)
        return bucket


class DividedBuckets:
    """The `Buckets` of one process: those of its queues, and reserves from those of tenants."""

    def __init__(self, take: Take, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`take` asks the first process."""
        self._take = take
        self._spawn = spawn
        self._own = MemoryBuckets()
        self._allowances: dict[tuple[object, str], Allowance] = {}
        # Tokens that were taken into debt, or given back if negative, and that the next request brings.
        self._adjusted: list[Charge] = []
        self._is_adjusting = False

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Take the tokens of all charges, or of none; see `Buckets.take`."""
        own = [charge for charge in charges if not isinstance(charge.owner, str)]
        shared = [charge for charge in charges if isinstance(charge.owner, str)]
        shortage = await self._own.take(own, now_ms) if own else None
        if shortage is None and shared:
            shortage = await self._take_shared(shared, now_ms)
            if shortage is not None:
                self._own.give_back(own, now_ms)
        return shortage

    async def _take_shared(self, charges: list[Charge], now_ms: int) -> Shortage | None:
        allowances = [self._allowance(charge, now_ms) for charge in charges]
        if all(charge.amount <= each.tokens for charge, each in zip(charges, allowances, strict=True)):
            for charge, allowance in zip(charges, allowances, strict=True):
                allowance.tokens -= charge.amount
            return None
        reserved = [
            charge._replace(amount=amount)
            for charge, allowance in zip(charges, allowances, strict=True)
            if (amount := allowance.block(now_ms))
        ]
        adjusted, self._adjusted = self._adjusted, []
        try:
            taken = await self._take(TakeTokensCall(None, None, None, adjusted, charges, reserved))
        except StoreUnavailable:
            self._adjusted = adjusted + self._adjusted
            raise
        for charge, tokens in zip(reserved, taken.reserved, strict=True):
            self._allowance(charge, now_ms).tokens += tokens
        return Shortage(charges[taken.short], taken.wait_ms) if taken.wait_ms else None

    def owe(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Take tokens into debt, first from the reserve of this process."""
        for charge in charges:
            if not isinstance(charge.owner, str):
                self._own.owe([charge], now_ms)
            elif owed := self._allowance(charge, now_ms).drain(charge.amount):
                self._adjust(charge._replace(amount=owed))

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Return tokens that were taken but not used."""
        for charge in charges:
            if isinstance(charge.owner, str):
                self._adjust(charge._replace(amount=-charge.amount))
            else:
                self._own.give_back([charge], now_ms)

    def _adjust(self, charge: Charge) -> None:
        self._adjusted.append(charge)
        if not self._is_adjusting:
            self._is_adjusting = True
            self._spawn(self._send_adjusted())

    async def _send_adjusted(self) -> None:
        try:
            while self._adjusted:
                adjusted, self._adjusted = self._adjusted, []
                await self._take(TakeTokensCall(None, None, None, adjusted, [], []))
        except StoreUnavailable:
            return  # the first process is gone, and this one ends with it
        finally:
            self._is_adjusting = False

    def _allowance(self, charge: Charge, now_ms: int) -> Allowance:
        key = charge.owner, charge.limit
        allowance = self._allowances.get(key)
        if allowance is None or allowance.per_s != charge.per_s:
            if len(self._allowances) >= _MAX_KEPT:
                self._allowances = {key: each for key, each in self._allowances.items() if not each.is_idle(now_ms)}
            allowance = self._allowances[key] = Allowance(charge.per_s)
        return allowance


async def answer_at_once(server: TokenServer, call: TakeTokensCall) -> SharedTokens:
    """Take tokens in the process that has the buckets."""
    return server.take(call)


def ask_first(link: StoreLink) -> Take:
    """Return a function that takes tokens from the first process."""

    async def take(call: TakeTokensCall) -> SharedTokens:
        # A task of its own: some callers have none, and connecting needs one.
        body = NO_CALLER + write_link_call(call)
        asked = asyncio.get_running_loop().create_task(link.ask(body, ANYONE.own_tenant))
        return read_shared_tokens(await asked)

    return take
