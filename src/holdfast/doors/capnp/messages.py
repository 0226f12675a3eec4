"""The methods on messages: add, poll, verdicts, payloads in parts."""

import asyncio
import contextlib
from typing import Any

from holdfast.doors.capnp.calls import CapnpCall
from holdfast.doors.capnp.shapes import (
    ask_of,
    draft_with,
    drafts_of,
    id_of,
    verdict_of,
    write_deliveries,
    write_enqueued,
    write_results,
)
from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import InvalidArgument, QueueNotFound, StaleLease
from holdfast.model.ids import to_uuid
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.service.uploads import PayloadStream
from holdfast.wire.capnp.schema import FOR_EVER

# --- Add -----------------------------------------------------------------------------------------------------------


async def add(call: CapnpCall) -> None:
    call.read_context()
    ref = call.ref()
    write_enqueued(call.results, await enqueue(call, ref, drafts_of(call.params, call.correlation_id)))


async def enqueue(call: CapnpCall, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
    """In the caller's trace, if it has one."""
    if not call.tracing.is_on and not call.headers:
        return await call.session.enqueue(ref, drafts)
    with call.tracing.enqueue(call.headers, ref, drafts) as (carrying, tell):
        enqueued = await call.session.enqueue(ref, carrying)
        tell(enqueued)
        return enqueued


async def begin_upload(call: CapnpCall) -> tuple[PayloadStream, QueueRef]:
    call.read_context()
    ref = call.ref()
    draft = draft_with(call.params.options, call.correlation_id)
    upload = await call.session.upload(ref, draft)
    call.connection.uploads.add(upload)
    return upload, ref


# --- Poll ----------------------------------------------------------------------------------------------------------


async def poll(call: CapnpCall) -> None:
    call.read_context()
    params = call.params
    ref, ask = call.ref(), ask_of(params)
    results: list[Result] | None = None
    if len(params.verdicts):
        verdicts = await _verdicts(call, ref, params.verdicts)
        results, deliveries = await call.session.exchange(ref, verdicts, ask)
        call.tracing.settle(call.headers, ref, verdicts, results)
    else:
        deliveries = await _claim(call, ref, ask, None if params.waitMs == FOR_EVER else params.waitMs)
    # From here on nothing is awaited: a caller that leaves now loses its connection, which gives back.
    if deliveries and ask.ledger is None:
        mark = str(deliveries[0].receipt).encode()
        call.connection.stream.hold(mark, lambda: call.session.give_back(ref, deliveries))
    call.tracing.deliver(call.headers, ref, deliveries)
    write_deliveries(call.results, deliveries)
    if results is not None:
        write_results(call.results, results)


async def _claim(call: CapnpCall, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
    if wait_ms == 0:
        return await call.session.claim(ref, ask, 0)
    call.operation = "claim_wait"
    ticket = call.params.ticket
    if not ticket:
        return await call.session.claim(ref, ask, wait_ms)
    if ticket in call.connection.tickets:
        raise InvalidArgument(f"ticket {ticket} is that of a poll that waits already: give each its own")
    working = asyncio.ensure_future(call.session.claim(ref, ask, wait_ms))
    call.connection.tickets[ticket] = working
    try:
        await asyncio.wait((working,))
    except BaseException:
        # Cut off while it waits, it undoes itself; what was done by then is undone here.
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((working,))
        if ask.ledger is None and not working.cancelled() and working.exception() is None:
            call.session.give_back(ref, working.result())
        raise
    finally:
        del call.connection.tickets[ticket]
    return [] if working.cancelled() else working.result()


async def read_part(call: CapnpCall) -> None:
    params = call.params
    ref = call.ref()
    part = await call.session.read_part(ref, Receipt.parse(params.receipt), params.offset, params.limit)
    call.results.data = part.data
    call.results.total = part.total
    call.results.correlationId = part.correlation_id


# --- Verdicts ------------------------------------------------------------------------------------------------------


async def settle(call: CapnpCall) -> None:
    call.read_context()
    ref = call.ref()
    verdicts = await _verdicts(call, ref, call.params.verdicts)
    write_results(call.results, await _settle(call, ref, verdicts))


async def ack(call: CapnpCall) -> None:
    await _settle_one(call, Settle.ACK)


async def remove(call: CapnpCall) -> None:
    """Of a message that its caller holds."""
    await _settle_one(call, Settle.REMOVE)


async def release(call: CapnpCall) -> None:
    await _settle_one(call, Settle.RELEASE)


async def extend(call: CapnpCall) -> None:
    await _settle_one(call, Settle.EXTEND, lease_ms=call.params.extendMs or None)


async def nack(call: CapnpCall) -> None:
    params = call.params
    await _settle_one(
        call,
        Settle.NACK,
        error=params.error if params._has("error") else None,
        delay_ms=None if params.delayMs == -1 else params.delayMs,
        defer=params.defer,
        final=params.final,
    )


async def _settle_one(call: CapnpCall, kind: Settle, **more: Any) -> None:
    ref = call.ref()
    receipt = await _receipt(call, ref, call.params)
    results = await _settle(call, ref, [Verdict(settle=kind, receipt=receipt, **more)])
    write_results(call.results, results)
    if not results[0].ok:
        raise _not_held(receipt.id) if results[0].is_stale else results[0].failure()


async def _verdicts(call: CapnpCall, ref: QueueRef, given: Any) -> list[Verdict]:
    return [verdict_of(each, await _receipt(call, ref, each)) for each in given]


async def _receipt(call: CapnpCall, ref: QueueRef, given: Any) -> Receipt:
    """By its receipt, or as what the caller holds by the message's id alone."""
    receipt = Receipt.parse(given.receipt) if given.receipt else None
    if not given.messageId:
        if receipt is None:
            raise InvalidArgument("say which message: give its receipt, or its messageId", field="receipt")
        return receipt
    id = id_of(given.messageId)
    if receipt is None:
        try:
            return await call.session.held_by(ref, id)
        except QueueNotFound:
            raise _not_held(id) from None  # gone with its queue
    if receipt.id != id:
        raise InvalidArgument("the receipt is of another message than messageId says", field="receipt")
    return receipt


async def _settle(call: CapnpCall, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
    results = await call.session.settle(ref, verdicts)
    call.tracing.settle(call.headers, ref, verdicts, results)
    return results


def _not_held(id: int) -> StaleLease:
    uuid = to_uuid(id)
    return StaleLease(f"message {uuid} is no longer held by this caller, or is gone", id=uuid)
