"""Subscriptions over frames, in which the server sends deliveries, and which are renewed whenever they end."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from holdfast.client.framed.calls import FramedCalls, FramedRequest
from holdfast.client.framed.open_call import ERROR, ITEM, OpenCall, ResponseFrame
from holdfast.client.http.failures import unexpected_response
from holdfast.client.remote.calls import CANCEL_S
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, check_claim_request
from holdfast.wire.framed.answers import read_claimed
from holdfast.wire.framed.calls import write_subscribe
from holdfast.wire.framed.greetings import read_error

GiveBack = Callable[[QueueRef, list[Delivery]], Awaitable[None]]


async def stream(
    calls: FramedCalls, give_back: GiveBack, ref: QueueRef, ask: ClaimRequest, prefetch: int
) -> AsyncIterator[Delivery]:
    """Yield deliveries until the client is closed.

    Deliveries that were received but not yielded are given back when the reader leaves.
    """
    check_claim_request(ask)
    wait_ms = calls.settings.wait_round_ms
    body = write_subscribe(ref, replace(ask, limit=prefetch), prefetch, wait_ms)

    async def give_back_late(response: ResponseFrame) -> None:
        if response[0] == ITEM:
            await give_back(ref, _deliveries_in(calls, response))

    request = FramedRequest(body, wait_ms=wait_ms, is_stream=True, on_late=give_back_late)
    failures = 0
    while True:
        try:
            response = await calls.send_forever(request)
        except StoreUnavailable:
            if calls.is_closed:
                return
            raise
        call, request.call = request.call, None
        if call is None:
            continue  # there was no message within the wait of one subscription
        items = _Items(calls, call, response)
        calls.track(call, partial(items.give_back, give_back, ref))
        try:
            while (delivery := await items.next()) is not None:
                failures = 0
                if not _is_over(delivery, ask, items.read_at):
                    yield delivery
        except Lost:
            failures += 1
        finally:
            # This gives back only deliveries that were not yielded; the others belong to the reader.
            calls.end_stream(call)
        if failures and not calls.is_closed:
            await calls.pause(failures, 0)


def _is_over(delivery: Delivery, ask: ClaimRequest, read_at: float) -> bool:
    """Return whether a delivery's lease expired while it waited for the reader, by this machine's clock."""
    return ask.lease_ms is not None and (steady_s() - read_at) * 1_000 >= ask.lease_ms


def _deliveries_in(calls: FramedCalls, response: ResponseFrame) -> list[Delivery]:
    """Return the deliveries in one ITEM frame."""
    try:
        return read_claimed(response[1]).deliveries
    except ValueError:
        raise unexpected_response(calls.url) from None


class _Items:
    """The deliveries of a subscription."""

    def __init__(self, calls: FramedCalls, call: OpenCall, first: ResponseFrame) -> None:
        self._calls = calls
        self._call = call
        # When the waiting deliveries were received, in steady seconds.
        self.read_at = call.received_at
        self._upcoming = deque(_deliveries_in(calls, first))
        wait_ms = calls.settings.wait_round_ms
        self._limit_s = None if wait_ms is None else calls.timeout_s + wait_ms / 1_000

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the end of the subscription."""
        while not self._upcoming:
            response = await self._call.receive(self._limit_s)
            if response[0] == ERROR:
                error = read_error(response[1])
                raise Lost(error.message, was_sent=True)  # the renewed subscription continues or is refused for good
            if response[0] != ITEM:
                return None
            self.read_at = self._call.received_at
            self._upcoming.extend(_deliveries_in(self._calls, response))
        return self._upcoming.popleft()

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        """Cancel the subscription, and give back the deliveries that were not yielded."""
        unseen, self._upcoming = self._upcoming, deque()
        for response in await self._call.cancel_and_drain(CANCEL_S):
            if response[0] == ITEM:
                unseen.extend(_deliveries_in(self._calls, response))
        self._call.abandon(None)
        await give_back(ref, list(unseen))
