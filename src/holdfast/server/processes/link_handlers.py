"""Handle, in the store process, the calls of door processes that the framed protocol does not have.

Each handler calls the session of the caller, or the server, and encodes the result. `wire/framed/links.py` describes
the calls.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from holdfast.doors.framed.call import FramedCall, Handler
from holdfast.doors.framed.handlers import handler_of
from holdfast.model.message import Draft
from holdfast.wire.framed import links
from holdfast.wire.framed.answers import write_claimed, write_enqueued, write_nothing, write_part
from holdfast.wire.framed.calls import CallFrame

if TYPE_CHECKING:
    from holdfast.server.processes.store_links import LinkCall

_LinkHandler = Callable[["LinkCall", Any], Coroutine[Any, Any, bytes]]


async def held_by(call: "LinkCall", given: links.HeldByCall) -> bytes:
    """Return the receipt of a message that the caller holds."""
    return links.write_link_answer(await call.session.held_by(call.ref(given), given.id))


async def read_delivered(call: "LinkCall", given: links.ReadDeliveredCall) -> bytes:
    """Return part of the payload of a delivered message."""
    return write_part(await call.session.read_delivered_part(call.ref(given), given.id, given.offset, given.limit))


# --- Enqueue ---------------------------------------------------------------------------------------------------------


async def enqueue_each(call: "LinkCall", given: links.EnqueueEachCall) -> bytes:
    """Enqueue messages into several queues."""
    batches: dict[Any, list[Draft]] = {ref: [*drafts] for ref, drafts in given.batches}
    return links.write_enqueued_each(await call.session.enqueue_each(batches))


async def open_upload(call: "LinkCall", given: links.OpenUploadCall) -> bytes:
    """Begin an upload, and return its number."""
    upload = await call.session.upload(call.ref(given), given.draft)
    number = call.peer.take_number()
    call.peer.uploads[number] = upload
    return links.write_link_answer(number)


async def write_upload(call: "LinkCall", given: links.WriteUploadCall) -> bytes:
    """Add a part to the payload of an upload."""
    await call.peer.uploads[given.number].write(given.part)
    return write_nothing()


async def enqueue_uploaded(call: "LinkCall", given: links.EnqueueUploadedCall) -> bytes:
    """Enqueue messages whose payloads were uploaded."""
    ref = call.ref(given)
    return write_enqueued(await call.session.enqueue(ref, [await _finished(call, draft) for draft in given.drafts]))


async def _finished(call: "LinkCall", draft: Draft) -> Draft:
    """Return the message with its uploaded payload: whole, or as the pieces in which the store has it."""
    number = links.number_of_upload(draft)
    if number is None:
        return draft
    uploaded = await call.peer.uploads[number].finish()
    return replace(draft, payload=uploaded.payload, pieces=uploaded.pieces)


# --- Subscriptions and watches ---------------------------------------------------------------------------------------


async def open_subscription(call: "LinkCall", given: links.OpenSubscriptionCall) -> bytes:
    """Open a subscription, and return its number."""
    subscription = await call.session.subscribe(
        call.ref(given), given.ask, given.prefetch, releases_at_end=given.releases_at_end
    )
    number = call.peer.take_number()
    call.peer.subscriptions[number] = subscription
    return links.write_link_answer(number)


async def next_deliveries(call: "LinkCall", given: links.NextDeliveriesCall) -> bytes:
    """Return the next deliveries of a subscription."""
    subscription = call.peer.subscriptions[given.number]
    deliveries = await call.wait(subscription.next(given.wait_ms)) or []
    if deliveries:
        call.give_back = partial(subscription.give_back, deliveries)
    return write_claimed(deliveries)


async def open_watch(call: "LinkCall", given: links.OpenWatchCall) -> bytes:
    """Open a watch, and return its number."""
    watch = await call.session.watch(call.ref(given))
    number = call.peer.take_number()
    call.peer.watches[number] = watch
    return links.write_link_answer(number)


async def next_news(call: "LinkCall", given: links.NextNewsCall) -> bytes:
    """Wait until a watched queue may have new messages."""
    watch = call.peer.watches[given.number]
    has_news = bool(await call.wait(watch.next(given.wait_ms)))
    return links.write_link_answer(links.News(has_news, watch.is_closed))


async def close(call: "LinkCall", given: links.CloseCall) -> bytes:
    """End an upload, a subscription or a watch."""
    await call.peer.close_stream(given.number)
    return write_nothing()


# --- The server ------------------------------------------------------------------------------------------------------


async def check_store(call: "LinkCall", given: links.CheckStoreCall) -> bytes:
    """Return what is wrong although the store takes calls. Raise `StoreUnavailable` while it cannot be used."""
    return links.write_link_answer(await call.door.backend.check_store())


async def report(call: "LinkCall", given: links.ReportCall) -> bytes:
    """Add the counts of the door process, and return the weights of its tenants."""
    return links.write_link_answer(call.door.reports.take(call.peer.number, given.report))


async def render_metrics(call: "LinkCall", given: links.RenderMetricsCall) -> bytes:
    """Return the metrics of the server in the Prometheus text format."""
    return links.write_link_answer(await call.door.reports.render())


# --- Other store processes -------------------------------------------------------------------------------------------


async def portion(call: "LinkCall", given: links.PortionFrame) -> bytes:
    """Carry out a call between store processes."""
    return await call.door.require_division().carry_out(given)


async def take_tokens(call: "LinkCall", given: links.TakeTokensCall) -> bytes:
    """Take tokens of a tenant's limits."""
    return links.write_link_answer(call.door.require_division().tokens.take(given))


async def scrape(call: "LinkCall", given: links.ScrapeCall) -> bytes:
    """Return the metrics of this store process."""
    return links.write_link_answer(await call.door.require_division().scrape())


# By the type of the call: its handler, and whether the call is short (`FramedCall.run`).
_HANDLERS: Mapping[type[CallFrame], tuple[_LinkHandler, bool]] = {
    links.HeldByCall: (held_by, False),
    links.ReadDeliveredCall: (read_delivered, False),
    links.EnqueueEachCall: (enqueue_each, False),
    links.OpenUploadCall: (open_upload, False),
    links.WriteUploadCall: (write_upload, False),
    links.EnqueueUploadedCall: (enqueue_uploaded, False),
    links.OpenSubscriptionCall: (open_subscription, False),
    links.NextDeliveriesCall: (next_deliveries, False),
    links.OpenWatchCall: (open_watch, False),
    links.NextNewsCall: (next_news, False),
    links.CloseCall: (close, False),
    links.CheckStoreCall: (check_store, False),
    links.ReportCall: (report, True),
    links.RenderMetricsCall: (render_metrics, False),
    links.PortionFrame: (portion, False),
    links.TakeTokensCall: (take_tokens, True),
    links.ScrapeCall: (scrape, False),
}


def handler_of_link(given: CallFrame) -> tuple[Handler, bool]:
    """Return the handler of a call, and whether the call is short."""
    found = _HANDLERS.get(type(given))
    if found is None:
        return handler_of(given)
    handler, is_short = found
    return cast(Callable[[FramedCall, Any], Coroutine[Any, Any, bytes]], handler), is_short
