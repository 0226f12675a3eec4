"""Subscriptions and watches on queues whose store process may change: a queue is deleted, and made again elsewhere."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from holdfast.model.answers import Delivery
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.watches import NewsStream
from holdfast.stores.rocks.portions.misplaced import is_misplaced

_TRIES = 20


class OpenedWatch(NamedTuple):
    """A watch, and the number of the store process that it was opened in."""

    stream: NewsStream
    number: int


class RoutedSubscription:
    """A `DeliveryStream` that is opened again where its queue is."""

    def __init__(self, stream: DeliveryStream, reopen: Callable[[], Awaitable[DeliveryStream]]) -> None:
        self._stream = stream
        self._reopen = reopen

    async def next(self, wait_ms: int | None) -> list[Delivery]:
        """Claim deliveries; see `DeliveryStream.next`."""
        for _ in range(_TRIES):
            try:
                return await self._stream.next(wait_ms)
            except StoreUnavailable as error:
                if not is_misplaced(error):
                    raise
            with suppress(HoldfastError):  # nothing is held in a queue that is gone
                await self._stream.end()
            self._stream = await self._reopen()
        raise StoreUnavailable("the queue of this subscription keeps being deleted and made again: try again")

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Make deliveries ready again; see `DeliveryStream.give_back`."""
        self._stream.give_back(deliveries)

    async def end(self) -> None:
        """Close the subscription."""
        await self._stream.end()


class RoutedWatch:
    """A `NewsStream` that is opened again where its queue is."""

    def __init__(self, watch: OpenedWatch, reopen: Callable[[int, bool], Awaitable[OpenedWatch]]) -> None:
        """`reopen` is given the present process and whether to doubt it, and returns the watch if it is still right."""
        self._watch = watch
        self._reopen = reopen

    @property
    def is_closed(self) -> bool:
        """Return whether the watch has ended."""
        return self._watch.stream.is_closed

    async def next(self, wait_ms: int) -> bool:
        """Wait for news; see `NewsStream.next`."""
        has_news = await self._watch.stream.next(wait_ms)
        if not self.is_closed:
            # News of a missing queue may be that it was made elsewhere; no news, that it was deleted.
            watch = await self._reopen(self._watch.number, not has_news)
            if watch.number != self._watch.number:
                self._watch.stream.close()
                self._watch = watch
        return has_news

    def close(self) -> None:
        """End the watch."""
        self._watch.stream.close()
