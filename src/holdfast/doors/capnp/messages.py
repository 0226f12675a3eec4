"""The methods on messages: add, poll, verdicts, and payloads in parts."""

import asyncio
import contextlib
from typing import Any

from holdfast.doors.capnp.answers import claim_with_room, read_with_room, take_room
from holdfast.doors.capnp.calls import CapnpCall
from holdfast.doors.capnp.shapes import (
    claim_request_of,
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
    """Enqueue messages."""
    call.read_context()
    ref = call.ref()
    write_enqueued(call.results, await enqueue(call, ref, drafts_of(call.params, call.correlation_id)))


async def enqueue(call: CapnpCall, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
    """Enqueue messages, in the caller's trace if it has one."""
    if not call.tracing.is_on and not call.headers:
        return await call.session.enqueue(ref, drafts)
    with call.tracing.enqueue(call.headers, ref, drafts) as (carrying, note):
        enqueued = await call.session.enqueue(ref, carrying)
        note(enqueued)
        return enqueued


async def begin_upload(call: CapnpCall) -> tuple[PayloadStream, QueueRef]:
    """Begin the upload of a message's payload, and return it with its queue."""
    call.read_context()
    ref = call.ref()
    draft = draft_with(call.params.options, call.correlation_id)
    upload = await call.session.upload(ref, draft)
    call.connection.uploads.add(upload)
    return upload, ref


# --- Poll ----------------------------------------------------------------------------------------------------------


async def poll(call: CapnpCall) -> None:
    """Carry out verdicts, if there are any, and claim messages."""
    call.read_context()
    params = call.params
    ref, claim_request = call.ref(), claim_request_of(params)
    results: list[Result] | None = None
    if len(params.verdicts):
        verdicts = await _verdicts(call, ref, params.verdicts)
        # Verdicts are not held back, and must be carried out once. Without room there is no delivery beside them.
        results, claimed = await call.session.exchange(ref, verdicts, claim_request)
        call.tracing.settle(call.headers, ref, verdicts, results)
        deliveries = take_room(call, ref, claim_request, claimed)
    else:
        deliveries = await claim_with_room(
            call,
            ref,
            claim_request,
            lambda wait_ms: _claim(call, ref, claim_request, wait_ms),
            None if params.waitMs == FOR_EVER else params.waitMs,
        )
    # Nothing is awaited from here on. If the caller leaves now, its connection is lost, which gives deliveries back.
    if deliveries and claim_request.ledger is None:
        mark = str(deliveries[0].receipt).encode()
        call.connection.stream.hold(mark, lambda: call.session.give_back(ref, deliveries))
    call.tracing.deliver(call.headers, ref, deliveries)
    write_deliveries(call.results, deliveries)
    if results is not None:
        write_results(call.results, results)


async def _claim(call: CapnpCall, ref: QueueRef, claim_request: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
    if wait_ms == 0:
        return await call.session.claim(ref, claim_request, 0)
    call.operation = "claim_wait"
    ticket = call.params.ticket
    if not ticket:
        return await call.session.claim(ref, claim_request, wait_ms)
    if ticket in call.connection.tickets:
        raise InvalidArgument(f"ticket {ticket} is used by a waiting poll; give each poll its own ticket")
    working = asyncio.ensure_future(call.session.claim(ref, claim_request, wait_ms))
    call.connection.tickets[ticket] = working
    try:
        await asyncio.wait((working,))
    except BaseException:
        # A claim that is cancelled while it waits undoes itself. One that has just finished is undone here.
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((working,))
        if claim_request.ledger is None and not working.cancelled() and working.exception() is None:
            call.session.give_back(ref, working.result())
        raise
    finally:
        del call.connection.tickets[ticket]
    return [] if working.cancelled() else working.result()


async def read_part(call: CapnpCall) -> None:
    """Read part of the payload of a message that the caller holds."""
    params = call.params
    ref = call.ref()
    receipt, offset, limit = Receipt.parse(params.receipt), params.offset, params.limit
    part = await read_with_room(
        call, lambda: call.session.read_part(ref, receipt, offset, limit), lambda part: len(part.data)
    )
    call.results.data = part.data
    call.results.total = part.total
    call.results.correlationId = part.correlation_id


# --- Verdicts ------------------------------------------------------------------------------------------------------


async def settle(call: CapnpCall) -> None:
    """Carry out several verdicts."""
    call.read_context()
    ref = call.ref()
    verdicts = await _verdicts(call, ref, call.params.verdicts)
    write_results(call.results, await _settle(call, ref, verdicts))


async def ack(call: CapnpCall) -> None:
    """Acknowledge one message."""
    await _settle_one(call, Settle.ACK)


async def remove(call: CapnpCall) -> None:
    """Remove one message that the caller holds."""
    await _settle_one(call, Settle.REMOVE)


async def release(call: CapnpCall) -> None:
    """Return one message to the queue, uncounted."""
    await _settle_one(call, Settle.RELEASE)


async def extend(call: CapnpCall) -> None:
    """Extend the lease of one message."""
    await _settle_one(call, Settle.EXTEND, lease_ms=call.params.extendMs or None)


async def nack(call: CapnpCall) -> None:
    """Report one message as failed."""
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
    """Return the given receipt or, if only a message id is given, the receipt that the caller holds for it.

    Raise `InvalidArgument` if neither is given or they differ, and `StaleLease` if the caller holds no such message.
    """
    receipt = Receipt.parse(given.receipt) if given.receipt else None
    if not given.messageId:
        if receipt is None:
            raise InvalidArgument("receipt and messageId are both missing; give one of them", field="receipt")
        return receipt
    id = id_of(given.messageId)
    if receipt is None:
        try:
            return await call.session.held_by(ref, id)
        except QueueNotFound:
            raise _not_held(id) from None  # the message was deleted with its queue
    if receipt.id != id:
        raise InvalidArgument("the receipt belongs to another message than messageId", field="receipt")
    return receipt


async def _settle(call: CapnpCall, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
    results = await call.session.settle(ref, verdicts)
    call.tracing.settle(call.headers, ref, verdicts, results)
    return results


def _not_held(id: int) -> StaleLease:
    uuid = to_uuid(id)
    return StaleLease(f"this caller does not hold message {uuid}, or the message no longer exists", id=uuid)
