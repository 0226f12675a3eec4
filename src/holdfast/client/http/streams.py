"""Subscriptions over HTTP, which send one delivery in each line and are renewed whenever they end."""

from collections.abc import AsyncIterator

import msgspec

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.connection import AnyConnection
from holdfast.client.http.failures import unexpected_response
from holdfast.client.remote.calls import CANCEL_S
from holdfast.client.remote.streams import GiveBack, read_subscriptions
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, check_claim_request
from holdfast.wire.http.bodies import DeliveryOut, SubscribeRequest, encode
from holdfast.wire.http.shapes import delivery_of

_delivery = msgspec.json.Decoder(DeliveryOut)


def stream(
    calls: HttpCalls, give_back: GiveBack, ref: QueueRef, ask: ClaimRequest, prefetch: int
) -> AsyncIterator[Delivery]:
    """Yield deliveries until the client is closed.

    Deliveries that were received but not yielded are given back when the reader leaves.
    """
    check_claim_request(ask)
    document = SubscribeRequest(
        tenant=ref.tenant,
        queue=ref.queue,
        prefetch=prefetch,
        wait_ms=calls.settings.wait_round_ms,
        lease_ms=ask.lease_ms,
        owner=ask.owner,
        payloads_apart=ask.streams,
    )
    path = "/v1/queue/subscribeWithState" if ask.with_state else "/v1/queue/subscribe"
    request = HttpRequest("POST", path, [encode(document)], is_stream=True)

    async def subscribe() -> _Lines:
        await calls.send_forever(request)
        connection, request.connection = request.connection, None
        if connection is None:
            raise unexpected_response(calls.url)
        return _Lines(calls, connection)

    return read_subscriptions(calls, subscribe, calls.end_stream, give_back, ref, ask)


class _Lines:
    """The lines of a subscription, each a delivery."""

    def __init__(self, calls: HttpCalls, connection: AnyConnection) -> None:
        self._calls = calls
        self.call = connection
        self._buffer = b""
        # When the bytes in the buffer were received, in steady seconds.
        self.read_at = steady_s()

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the end of the stream."""
        while b"\n" not in self._buffer:
            part = await self.call.read()
            if not part:
                return None
            self.read_at = self.call.part_at
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return self._parse(line)

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        """Cancel the subscription, and give back the deliveries that were not yielded."""
        response = await self.call.cancel(CANCEL_S)
        rest = self._buffer + self.call.unread() + (b"" if response is None else response.body)
        unseen = [self._parse(line) for line in rest.split(b"\n")[:-1]]
        await give_back(ref, unseen)

    def _parse(self, line: bytes) -> Delivery:
        try:
            return delivery_of(_delivery.decode(line))
        except msgspec.DecodeError:
            raise unexpected_response(self._calls.url) from None
