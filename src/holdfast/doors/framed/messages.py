"""Handle the hot calls on messages, and the operations that are called by name."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.doors.framed.call import FramedCall
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.message import Draft, normalise_correlation_id
from holdfast.model.names import DEFAULT, QueueRef, parse_name
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.wire.framed.answers import write_claimed, write_enqueued, write_part, write_results
from holdfast.wire.framed.calls import (
    NAMED,
    CallFrame,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    ReadPartCall,
    SettleCall,
    operation_of,
)
from holdfast.wire.operation import Target

# --- Enqueue ---------------------------------------------------------------------------------------------------------


async def enqueue(call: FramedCall, given: EnqueueCall) -> bytes:
    """Enqueue messages."""
    ref = call.ref(given)
    return write_enqueued(await enqueue_drafts(call, ref, with_correlation_ids(call, [*given.drafts])))


def enqueue_drafts(call: FramedCall, ref: QueueRef, drafts: list[Draft]) -> Coroutine[Any, Any, list[Enqueued]]:
    """Enqueue messages, in the caller's trace if it has one."""
    if call.tracing.is_on or call.headers:
        return _enqueue_traced(call, ref, drafts)
    return call.session.enqueue(ref, drafts)


async def _enqueue_traced(call: FramedCall, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
    with call.tracing.enqueue(call.headers, ref, drafts) as (carrying, record):
        enqueued = await call.session.enqueue(ref, carrying)
        record(enqueued)
        return enqueued


def with_correlation_ids(call: FramedCall, drafts: list[Draft]) -> list[Draft]:
    """Return the drafts, with the call's correlation id where they have no valid one of their own."""
    if call.correlation_id is None and not [each for each in drafts if each.correlation_id is not None]:
        return drafts
    return [
        replace(each, correlation_id=normalise_correlation_id(each.correlation_id) or call.correlation_id)
        for each in drafts
    ]


# --- Claims ----------------------------------------------------------------------------------------------------------


async def claim(call: FramedCall, given: ClaimCall) -> bytes:
    """Claim messages, waiting for them as the call says."""
    ref = call.ref(given)
    deliveries = await _claim(call, ref, given.ask, given.wait_ms)
    _hold(call, ref, given.ask, deliveries)
    return write_claimed(deliveries)


async def exchange(call: FramedCall, given: ExchangeCall) -> bytes:
    """Carry out verdicts and claim messages. The wait for messages begins once the verdicts are settled."""
    ref, verdicts = call.ref(given), [*given.verdicts]
    results, deliveries = await call.session.exchange(ref, [*verdicts], given.ask)
    call.tracing.settle(call.headers, ref, verdicts, results)
    if not deliveries and given.wait_ms != 0:
        try:
            deliveries = await _claim(call, ref, given.ask, given.wait_ms)
        except HoldfastError:
            # The verdicts are durable, so their results must be returned.
            if not verdicts:
                raise
    _hold(call, ref, given.ask, deliveries)
    return write_claimed(deliveries, results)


async def _claim(call: FramedCall, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
    if wait_ms == 0:
        return await call.session.claim(ref, ask, 0)  # the dispatcher's next pass ends this claim, so it needs no task
    call.connection.release_bytes(call)
    work = call.session.claim(ref, ask, wait_ms)
    return await call.wait(work, measured_as=call.operation + "_wait") or []


def _hold(call: FramedCall, ref: QueueRef, ask: ClaimRequest, deliveries: list[Delivery]) -> None:
    """Give deliveries back if their response is not sent, except those of a ledger claim, which can be read again."""
    if deliveries:
        if ask.ledger is None:
            call.give_back = partial(call.session.give_back, ref, deliveries)
        call.tracing.deliver(call.headers, ref, deliveries)


async def read_part(call: FramedCall, given: ReadPartCall) -> bytes:
    """Read part of the payload of a message that the caller holds."""
    return write_part(await call.session.read_part(call.ref(given), given.receipt, given.offset, given.limit))


# --- Verdicts --------------------------------------------------------------------------------------------------------


async def settle(call: FramedCall, given: SettleCall) -> bytes:
    """Carry out verdicts."""
    ref = call.ref(given)
    verdicts: list[Verdict] = [*given.verdicts]
    results = await call.session.settle(ref, verdicts)
    call.tracing.settle(call.headers, ref, verdicts, results)
    return write_results(results)


# --- Operations by name ----------------------------------------------------------------------------------------------


async def operate(call: FramedCall, given: CallFrame) -> bytes:
    """Carry out the operation that the call names."""
    binding = NAMED[operation_of(given)]
    operation = binding.operation
    match operation.target:
        case Target.QUEUE:
            ref = call.ref(given)
        case Target.TENANT:
            ref = QueueRef(parse_name("tenant", given.tenant or call.session.caller.own_tenant), DEFAULT)
        case Target.SERVER:
            ref = QueueRef()
    work = call.session.call(operation, ref, binding.request(given, ref))
    if not any(route.ends_with_caller for route in operation.routes):
        return binding.write_answer(await work)
    # Completed steps stay done, and a repeated call continues there.
    answer = await call.wait(work)
    if answer is None:
        raise cancelled()
    return binding.write_answer(answer)


def cancelled() -> StoreUnavailable:
    """Return the error of a call that its caller has cancelled."""
    return StoreUnavailable("the caller cancelled this call before it was complete", cancelled=True)
