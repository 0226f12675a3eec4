"""Subscriptions in which the server sends deliveries, and which are renewed whenever they end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from holdfast.client.remote.calls import Calls
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest

GiveBack = Callable[[QueueRef, list[Delivery]], Awaitable[None]]


class ServedStream(Protocol):
    """One open subscription of a protocol."""

    # When the deliveries that `next` returns were received, in steady seconds.
    read_at: float

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the end of the subscription. Raise `Lost`."""

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        """Cancel the subscription, and give back the deliveries that were received but not returned."""

    @property
    def call(self) -> Any:
        """The connection or call by which the client knows the subscription."""


async def read_subscriptions(
    calls: Calls[Any, Any],
    subscribe: Callable[[], Awaitable[ServedStream | None]],
    end: Callable[[Any], None],
    give_back: GiveBack,
    ref: QueueRef,
    ask: ClaimRequest,
) -> AsyncIterator[Delivery]:
    """Yield deliveries until the client is closed.

    `subscribe` opens a subscription, or returns None if it ended without a delivery. `end` cancels its call.
    """
    failures = 0
    while True:
        try:
            subscription = await subscribe()
        except StoreUnavailable:
            if calls.is_closed:
                return
            raise
        if subscription is None:
            continue
        calls.track(subscription.call, partial(subscription.give_back, give_back, ref))
        try:
            while (delivery := await subscription.next()) is not None:
                failures = 0
                if not _is_over(ask, subscription.read_at):
                    yield delivery
        except Lost:
            failures += 1
        finally:
            # This gives back only deliveries that were not yielded; the others belong to the reader.
            end(subscription.call)
        if failures and not calls.is_closed:
            await calls.pause(failures, 0)


def _is_over(ask: ClaimRequest, read_at: float) -> bool:
    """Return whether a delivery's lease expired while it waited for the reader, by this machine's clock."""
    return ask.lease_ms is not None and (steady_s() - read_at) * 1_000 >= ask.lease_ms
