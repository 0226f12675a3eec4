"""Token buckets that all servers of a cluster share (SPEC 8.7).

The tokens are in Redis. A busy server reserves a block of them at a time, so that most calls need no request to Redis.
In any period the servers together admit at most the limit and one block (`Allowance`) per server.

While Redis is down, each server uses buckets of its own with its share of the rate: one part in the last known number
of servers. After Redis has lost its data all buckets are full.
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

# The time between two announcements of this server, and between two attempts to reach Redis while it is down.
_ANNOUNCE_MS = 5_000
_DOWN_MS = 250
# The maximum time for which a refusal is repeated from memory. Other servers may return tokens meanwhile.
_REMEMBERED_MS = 1_000
# The number of allowances or refusals up to which idle ones are not removed.
_SLACK = 1_024

_Key = tuple[str | QueueRef, str]


class RedisLoop(Protocol):
    """The event loop on which the Redis client runs."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result."""


class _PendingRequest(NamedTuple):
    """The charges of a call, and the ticket for their shortage; the ticket's result is None if they were taken."""

    charges: list[Charge]
    ticket: Ticket[Shortage | None]


class _Refusal(NamedTuple):
    """A shortage that is remembered, until the tokens are there or `forgotten_at`."""

    per_s: float
    amount: int
    ends_at: int
    forgotten_at: int


class SharedBuckets:
    """The buckets of one server of a cluster.

    Attributes:
        servers: The last known number of servers.
        is_shared: False while Redis is down, and this server applies its own share of the rates.
    """

    def __init__(self, rates: RedisRates, loop: RedisLoop, runtime: Runtime) -> None:
        self._rates = rates
        self._loop = loop
        self._runtime = runtime
        self._server = uuid4().hex
        self.servers = 1
        self.is_shared = True
        self._local = MemoryBuckets()
        self._allowances: dict[_Key, Allowance] = {}
        self._refusals: dict[_Key, _Refusal] = {}
        # For each tenant with a request to Redis in progress: the calls that wait for the next request.
        self._waiting: dict[str, list[_PendingRequest]] = {}
        # Tokens that were taken into debt, or returned if negative, and that the next request sends to Redis.
        self._outbox: defaultdict[str, dict[_Key, Charge]] = defaultdict(dict)
        self._timer: Timer | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Announce this server, and go on announcing it."""
        await self.announce_once()
        self._arm()

    async def close(self) -> None:
        """Stop the announcements. It must be the last call that runs on the loop of Redis."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._rates.leave(self._server)

    # --- Charges -----------------------------------------------------------------------------------------------

    async def take(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Take the tokens of all charges, or of none; see `Buckets.take`."""
        if not self.is_shared:
            return await self._take_locally(charges, now_ms)
        if (refused := self._find_refusal(charges, now_ms)) is not None:
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
        """Take tokens into debt, first from the reserve of this server, the rest with the next request to Redis."""
        if not self.is_shared:
            self._local.owe(self._shares(charges), now_ms)
            return
        for charge in charges:
            self._post(charge, self._allowance(charge, now_ms).drain(charge.amount))

    def give_back(self, charges: Sequence[Charge], now_ms: int) -> None:
        """Return tokens to Redis. In the reserve of this server they could exceed a block."""
        if not self.is_shared:
            self._local.give_back(self._shares(charges), now_ms)
            return
        for charge in charges:
            self._refusals.pop((charge.owner, charge.limit), None)
            self._post(charge, -charge.amount)

    async def _take_locally(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        shortage = await self._local.take(self._shares(charges), now_ms)
        if shortage is None:
            return None
        # The error shows the whole limit, not the share of this server.
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

    # --- Remembered refusals -------------------------------------------------------------------------------------

    def _find_refusal(self, charges: Sequence[Charge], now_ms: int) -> Shortage | None:
        """Return a remembered shortage of the same or a smaller amount. Asking Redis again would not help yet."""
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

    # --- Requests to Redis ---------------------------------------------------------------------------------------

    async def _ask(self, charges: list[Charge]) -> Shortage | None:
        asked = _PendingRequest(charges, self._runtime.ticket())
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

    def _waiting_of(self, tenant: str) -> list[_PendingRequest]:
        """Return the calls that wait for the tenant's next request, and start one if none is in progress.

        All calls and adjustments that come during a request share the next one.
        """
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
            _settle(each, None)  # the server is closing: admit the call without counting it

    async def _serve_once(self, tenant: str, asked: list[_PendingRequest], adjust: list[Charge]) -> None:
        now_ms = self._runtime.clock.now_ms()
        asked = [each for each in asked if not each.ticket.done()]
        blocks = self._blocks(asked, now_ms)
        requests = [each.charges for each in asked]
        try:
            taken = await self._loop.call(self._rates.take(tenant, adjust, requests, blocks, now_ms))
        except Exception as error:  # whatever it is, the waiting calls need a result
            self._note_down(error)
            self._local.owe(self._shares(adjust), now_ms)
            for each in asked:
                _settle(each, await self._take_locally(each.charges, now_ms))
            return
        for block, tokens in zip(blocks, taken.blocks, strict=True):
            self._allowance(block, now_ms).tokens += tokens
        for each, (wait_ms, position) in zip(asked, taken.waits, strict=True):
            shortage = Shortage(each.charges[position - 1], wait_ms) if wait_ms else None
            if shortage is not None:
                self._remember(shortage, now_ms)
            if each.ticket.done():  # the caller left
                if shortage is None:
                    self.give_back(each.charges, now_ms)
            else:
                each.ticket.set_result(shortage)

    def _blocks(self, asked: list[_PendingRequest], now_ms: int) -> list[Charge]:
        """Return the blocks to reserve: one for each bucket that the request concerns."""
        each_once = {(charge.owner, charge.limit): charge for each in asked for charge in each.charges}
        return [
            charge._replace(amount=block)
            for charge in each_once.values()
            if (block := self._allowance(charge, now_ms).block(now_ms))
        ]

    # --- Announcements -------------------------------------------------------------------------------------------

    async def announce_once(self) -> None:
        """Announce this server, and read the number of servers. Notice whether Redis is up or down."""
        try:
            servers = await self._loop.call(self._rates.announce(self._server, self._runtime.clock.now_ms()))
        except Exception as error:  # whatever it is, the next announcement must follow
            self._note_down(error)
            return
        self.servers = max(1, servers)
        if not self.is_shared:
            self.is_shared = True
            _log.warning("rates_shared: Redis is up again", extra={"servers": servers})

    def _note_down(self, error: Exception) -> None:
        if self.is_shared:
            self.is_shared = False
            self._allowances.clear()
            self._refusals.clear()
            _log.warning(
                "rates_not_shared servers=%d error=%s: Redis is down; this server applies its own share of the rates",
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
        at_ms = self._runtime.clock.now_ms() + (_ANNOUNCE_MS if self.is_shared else _DOWN_MS)
        self._timer = self._runtime.call_at(at_ms, lambda: self._runtime.spawn(self._announce()))

    async def _announce(self) -> None:
        await self.announce_once()
        self._arm()


def _settle(asked: _PendingRequest, shortage: Shortage | None) -> None:
    if not asked.ticket.done():
        asked.ticket.set_result(shortage)


def _tenant_of(charge: Charge) -> str:
    owner = charge.owner
    return owner.tenant if isinstance(owner, QueueRef) else owner
