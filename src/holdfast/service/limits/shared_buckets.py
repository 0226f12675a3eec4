"""Buckets that all servers of a cluster take from (SPEC 8.7).

The tokens are in Redis. A server that is busy takes a block of them at a time, so that most calls ask nobody: together
the servers let in what the limit allows and at most a block each (`Allowance`) more, in any stretch of time.

Without Redis each server goes by a bucket of its own, with its share of the rate, one of as many servers as were last
heard of. A Redis that lost its data has full buckets.
"""

import logging
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from holdfast.clock import Timer
from holdfast.model.limits import Allowance, Charge, Shortage, share_of
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime, Ticket
from holdfast.service.limits.buckets import MemoryBuckets
from holdfast.service.limits.redis_rates import RatesDown, RedisRates

T = TypeVar("T")

_log = logging.getLogger("holdfast")

# Between two signs of life, and between two looks whether Redis is back.
_SIGN_MS = 5_000
_DOWN_MS = 250
# A refusal is repeated from memory for so long at most: others may give back.
_REMEMBERED_MS = 1_000
# Allowances and refusals that may be kept without looking for idle ones.
_SLACK = 1_024

_Key = tuple[str | QueueRef, str]


class RedisLoop(Protocol):
    """The way to the loop that Redis is asked on."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T: ...


class _Asked(NamedTuple):
    charges: list[Charge]
    # Answered None if it was paid.
    ticket: Ticket[Shortage | None]


class _Refusal(NamedTuple):
    per_s: float
    amount: int
    ends_at: int
    forgotten_at: int


class SharedBuckets:
    def __init__(self, rates: RedisRates, line: RedisLoop, runtime: Runtime) -> None:
        self._rates = rates
        self._line = line
        self._runtime = runtime
        self._server = uuid4().hex
        self.servers = 1
        # Whether others take from the same buckets; else this server goes by its own.
        self.is_shared = True
        self._own = MemoryBuckets()
        self._allowances: dict[_Key, Allowance] = {}
        self._refusals: dict[_Key, _Refusal] = {}
        # Of each tenant that Redis is being asked for: those who wait for the next time it is.
        self._waiting: dict[str, list[_Asked]] = {}
        # Owed (or, below 0, given back), and not told to Redis yet.
        self._outbox: defaultdict[str, dict[_Key, Charge]] = defaultdict(dict)
        self._timer: Timer | None = None
        self._is_closed = False

    async def start(self) -> None:
        await self.look_once()
        self._arm()

    async def close(self) -> None:
        """On Redis' loop, as the last that is done there."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._rates.leave(self._server)

    # --- Charges -----------------------------------------------------------------------------------------------

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        if not self.is_shared:
            return await self._take_own(charges, now_ms)
        if (refused := self._remembered(charges, now_ms)) is not None:
            return refused
        rest: list[Charge] = []
        paid: list[Charge] = []
        for charge in charges:
            allowance = self._allowance(charge, now_ms)
            if charge.amount <= allowance.tokens:
                allowance.tokens -= charge.amount
                paid.append(charge)
            else:
                rest.append(charge)
        if not rest:
            return None
        shortage = await self._ask(rest)
        if shortage is not None:
            for charge in paid:
                self._allowance(charge, now_ms).tokens += charge.amount
        return shortage

    def owe(self, charges: Sequence[Charge], now_ms: int) -> None:
        if not self.is_shared:
            self._own.owe(self._shares(charges), now_ms)
            return
        for charge in charges:
            self._post(charge, self._allowance(charge, now_ms).drain(charge.amount))

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """To all: kept here it would be more than a block."""
        if not self.is_shared:
            self._own.give_back(self._shares(charges), now_ms)
            return
        for charge in charges:
            self._refusals.pop((charge.owner, charge.limit), None)
            self._post(charge, -charge.amount)

    async def _take_own(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        shortage = await self._own.take(self._shares(charges), now_ms)
        if shortage is None:
            return None
        # The refusal speaks of the limit, not of this server's part of it.
        [whole] = [each for each in charges if (each.owner, each.limit) == shortage.charge[:2]]
        return Shortage(whole, shortage.wait_ms)

    def _shares(self, charges: Sequence[Charge]) -> list[Charge]:
        return [share_of(charge, self.servers) for charge in charges]

    def _allowance(self, charge: Charge, now_ms: int) -> Allowance:
        key = charge.owner, charge.limit
        allowance = self._allowances.get(key)
        if allowance is None or allowance.per_s != charge.per_s:
            if len(self._allowances) >= _SLACK:
                self._forget_idle(now_ms)
            allowance = self._allowances[key] = Allowance(charge.per_s)
        return allowance

    def _forget_idle(self, now_ms: int) -> None:
        self._allowances = {key: each for key, each in self._allowances.items() if not each.is_idle(now_ms)}

    # --- Refusals that need no asking ----------------------------------------------------------------------------

    def _remembered(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Whoever was told to come later has nothing to win by asking sooner, nor has anybody who wants more."""
        for charge in charges:
            key = charge.owner, charge.limit
            known = self._refusals.get(key)
            if known is None:
                continue
            if now_ms >= min(known.ends_at, known.forgotten_at) or known.per_s != charge.per_s:
                del self._refusals[key]
            elif charge.amount >= known.amount:
                return Shortage(charge, known.ends_at - now_ms)
        return None

    def _remember(self, shortage: Shortage, now_ms: int) -> None:
        charge, wait_ms = shortage
        if len(self._refusals) >= _SLACK:
            self._refusals.clear()
        refusal = _Refusal(charge.per_s, charge.amount, now_ms + wait_ms, now_ms + _REMEMBERED_MS)
        self._refusals[charge.owner, charge.limit] = refusal

    # --- Asking Redis --------------------------------------------------------------------------------------------

    async def _ask(self, charges: list[Charge]) -> Shortage | None:
        asked = _Asked(charges, self._runtime.ticket())
        self._waiting_of(_tenant_of(charges[0])).append(asked)
        try:
            return await asked.ticket
        except BaseException:
            ticket = asked.ticket
            if ticket.done() and not ticket.cancelled() and not ticket.exception() and ticket.result() is None:
                self.give_back(charges, self._runtime.clock.now_ms())
            raise

    def _post(self, charge: Charge, amount: int) -> None:
        if not amount:
            return
        tenant, key = _tenant_of(charge), (charge.owner, charge.limit)
        before = self._outbox[tenant].get(key)
        self._outbox[tenant][key] = charge._replace(amount=amount + (before.amount if before is not None else 0))
        self._waiting_of(tenant)

    def _waiting_of(self, tenant: str) -> list[_Asked]:
        """Those who ask, or have something to tell, while Redis is at work share the next call."""
        waiting = self._waiting.get(tenant)
        if waiting is None:
            waiting = self._waiting[tenant] = []
            self._runtime.spawn(self._serve(tenant))
        return waiting

    async def _serve(self, tenant: str) -> None:
        while not self._is_closed and (self._waiting[tenant] or self._outbox.get(tenant)):
            asked, self._waiting[tenant] = self._waiting[tenant], []
            adjust = list(self._outbox.pop(tenant, {}).values())
            await self._serve_once(tenant, asked, adjust)
        for each in self._waiting.pop(tenant):
            _settle(each, None)  # the server is closing: what comes of it is no longer counted

    async def _serve_once(self, tenant: str, asked: list[_Asked], adjust: list[Charge]) -> None:
        now_ms = self._runtime.clock.now_ms()
        asked = [each for each in asked if not each.ticket.done()]
        blocks = self._blocks(asked, now_ms)
        requests = [each.charges for each in asked]
        try:
            taken = await self._line.call(self._rates.take(tenant, adjust, requests, blocks, now_ms))
        except Exception as error:  # whatever it is, those who wait must get an answer
            self._lost(error)
            self._own.owe(self._shares(adjust), now_ms)
            for each in asked:
                _settle(each, await self._take_own(each.charges, now_ms))
            return
        for block, tokens in zip(blocks, taken.blocks, strict=True):
            self._allowance(block, now_ms).tokens += tokens
        for each, (wait_ms, place) in zip(asked, taken.waits, strict=True):
            shortage = Shortage(each.charges[place - 1], wait_ms) if wait_ms else None
            if shortage is not None:
                self._remember(shortage, now_ms)
            if each.ticket.done():  # the caller left
                if shortage is None:
                    self.give_back(each.charges, now_ms)
            else:
                each.ticket.set_result(shortage)

    def _blocks(self, asked: list[_Asked], now_ms: int) -> list[Charge]:
        """One for each bucket that is asked."""
        each_once = {(charge.owner, charge.limit): charge for each in asked for charge in each.charges}
        return [
            charge._replace(amount=block)
            for charge in each_once.values()
            if (block := self._allowance(charge, now_ms).block(now_ms))
        ]

    # --- Whether Redis is there ----------------------------------------------------------------------------------

    async def look_once(self) -> None:
        """Say that this server is there, and learn how many there are."""
        try:
            servers = await self._line.call(self._rates.look(self._server, self._runtime.clock.now_ms()))
        except Exception as error:  # the next look must come
            self._lost(error)
            return
        self.servers = max(1, servers)
        if not self.is_shared:
            self.is_shared = True
            _log.warning("Redis is back: rates are shared with other servers again", extra={"servers": servers})

    def _lost(self, error: Exception) -> None:
        if self.is_shared:
            self.is_shared = False
            self._allowances.clear()
            self._refusals.clear()
            _log.warning(
                "Redis does not answer: this server goes by its own share of the rates, one of %d: %s",
                self.servers,
                error,
                exc_info=None if isinstance(error, RatesDown) else error,
            )
            self._arm()

    def _arm(self) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        at_ms = self._runtime.clock.now_ms() + (_SIGN_MS if self.is_shared else _DOWN_MS)
        self._timer = self._runtime.call_at(at_ms, lambda: self._runtime.spawn(self._sign()))

    async def _sign(self) -> None:
        await self.look_once()
        self._arm()


def _settle(asked: _Asked, shortage: Shortage | None) -> None:
    if not asked.ticket.done():
        asked.ticket.set_result(shortage)


def _tenant_of(charge: Charge) -> str:
    whose = charge.owner
    return whose.tenant if isinstance(whose, QueueRef) else whose
