"""Subscriptions over frames: the server sends deliveries, and the subscription is renewed whenever it ends."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from holdfast.client.framed.answer import ERROR, ITEM, Answer, OpenCall
from holdfast.client.framed.calls import FramedCalls, FramedRequest
from holdfast.client.http.failures import strange_answer
from holdfast.client.remote.calls import LEAVE_S
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

    What was sent ahead and never asked for is given back when the reader leaves.
    """
    check_claim_request(ask)
    wait_ms = calls.settings.wait_round_ms
    body = write_subscribe(ref, replace(ask, limit=prefetch), prefetch, wait_ms)

    async def hear_late(answer: Answer) -> None:
        if answer[0] == ITEM:
            await give_back(ref, _deliveries_in(calls, answer))

    request = FramedRequest(body, wait_ms=wait_ms, is_stream=True, heard_late=hear_late)
    failures = 0
    while True:
        try:
            answer = await calls.ask_for_ever(request)
        except StoreUnavailable:
            if calls.is_closed:
                return
            raise
        call, request.call = request.call, None
        if call is None:
            continue  # nothing came in its time
        items = _Items(calls, call, answer)
        calls.hold(call, partial(items.give_back, give_back, ref))
        try:
            while (delivery := await items.next()) is not None:
                failures = 0
                if not _is_over(delivery, ask, items.read_at):
                    yield delivery
        except Lost:
            failures += 1
        finally:
            # Only what came and was not yielded: a delivery in the reader's hands is its own.
            calls.end_stream(call)
        if failures and not calls.is_closed:
            await calls.pause(failures, 0)


def _is_over(delivery: Delivery, ask: ClaimRequest, read_at: float) -> bool:
    """Whether its lease ran out while it waited for the reader, as far as this machine's own clock can tell."""
    return ask.lease_ms is not None and (steady_s() - read_at) * 1_000 >= ask.lease_ms


def _deliveries_in(calls: FramedCalls, answer: Answer) -> list[Delivery]:
    """Return the deliveries of one ITEM."""
    try:
        return read_claimed(answer[1]).deliveries
    except ValueError:
        raise strange_answer(calls.url) from None


class _Items:
    def __init__(self, calls: FramedCalls, call: OpenCall, first: Answer) -> None:
        self._calls = calls
        self._call = call
        # When the deliveries at hand were taken off the connection.
        self.read_at = call.heard_at
        self._upcoming = deque(_deliveries_in(calls, first))
        wait_ms = calls.settings.wait_round_ms
        self._limit_s = None if wait_ms is None else calls.timeout_s + wait_ms / 1_000

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the stream's end."""
        while not self._upcoming:
            answer = await self._call.hear(self._limit_s)
            if answer[0] == ERROR:
                error = read_error(answer[1])
                raise Lost(error.message, was_sent=True)  # asked for anew, it is refused for good or goes on
            if answer[0] != ITEM:
                return None
            self.read_at = self._call.heard_at
            self._upcoming.extend(_deliveries_in(self._calls, answer))
        return self._upcoming.popleft()

    async def give_back(self, give_back: GiveBack, ref: QueueRef) -> None:
        unseen, self._upcoming = self._upcoming, deque()
        for answer in await self._call.leave(LEAVE_S):
            if answer[0] == ITEM:
                unseen.extend(_deliveries_in(self._calls, answer))
        self._call.give_up(None)
        await give_back(ref, list(unseen))
