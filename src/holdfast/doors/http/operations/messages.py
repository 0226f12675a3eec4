"""Handle the hot routes: enqueue, dequeue, verdicts and state documents."""

import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.doors.http.calls import JSON_TYPE, HttpCall, retry_after
from holdfast.doors.http.connections.presence import Presence
from holdfast.doors.http.operations.multipart import PartStream, enqueue_parts
from holdfast.doors.http.operations.shapes import (
    claim_request_of,
    enqueued_out,
    receipts_of,
    results_error,
    verdicts_of,
)
from holdfast.doors.http.request_bodies import CallerLeft, decode
from holdfast.doors.sockets.steps import StepsDone, begin
from holdfast.model.answers import Delivery, Enqueued, Exchanged, Result
from holdfast.model.errors import Conflict, HoldfastError, StaleLease
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.errors import STATUS_BY_CODE, error_document
from holdfast.wire.http.bodies import (
    DequeueAnswer,
    DequeueRequest,
    EnqueueAnswer,
    EnqueueRequest,
    ExchangeRequest,
    ExtendRequest,
    NackRequest,
    ReleaseRequest,
    ResultOut,
    SettleAnswer,
    SettleRequest,
    StateAnswer,
    encode,
)
from holdfast.wire.http.drafts import draft_of
from holdfast.wire.http.routes import bound
from holdfast.wire.http.shapes import delivery_out, result_out
from holdfast.wire.operations import GET, SAVE_STATE
from holdfast.wire.requests import GetRequest

T = TypeVar("T")

_enqueue = msgspec.json.Decoder(EnqueueRequest)
_dequeue = msgspec.json.Decoder(DequeueRequest)
_exchange_request = msgspec.json.Decoder(ExchangeRequest)
_settle = msgspec.json.Decoder(SettleRequest)
_nack = msgspec.json.Decoder(NackRequest)
_release = msgspec.json.Decoder(ReleaseRequest)
_extend = msgspec.json.Decoder(ExtendRequest)
_state = bound("save_state")

# A larger response may remain in the transport's buffer, so it is sent as a stream that waits until it has left.
_WATCHED_BYTES = 64 << 10


async def enqueue(call: HttpCall) -> None:
    """Handle `POST /v1/queue/enqueue`."""
    if call.head.comes_in_parts:
        await _answer_enqueued(call, await enqueue_parts(call))
        return
    request = decode(_enqueue, call.body_at_once() or await call.body())
    ref = call.ref(request.tenant, request.queue)
    drafts = [
        draft_of(message, f"messages[{index}]", call.given_correlation_id)
        for index, message in enumerate(request.messages)
    ]
    work = call.enqueue_traced(ref, drafts) if call.is_traced else call.session.enqueue(ref, drafts)
    await _answer_enqueued(call, await work)


async def _answer_enqueued(call: HttpCall, every: list[Enqueued]) -> None:
    enqueued = [enqueued_out(each) for each in every]
    if len(enqueued) == 1:
        call.take_correlation_id(enqueued[0].correlation_id)
    document = encode(EnqueueAnswer(messages=enqueued))
    if not call.answer_at_once(document):
        await call.answer(document)


# --- Claims --------------------------------------------------------------------------------------------------


async def dequeue(call: HttpCall) -> None:
    """Handle `POST /v1/queue/dequeue`."""
    await _dequeue_messages(call, with_state=False)


async def dequeue_with_state(call: HttpCall) -> None:
    """Handle `POST /v1/queue/dequeueWithState`."""
    await _dequeue_messages(call, with_state=True)


async def _dequeue_messages(call: HttpCall, *, with_state: bool) -> None:
    request = decode(_dequeue, call.body_at_once() or await call.body())
    ref = call.ref(request.tenant, request.queue)
    await claim_and_respond(call, ref, claim_request_of(request, with_state=with_state), request)


async def exchange(call: HttpCall) -> None:
    """Handle `POST /v1/queue/exchange`."""
    request = decode(_exchange_request, call.body_at_once() or await call.body())
    ref = call.ref(request.tenant, request.queue)
    claim_request = claim_request_of(request, with_state=False)
    await claim_and_respond(call, ref, claim_request, request, wait_ms=request.wait_ms)


