"""Subscriptions over frames, in which the server sends deliveries, and which are renewed whenever they end."""

from collections import deque
from collections.abc import AsyncIterator

from msgspec.structs import replace

from holdfast.client.framed.calls import FramedCalls, FramedRequest
from holdfast.client.framed.open_call import ERROR, ITEM, OpenCall, ResponseFrame
from holdfast.client.http.failures import unexpected_response
from holdfast.client.remote.calls import CANCEL_S
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.streams import GiveBack, read_subscriptions
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, check_claim_request
from holdfast.wire.framed.answers import read_claimed
from holdfast.wire.framed.calls import write_subscribe
from holdfast.wire.framed.greetings import read_error


def stream(
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

    async def subscribe() -> _Items | None:
        response = await calls.send_forever(request)
        call, request.call = request.call, None
        # Without a call, there was no message within the wait of one subscription.
        return None if call is None else _Items(calls, call, response)

    return read_subscriptions(calls, subscribe, calls.end_stream, give_back, ref, ask)


def _deliveries_in(calls: FramedCalls, response: ResponseFrame) -> list[Delivery]:
    """Return the deliveries in one ITEM frame."""
    try:
        return read_claimed(response[1]).deliveries
    except ValueError:
        raise unexpected_response(calls.url) from None


class _Items:
    """The deliveries of a subscription."""

    def __init__(self, calls: FramedCalls, call: OpenCall, first: ResponseFrame) -> None:
        self.calls = calls
        self.call = call
        # When the waiting deliveries were received, in steady seconds.
        self.read_at = call.received_at
        self._upcoming = deque(_deliveries_in(calls, first))
        wait_ms = calls.settings.wait_round_ms
        self._limit_s = None if wait_ms is None else calls.timeout_s + wait_ms / 1_000

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the end of the subscription."""
        while not self._upcoming:
            response = await self.call.receive(self._limit_s)
            if response[0] == ERROR:
                error = read_error(response[1])
                raise Lost(error.message, was_sent=True)  # the renewed subscription continues or is refused for good
            if response[0] != ITEM:
                return None
            self.read_at = self.call.received_at
            self._upcoming.extend(_deliveries_in(self.calls, response))
        return self._upcoming.popleft()

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        """Cancel the subscription, and give back the deliveries that were not yielded."""
        unseen, self._upcoming = self._upcoming, deque()
        for response in await self.call.cancel_and_drain(CANCEL_S):
            if response[0] == ITEM:
                unseen.extend(_deliveries_in(self.calls, response))
        self.call.abandon(None)
        await give_back(ref, list(unseen))
