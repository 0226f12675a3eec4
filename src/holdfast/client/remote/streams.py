"""Subscriptions: by one claim after another, which also carries verdicts, or by streams of the server."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from holdfast.client.remote.calls import Calls
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.tasks import Tasks
from holdfast.client.remote.unsettled import Unsettled
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict

Claim = Callable[[QueueRef, ClaimRequest, int | None], Awaitable[list[Delivery]]]
GiveBack = Callable[[QueueRef, list[Delivery]], Coroutine[Any, Any, None]]


class PollStream:
    """The deliveries of one reader of a queue, of which at most `prefetch` are unsettled."""

    def __init__(self, ref: QueueRef, ask: ClaimRequest, prefetch: int, tasks: Tasks) -> None:
        self.ref = ref
        self._ask = ask
        self.unsettled = Unsettled(prefetch, ask.lease_ms, tasks.event())
        self.upcoming: deque[Delivery] = deque()
        self.is_over = False
        self._is_claiming = False
        self._taken_at = 0.0

    @property
    def is_due(self) -> bool:
        """True if the reader has taken every delivery, so the next claim is due."""
        return not self.upcoming and not self._is_claiming and not self.is_over

    def make_claim(self, more: int) -> ClaimRequest:
        """Return a claim for the free slots, given that `more` deliveries are about to be settled."""
        return replace(self._ask, limit=max(1, self.unsettled.free_slots() + more))

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """Keep other callers from claiming for this reader during the block."""
        self._is_claiming = True
        try:
            yield
        finally:
            self._is_claiming = False
            self.unsettled.notify()

    def take(self, deliveries: list[Delivery]) -> bool:
        """Accept deliveries for the reader. Return False if the reader has left, so they must be given back."""
        if self.is_over:
            return False
        self._taken_at = steady_s()
        self.unsettled.add(deliveries)
        self.upcoming.extend(deliveries)
        return True

    def next(self) -> Delivery | None:
        """Return the next delivery; None if its lease expired while it waited, by this machine's clock."""
        delivery, lease_ms = self.upcoming.popleft(), self._ask.lease_ms
        is_over = lease_ms is not None and (steady_s() - self._taken_at) * 1_000 >= lease_ms
        return None if is_over else delivery

    async def wait(self) -> None:
        """Wait until a verdict was carried out, a lease expired or a claim returned messages."""
        await self.unsettled.wait_for_change(has_claim=self._is_claiming)


class PollStreams:
    """The open streams of a client."""

    def __init__(self) -> None:
        self._streams: dict[QueueRef, set[PollStream]] = {}

    async def read(
        self, stream: PollStream, calls: Calls[Any, Any], claim: Claim, give_back: GiveBack
    ) -> AsyncIterator[Delivery]:
        """Yield deliveries until the client is closed. Deliveries that the reader did not take are given back."""
        streams = self._streams.setdefault(stream.ref, set())
        streams.add(stream)
        try:
            while not calls.is_closed:
                if stream.upcoming:
                    if (delivery := stream.next()) is not None:
                        yield delivery
                elif not stream.is_due or not stream.unsettled.free_slots():
                    await stream.wait()
                else:
                    with stream.claiming():
                        stream.take(await claim(stream.ref, stream.make_claim(0), None))
        finally:
            stream.is_over = True
            streams.discard(stream)
            if not streams:
                self._streams.pop(stream.ref, None)
            if stream.upcoming:
                calls.spawn(give_back(stream.ref, list(stream.upcoming)))

    def find_due(self, ref: QueueRef, verdicts: list[Verdict]) -> tuple[PollStream, int] | None:
        """Return a stream whose next claim is due and can carry the verdicts, and how many of these free its slots."""
        for stream in self._streams.get(ref, ()):
            if stream.is_due and (mine := sum(map(stream.unsettled.frees_slot, verdicts))):
                return stream, mine
        return None

    def record(self, ref: QueueRef, verdicts: list[Verdict], results: list[Result]) -> None:
        """Record the results of verdicts, which may free slots."""
        for stream in self._streams.get(ref, ()):
            stream.unsettled.record(verdicts, results)

    def wake_all(self) -> None:
        """Let every waiting reader check whether the client is closed."""
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.unsettled.notify()


# --- Subscriptions in which the server sends deliveries ---------------------------------------------------------------


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
                if not _is_lease_over(ask, subscription.read_at):
                    yield delivery
        except Lost:
            failures += 1
        finally:
            # This gives back only deliveries that were not yielded; the others belong to the reader.
            end(subscription.call)
        if failures and not calls.is_closed:
            await calls.pause(failures, 0)


def _is_lease_over(ask: ClaimRequest, read_at: float) -> bool:
    """Return whether a delivery's lease expired while it waited for the reader, by this machine's clock."""
    return ask.lease_ms is not None and (steady_s() - read_at) * 1_000 >= ask.lease_ms
