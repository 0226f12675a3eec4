"""The codec of HTTP: requests as JSON or multipart forms, and responses read from JSON."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.failures import error_of_response, unexpected_response
from holdfast.client.http.response import HttpReply
from holdfast.client.http.shapes import enqueued_of, receipt_in, verdict_in
from holdfast.client.http.uploads import PATH, HttpUpload, MultipartForm
from holdfast.model.answers import Delivery, Enqueued, Exchanged, JournalEvents, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.http.admin_bodies import JournalEventOut
from holdfast.wire.http.bodies import (
    PAYLOAD_BYTES,
    DequeueAnswer,
    DequeueRequest,
    EnqueueAnswer,
    EnqueueRequest,
    ExtendRequest,
    LedgerClaimRequest,
    NackRequest,
    PayloadRequest,
    ReleaseRequest,
    ResultOut,
    SettleAnswer,
    SettleRequest,
    encode,
)
from holdfast.wire.http.bodies import QueueRequest as Document
from holdfast.wire.http.drafts import is_json, is_plain, message_in
from holdfast.wire.http.routes import RouteBinding, bound
from holdfast.wire.http.shapes import delivery_of, event_of, result_of
from holdfast.wire.operation import Operation

# Queues whose document prefix is cached.
_MAX_STARTS = 1_000
# Payloads above this size are sent as multipart, because base64 would make them a third larger.
_PARTS_ABOVE = 64 << 10

_enqueued = msgspec.json.Decoder(EnqueueAnswer)
_dequeued = msgspec.json.Decoder(DequeueAnswer)
_settled = msgspec.json.Decoder(SettleAnswer)
_events = msgspec.json.Decoder(JournalEventOut)
_PAYLOAD_BYTES = PAYLOAD_BYTES.lower().encode()


class HttpCodec:
    """The codec of a client over HTTP."""

    verdicts_on_claim = frozenset({Settle.ACK, Settle.NACK, Settle.RELEASE})
    mixes_verdicts = False
    max_wait_ms = MAX_MS
    max_shared_bytes = _PARTS_ABOVE

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls
        self._url = calls.url
        # By queue: the document that enqueues a single message, up to its payload.
        self._starts: dict[QueueRef, bytes] = {}

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> HttpRequest:
        if len(drafts) == 1 and is_plain(drafts[0]):
            start = self._starts.get(ref) or self._start(ref)
            return HttpRequest("POST", PATH, [b"%b%b}]}" % (start, drafts[0].payload)], is_repeatable=False)
        is_repeatable = all(draft.key is not None for draft in drafts)
        if len(drafts) == 1 and len(drafts[0].payload) > _PARTS_ABOVE and not is_json(drafts[0]):
            form = MultipartForm(ref, drafts[0])
            parts = [form.before, drafts[0].payload, form.after]
            return HttpRequest("POST", PATH, parts, content_type=form.content_type, is_repeatable=is_repeatable)
        document = EnqueueRequest(tenant=ref.tenant, queue=ref.queue, messages=[message_in(each) for each in drafts])
        return HttpRequest("POST", PATH, [encode(document)], is_repeatable=is_repeatable, is_shared=is_shared)

    def _start(self, ref: QueueRef) -> bytes:
        empty = encode(EnqueueRequest(tenant=ref.tenant, queue=ref.queue, messages=[]))
        if len(self._starts) >= _MAX_STARTS:
            self._starts.clear()
        start = self._starts[ref] = empty.removesuffix(b"]}") + b'{"payload":'
        return start

    def enqueued(self, response: HttpReply) -> list[Enqueued]:
        try:
            return list(map(enqueued_of, _enqueued.decode(response.body).messages))
        except msgspec.DecodeError:
            raise unexpected_response(self._url) from None

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> HttpUpload:
        """Return an upload, which sends its first byte when a part is written."""
        return HttpUpload(self._calls, ref, draft, size)

    # --- Claims ----------------------------------------------------------------------------------------------------

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        on_late: Callable[[HttpReply], Awaitable[None]],
    ) -> HttpRequest:
        document = DequeueRequest(
            tenant=ref.tenant,
            queue=ref.queue,
            limit=ask.limit,
            wait_ms=wait_ms,
            lease_ms=ask.lease_ms,
            owner=ask.owner,
            verdicts=[verdict_in(each) for each in verdicts] if verdicts else None,
            payloads_apart=ask.streams,
        )
        path = "/v1/queue/dequeueWithState" if ask.with_state else "/v1/queue/dequeue"
        if verdicts and wait_ms != 0:
            path = "/v1/queue/exchange"
        if ask.ledger is None:
            return HttpRequest("POST", path, [encode(document)], wait_ms=wait_ms, on_late=on_late)
        # The messages of a numbered claim stay claimed: the consumer reads them again by the number.
        consumer, number = ask.ledger
        numbered = LedgerClaimRequest(
            consumer=consumer, number=number, with_state=ask.with_state, **msgspec.structs.asdict(document)
        )
        return HttpRequest("POST", "/v1/queue/ledger/claim", [encode(numbered)], wait_ms=wait_ms)

    def waits_with_verdicts(self, ask: ClaimRequest) -> bool:
        return not ask.with_state and ask.ledger is None  # the path of an exchange claims neither

    def claimed(self, response: HttpReply, verdicts: list[Verdict]) -> Exchanged:
        document = self._dequeued(response)
        results = [] if document.results is UNSET else document.results
        if len(results) != len(verdicts):
            raise unexpected_response(self._url)
        return Exchanged(
            [_result_of(*pair) for pair in zip(verdicts, results, strict=True)],
            [delivery_of(each) for each in document.messages],
        )

    def deliveries(self, response: HttpReply) -> list[Delivery]:
        return [delivery_of(each) for each in self._dequeued(response).messages]

    def _dequeued(self, response: HttpReply) -> DequeueAnswer:
        try:
            return _dequeued.decode(response.body)
        except msgspec.DecodeError:
            raise unexpected_response(self._url) from None

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> HttpRequest:
        document = PayloadRequest(tenant=ref.tenant, queue=ref.queue, receipt=str(receipt), offset=offset, limit=limit)
        return HttpRequest("POST", "/v1/queue/payload", [encode(document)])

    def part(self, response: HttpReply) -> PayloadPart:
        total = response.headers.get(_PAYLOAD_BYTES, b"")
        if not total.isdigit():
            raise unexpected_response(self._url)
        return PayloadPart(response.body, int(total), response.headers.get(b"x-correlation-id", b"").decode("latin-1"))

    # --- Verdicts --------------------------------------------------------------------------------------------------

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> HttpRequest:
        path, document = _settling(ref, verdicts[0].settle if verdicts else Settle.ACK, verdicts)
        return HttpRequest("POST", path, [encode(document)], is_last=is_last, has_results=True)

    def settled(self, response: HttpReply, verdicts: list[Verdict]) -> list[Result]:
        if response.status not in (200, 409, 503):
            raise error_of_response(self._url, response)
        try:
            outs = _settled.decode(response.body).results
        except msgspec.DecodeError:  # if the whole call is refused, there are no results
            raise error_of_response(self._url, response) from None
        if len(outs) != len(verdicts):
            raise unexpected_response(self._url)
        return [_result_of(*pair) for pair in zip(verdicts, outs, strict=True)]

    # --- Other operations ------------------------------------------------------------------------------------------

    def operate(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> HttpRequest:
        binding = _binding_of(operation, request)
        path, body = binding.write(ref, request)
        return HttpRequest(binding.route.method, path, [] if body is None else [body], is_long=operation.is_long)

    def operated(self, operation: Operation[Any, Any], request: Any, response: HttpReply) -> Any:
        shape = _binding_of(operation, request).route.answer
        try:
            return _events_of(response) if shape is None else shape.read(response.body)
        except msgspec.DecodeError:
            raise unexpected_response(self._url) from None


def _binding_of(operation: Operation[Any, Any], request: Any) -> RouteBinding[Any]:
    """Return the route of an operation; one with several routes has one for each value of a field."""
    for number, route in enumerate(operation.routes):
        if all(getattr(request, name) == value for name, value in route.fixed.items()):
            return bound(operation.name, number)
    raise AssertionError(f"{operation.name} has no route for {request!r}")


def _events_of(response: HttpReply) -> JournalEvents:
    """Return the events of a journal response, which unlike all others has one document in each line."""
    events = JournalEvents(event_of(each) for each in _events.decode_lines(response.body))
    events.next = response.headers.get(b"x-journal-next", b"").decode()
    return events


def _result_of(verdict: Verdict, out: ResultOut) -> Result:
    return result_of(verdict.settle, out, verdict.receipt.id)


def _settling(ref: QueueRef, kind: Settle, verdicts: list[Verdict]) -> tuple[str, Document]:
    receipts = [receipt_in(each) for each in verdicts]
    tenant, queue = ref
    match kind:
        case Settle.ACK | Settle.REMOVE:
            return f"/v1/queue/{kind}", SettleRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.NACK:
            return "/v1/queue/nack", NackRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.EXTEND:
            return "/v1/queue/extend", ExtendRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.RELEASE | Settle.UNSEND:
            is_unseen = kind is Settle.UNSEND
            return "/v1/queue/release", ReleaseRequest(tenant=tenant, queue=queue, receipts=receipts, unseen=is_unseen)
