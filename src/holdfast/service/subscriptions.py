"""Subscriptions: streams of deliveries. A subscriber holds at most `prefetch` unsettled messages at a time.

Verdicts come in by other calls, so `Subscriptions` is notified of every verdict that succeeded. It then makes room for
another delivery, and so does a lease that expires.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from holdfast.model.answers import Delivery, Result
from holdfast.model.errors import RateLimited, StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import Runtime, Ticket

Claim = Callable[[QueueRef, ClaimRequest, int | None], Awaitable[list[Delivery]]]
GiveBack = Callable[[QueueRef, list[Delivery]], None]
SettleAll = Callable[[QueueRef, list[Verdict]], Awaitable[list[Result]]]


class DeliveryStream(Protocol):
    """A subscription, as a door uses it. The door must call `end` in any case."""

    async def next(self, wait_ms: int | None) -> list[Delivery]:
        """Claim deliveries for which the subscriber has room, waiting up to `wait_ms` (None: for ever) for one.

        Return an empty list after the wait, or if the server is closing.
        """

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Make deliveries that could not be sent ready again at once, without counting an attempt."""

    async def end(self) -> None:
        """Close the subscription. Release the messages that it still holds, if it was opened to do so."""


@dataclass(slots=True)
class _Held:
    receipt: Receipt
    expires_at: int


class Subscriptions:
    """The open subscriptions of a server, and the messages that each holds."""

    def __init__(self, runtime: Runtime, claim: Claim, settle: SettleAll, give_back: GiveBack) -> None:
        self._runtime = runtime
        self._claim = claim
        self._settle = settle
        self._give_back = give_back
        self._holders: dict[tuple[QueueRef, int], Subscription] = {}
        # A dict, used as an ordered set: subscriptions are ended in the order in which they were opened.
        self._open: dict[Subscription, None] = {}
        self._is_closed = False

    def open(self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False) -> "Subscription":
        """Open a subscription. Raise `StoreUnavailable` if the server is closing."""
        if self._is_closed:
            raise StoreUnavailable("this server is shutting down; subscribe again later")
        subscription = Subscription(self, ref, ask, prefetch, releases_at_end=releases_at_end)
        self._open[subscription] = None
        return subscription

    def close(self) -> None:
        """End all subscriptions, also those that wait for room."""
        self._is_closed = True
        for subscription in list(self._open):
            subscription.let_go()

    def note(self, ref: QueueRef, verdicts: list[Verdict], results: list[Result]) -> None:
        """Take note of the results of verdicts."""
        if not self._holders:
            return
        for verdict, result in zip(verdicts, results, strict=True):
            holder = self._holders.get((ref, result.snowflake)) if result.ok else None
            if holder is not None:
                holder.note(verdict, result)


class Subscription:
    """The stream of one subscriber. `ask.limit` is the maximum number of messages per claim."""

    def __init__(
        self, every: Subscriptions, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool
    ) -> None:
        self._runtime = every._runtime
        self._claim = every._claim
        self._settle = every._settle
        self._give_back = every._give_back
        self._holders = every._holders
        self._every = every._open
        self._ref = ref
        self._ask = ask
        self._prefetch = prefetch
        self._releases_at_end = releases_at_end
        self._held: dict[int, _Held] = {}
        self._room: Ticket[None] | None = None
        self._resting: Ticket[None] | None = None
        self._is_let_go = False

    async def next(self, wait_ms: int | None) -> list[Delivery]:
        """Wait for room, then claim deliveries, waiting up to `wait_ms` for one.

        Return an empty list after the wait, or once the subscription is let go. Nothing is awaited after the claim,
        because a subscriber that left there would strand its messages.
        """
        while len(self._held) >= self._prefetch and not self._is_let_go:
            await self._wait_for_room()
        if self._is_let_go:
            return []
        limit = min(self._ask.limit, self._prefetch - len(self._held))
        deliveries = await self._claim_when_allowed(replace(self._ask, limit=limit), wait_ms)
        for delivery in deliveries:
            self._held[delivery.snowflake] = _Held(delivery.receipt, delivery.lease_expires_at)
            self._holders[self._ref, delivery.snowflake] = self
        return deliveries

    async def _claim_when_allowed(self, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim, and after `RateLimited` wait and claim again, because the stream of the subscriber has begun."""
        now_ms = self._runtime.clock.now_ms
        until_ms = None if wait_ms is None else now_ms() + wait_ms
        while True:
            try:
                return await self._claim(self._ref, ask, None if until_ms is None else max(0, until_ms - now_ms()))
            except RateLimited as error:
                if error.of == "server":  # too many calls wait already
                    raise
                again_at = now_ms() + error.retry_after_ms
            is_last = until_ms is not None and again_at > until_ms
            await self._rest(until_ms if until_ms is not None and is_last else again_at)
            if is_last or self._is_let_go:
                return []

    def note(self, verdict: Verdict, result: Result) -> None:
        """Take note of a verdict that succeeded: forget its message, or its new expiry after an extension."""
        held = self._held.get(result.snowflake)
        if held is None or held.receipt != verdict.receipt:
            return
        if verdict.settle is Settle.EXTEND and result.lease_expires_at is not None:
            held.expires_at = result.lease_expires_at
        else:
            self._forget(result.snowflake)
            self._notify_room()

    def let_go(self) -> None:
        """Make the current and every later `next` return an empty list."""
        self._is_let_go = True
        self._notify_room()
        _settle(self._resting)

    async def end(self) -> None:
        """Close the subscription; see `DeliveryStream.end`."""
        self._every.pop(self, None)
        held = [each.receipt for each in self._held.values()]
        for id in list(self._held):
            self._forget(id)
        if self._releases_at_end and held:
            await self._settle(self._ref, [Verdict(settle=Settle.RELEASE, receipt=receipt) for receipt in held])

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Make deliveries that could not be sent ready again; see `DeliveryStream.give_back`."""
        for delivery in deliveries:
            self._forget(delivery.snowflake)
        self._give_back(self._ref, deliveries)

    async def _wait_for_room(self) -> None:
        ticket = self._room = self._runtime.ticket()
        first_expiry = min(held.expires_at for held in self._held.values())
        timer = self._runtime.call_at(first_expiry, self._notify_room)
        try:
            await ticket
        finally:
            timer.cancel()
            self._room = None
        now_ms = self._runtime.clock.now_ms()
        for id in [id for id, held in self._held.items() if held.expires_at <= now_ms]:
            self._forget(id)

    async def _rest(self, until_ms: int) -> None:
        ticket = self._resting = self._runtime.ticket()
        timer = self._runtime.call_at(until_ms, lambda: _settle(ticket))
        try:
            await ticket
        finally:
            timer.cancel()
            self._resting = None

    def _notify_room(self) -> None:
        _settle(self._room)

    def _forget(self, id: int) -> None:
        if self._held.pop(id, None) is not None and self._holders.get((self._ref, id)) is self:
            del self._holders[self._ref, id]


def _settle(ticket: Ticket[None] | None) -> None:
    if ticket is not None and not ticket.done():
        ticket.set_result(None)