async def claim_and_respond(
    call: HttpCall, ref: QueueRef, claim_request: ClaimRequest, request: DequeueRequest, *, wait_ms: int | None = 0
) -> None:
    """Settle the request's verdicts, claim messages, and send both.

    `wait_ms` is the time that a claim with verdicts waits once they are settled. Without verdicts the request gives the
    time.
    """
    results: list[ResultOut] | UnsetType = UNSET
    sends_parts = call.head.wants_parts
    if sends_parts:
        call.check_can_stream()
        claim_request = replace(claim_request, streams=True)
    if request.verdicts is not None and (request.verdicts or isinstance(request, ExchangeRequest)):
        results, unsent = await _exchange(call, ref, verdicts_of(request.verdicts), claim_request, wait_ms)
    else:
        unsent = await claim(call, ref, claim_request, request.wait_ms)
    if len(unsent) == 1 and not results:
        call.take_correlation_id(unsent[0].correlation_id)
    try:
        if sends_parts:
            await _send_parts(call, ref, unsent, results)
        else:
            await _send_document(call, unsent, results)
    except BaseException:
        _give_back(call, ref, claim_request, unsent)
        raise


def _give_back(call: HttpCall, ref: QueueRef, claim_request: ClaimRequest, unsent: list[Delivery]) -> None:
    """Give back deliveries that were not sent, except those of a ledger claim, which its consumer can read again."""
    if claim_request.ledger is None:
        call.session.give_back(ref, unsent)


async def settle(call: HttpCall, ref: QueueRef, verdicts: list[Verdict]) -> list[ResultOut]:
    """Carry out verdicts, and return the documents of their results."""
    return _results_out(verdicts, await call.settle(ref, verdicts))


def _results_out(verdicts: list[Verdict], results: list[Result]) -> list[ResultOut]:
    return [result_out(verdict.settle, result) for verdict, result in zip(verdicts, results, strict=True)]


async def _exchange(
    call: HttpCall, ref: QueueRef, verdicts: list[Verdict], claim_request: ClaimRequest, wait_ms: int | None
) -> tuple[list[ResultOut], list[Delivery]]:
    def give_back(unseen: Exchanged) -> None:
        _give_back(call, ref, claim_request, unseen.deliveries)

    work = call.session.exchange(ref, verdicts, claim_request, wait_ms)
    exchanged = await (work if wait_ms == 0 else _while_present(call, work, give_back))
    results, deliveries = exchanged
    call.tracing.settle(call.headers, ref, verdicts, results)
    return _results_out(verdicts, results), _hand_over(call, ref, claim_request, deliveries)


