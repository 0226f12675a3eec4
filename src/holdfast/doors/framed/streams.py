"""Subscriptions: deliveries that the server sends as they become ready."""

import asyncio
from functools import partial

from holdfast.doors.framed.call import FramedCall
from holdfast.model.message import MAX_BATCH
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS
from holdfast.wire.framed.answers import write_claimed, write_nothing
from holdfast.wire.framed.calls import SubscribeCall


async def subscribe(call: FramedCall, given: SubscribeCall) -> bytes:
    """Send deliveries as messages become ready, until the caller cancels or a wait ends without messages."""
    ref = call.ref(given)
    check_integer("prefetch", given.prefetch, 1, MAX_BATCH)
    if given.wait_ms is not None:
        check_integer("wait_ms", given.wait_ms, 0, MAX_MS)
    connection = call.connection
    subscription = await call.session.subscribe(ref, given.ask, given.prefetch, releases_at_end=given.release_on_leave)
    try:
        while True:
            # Claim nothing more for a caller that reads slowly: the next messages stay claimable by others.
            await connection.responses.drained()
            deliveries = await call.wait(subscription.next(given.wait_ms))
            if not deliveries:  # the caller cancelled, the wait timed out, or the server is shutting down
                return write_nothing()
            call.tracing.deliver(call.headers, ref, deliveries)
            call.send_item(write_claimed(deliveries), partial(subscription.give_back, deliveries))
    finally:
        await asyncio.shield(subscription.end())
