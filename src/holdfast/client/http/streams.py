"""Subscriptions over HTTP: one delivery a line, taken up again whenever the stream ends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.connection import AnyConnection
from holdfast.client.http.failures import strange_answer
from holdfast.client.remote.calls import LEAVE_S
from holdfast.client.remote.lost import Lost
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, check_claim_request
from holdfast.wire.http.bodies import DeliveryOut, SubscribeRequest, encode
from holdfast.wire.http.shapes import delivery_of

GiveBack = Callable[[QueueRef, list[Delivery]], Awaitable[None]]

_delivery = msgspec.json.Decoder(DeliveryOut)


async def stream(
    calls: HttpCalls, give_back: GiveBack, ref: QueueRef, ask: ClaimRequest, prefetch: int
) -> AsyncIterator[Delivery]:
    """Deliveries for ever. What was sent ahead and never asked for is given back when the reader leaves."""
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
    failures = 0
    while True:
        await calls.ask_for_ever(request)
        connection, request.connection = request.connection, None
        if connection is None:
            raise strange_answer(calls.url)
        lines = _Lines(calls, connection)
        calls.hold(connection, partial(lines.give_back, give_back, ref))
        try:
            while (delivery := await lines.next()) is not None:
                failures = 0
                if not _is_over(delivery, ask, lines.read_at):
                    yield delivery
        except Lost:
            failures += 1
        finally:
            # Only what was read off the stream and not yielded: a delivery in the reader's hands is its own.
            calls.end_stream(connection)
        if failures and not calls.is_closed:
            await calls.pause(failures, 0)


def _is_over(delivery: Delivery, ask: ClaimRequest, read_at: float) -> bool:
    """Whether its lease ran out while it waited for the reader, as far as this machine's own clock can tell."""
    return ask.lease_ms is not None and (steady_s() - read_at) * 1_000 >= ask.lease_ms


class _Lines:
    def __init__(self, calls: HttpCalls, connection: AnyConnection) -> None:
        self._calls = calls
        self._connection = connection
        self._buffer = b""
        # When the bytes at hand were taken off the connection.
        self.read_at = steady_s()

    async def next(self) -> Delivery | None:
        """None at the stream's end."""
        while b"\n" not in self._buffer:
            part = await self._connection.read()
            if not part:
                return None
            self.read_at = self._connection.part_at
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return self._parse(line)

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        answer = await self._connection.leave(LEAVE_S)
        rest = self._buffer + self._connection.unread() + (b"" if answer is None else answer.body)
        unseen = [self._parse(line) for line in rest.split(b"\n")[:-1]]
        await give_back(ref, unseen)

    def _parse(self, line: bytes) -> Delivery:
        try:
            return delivery_of(_delivery.decode(line))
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None