async def claim(call: HttpCall, ref: QueueRef, claim_request: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
    """Claim messages. If the caller leaves meanwhile, give them back and raise `CallerLeft`."""
    if wait_ms == 0:
        # The dispatcher's next pass ends this claim, so watching the caller is not worth it.
        deliveries = await call.session.claim(ref, claim_request, 0)
    else:
        work = call.session.claim(ref, claim_request, wait_ms)
        deliveries = await _while_present(call, work, lambda unseen: _give_back(call, ref, claim_request, unseen))
    return _hand_over(call, ref, claim_request, deliveries)


async def _while_present(call: HttpCall, work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
    """Return the result of a claim that may wait. If the caller leaves, end the claim and pass its result to `undo`."""
    begun = begin(work)
    if isinstance(begun, StepsDone):
        return begun.value
    call.operation += "_wait"
    presence = Presence(call)
    try:
        return await presence.wait(begun.wait(), undo)
    finally:
        presence.close()


def _hand_over(
    call: HttpCall, ref: QueueRef, claim_request: ClaimRequest, deliveries: list[Delivery]
) -> list[Delivery]:
    """Return deliveries that are about to be sent. If the caller has left, give them back and raise `CallerLeft`."""
    if deliveries and call.is_caller_gone:
        _give_back(call, ref, claim_request, deliveries)
        raise CallerLeft
    call.note_deliveries(ref, deliveries)
    return deliveries


async def _send_document(call: HttpCall, unsent: list[Delivery], results: list[ResultOut] | UnsetType) -> None:
    await send_watched(call, encode(DequeueAnswer(messages=[delivery_out(each) for each in unsent], results=results)))


async def send_watched(call: HttpCall, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send deliveries. Raise `CallerLeft` if they cannot have reached the caller whole, so that they can be given back.

    The body is JSON, unless `headers` give another type.
    """
    if len(body) <= _WATCHED_BYTES:
        if headers or not call.answer_at_once(body):
            await call.answer(body, headers=headers)
    else:
        await call.start_stream([*(headers or (JSON_TYPE,)), (b"content-length", str(len(body)).encode())])
        await call.stream(body)
        await call.end_stream()


async def _send_parts(
    call: HttpCall, ref: QueueRef, unsent: list[Delivery], results: list[ResultOut] | UnsetType
) -> None:
    stream = PartStream(call, ref)
    await stream.start()
    while unsent:
        await stream.send(unsent[0])
        del unsent[0]
    if results is not UNSET:
        await stream.send_results(results)
    await stream.end()


# --- Verdicts ------------------------------------------------------------------------------------------------


async def ack(call: HttpCall) -> None:
    """Handle `POST /v1/queue/ack`."""
    await _settle_all(call, Settle.ACK, decode(_settle, call.body_at_once() or await call.body()))


async def release(call: HttpCall) -> None:
    """Handle `POST /v1/queue/release`."""
    request = decode(_release, await call.body())
    await _settle_all(call, Settle.UNSEND if request.unseen else Settle.RELEASE, request)


async def remove(call: HttpCall) -> None:
    """Handle `POST /v1/queue/remove`. Unlike removal by an operator, it needs the lease and the scope of an ack."""
    await _settle_all(call, Settle.REMOVE, decode(_settle, await call.body()))


async def _settle_all(call: HttpCall, kind: Settle, request: SettleRequest) -> None:
    """Settle all receipts of a request by the same verdict, without options."""
    ref = call.ref(request.tenant, request.queue)
    receipts = [each if isinstance(each, str) else each.receipt for each in request.receipts]
    verdicts = [Verdict(settle=kind, receipt=Receipt.parse(each)) for each in receipts]
    await send_results(call, kind, await call.settle(ref, verdicts))


async def nack(call: HttpCall) -> None:
    """Handle `POST /v1/queue/nack`."""
    request = decode(_nack, await call.body())
    ref = call.ref(request.tenant, request.queue)
    verdicts = [
        Verdict(
            settle=Settle.NACK,
            receipt=Receipt.parse(each.receipt),
            error=request.error if each.error is None else each.error,
            delay_ms=request.delay_ms if each.delay_ms is None else each.delay_ms,
            defer=request.defer or each.defer,
            final=request.final or each.final,
            exhausted=request.exhausted or each.exhausted,
        )
        for each in receipts_of(request.receipts)
    ]
    await send_results(call, Settle.NACK, await call.settle(ref, verdicts))


async def extend(call: HttpCall) -> None:
    """Handle `POST /v1/queue/extend`."""
    request = decode(_extend, await call.body())
    ref = call.ref(request.tenant, request.queue)
    verdicts = [
        Verdict(
            settle=Settle.EXTEND,
            receipt=Receipt.parse(each.receipt),
            lease_ms=request.lease_ms if each.lease_ms is None else each.lease_ms,
        )
        for each in receipts_of(request.receipts)
    ]
    await send_results(call, Settle.EXTEND, await call.settle(ref, verdicts))


async def send_results(call: HttpCall, kind: Settle, results: list[Result]) -> None:
    """Send results: with 503 if any verdict could not be written, else with 409 if any receipt is stale, else with 200.

    Each result says whether its verdict was carried out; the others took effect. 503 takes precedence over 409, so that
    a caller that looks only at the status repeats the call. That settles the remaining messages and does not affect
    those that are settled or stale.
    """
    outs = [result_out(kind, result) for result in results]
    if len(outs) == 1:
        call.take_correlation_id(outs[0].correlation_id)
    if (error := results_error(results)) is None:
        document = encode(SettleAnswer(results=outs))
        if not call.answer_at_once(document):
            await call.answer(document)
    else:
        answer = SettleAnswer(results=outs, error=error_document(error))
        await call.answer(encode(answer), STATUS_BY_CODE[error.code], [JSON_TYPE, *retry_after(error)])


# --- State documents -----------------------------------------------------------------------------------------


async def save_state(call: HttpCall) -> None:
    """Handle `PUT /v1/queue/state`."""
    document = decode(_state.decoder, await call.body())
    ref = call.ref(document.tenant, document.queue)
    request = _state.read(ref, {}, document)
    try:
        saved = await call.session.call(SAVE_STATE, ref, request)
    except (StaleLease, Conflict):
        with contextlib.suppress(HoldfastError):  # the message may be gone: the call keeps its own correlation id
            message = await call.session.call(GET, ref, GetRequest(id=request.receipt.id))
            call.take_correlation_id(message.correlation_id)
        raise
    call.take_correlation_id(saved.correlation_id)
    await call.answer(encode(StateAnswer(etag=saved.etag)))
