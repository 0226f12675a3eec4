"""Traces that cross the queue.

The context given at enqueue travels in the message's own headers, tracing or not, so that a handler can go on with its
producer's trace. With tracing on the server adds spans to it: `enqueue` when the message came in, whose context the
message then carries; `claim` each time it is delivered, and `ack`, `nack`, `extend`, `release` for each verdict, all in
the trace of the message. A claim or a verdict that came with a context of its own is linked to that.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    TraceState,
)

from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.telemetry.w3c import TRACEPARENT, TRACESTATE, Parent, parent_of, parse_parent

# Messages in flight whose traces are remembered, for their verdicts: a receipt says nothing of them.
_MAX_REMEMBERED = 50_000


class Tracing:
    """Without a tracer it makes no spans, and only carries what it is given."""

    def __init__(self, provider: TracerProvider | None = None, shut_down: Callable[[], None] = lambda: None) -> None:
        self._tracer: Tracer | None = None if provider is None else provider.get_tracer("holdfast")
        self.is_on = provider is not None
        # Sends what is still to be sent; may block for seconds.
        self.shut_down = shut_down
        self._in_flight: OrderedDict[int, SpanContext] = OrderedDict()

    # --- Enqueue -----------------------------------------------------------------------------------------------

    @contextmanager
    def enqueue(
        self, request: Mapping[bytes, bytes], ref: QueueRef, drafts: list[Draft]
    ) -> Iterator[tuple[list[Draft], Callable[[Sequence[Enqueued]], None]]]:
        """Around the call: gives the drafts as they are to be enqueued, and what to tell of the answer.

        `request` are the caller's headers, names in lower case. A message whose own headers have a context keeps it;
        the others get the span's, or the caller's where there is no span.
        """
        given = _parent_of_request(request)
        if self._tracer is None:
            yield (drafts if given is None else _carrying(drafts, given)), _tell_nobody
            return
        own = [parent for draft in drafts if (parent := parent_of(draft.headers)) is not None]
        span = self._tracer.start_span(
            f"enqueue {ref.queue}",
            _context(given),
            SpanKind.PRODUCER,
            {**_about(ref, "enqueue", "send"), "messaging.batch.message_count": len(drafts)},
            [Link(_span_context(parent)) for parent in own[:_MAX_LINKS]],
        )
        with _ending(span):
            carried = _parent_of_span(span)
            yield (drafts if carried is None else _carrying(drafts, carried)), lambda answers: _tell(span, answers)

    # --- Claim -------------------------------------------------------------------------------------------------

    def deliver(self, request: Mapping[bytes, bytes], ref: QueueRef, deliveries: Sequence[Delivery]) -> None:
        """Of each message that carries a context: it was handed to a claimer."""
        if self._tracer is None:
            return
        claimer = _links(_parent_of_request(request))
        for delivery in deliveries:
            parent = parent_of(delivery.headers)
            if parent is None:
                continue
            span = self._tracer.start_span(
                f"claim {ref.queue}",
                _context(parent),
                SpanKind.CONSUMER,
                {
                    **_about(ref, "claim", "receive"),
                    "messaging.message.id": delivery.id,
                    "messaging.message.conversation_id": delivery.correlation_id,
                    "messaging.message.body.size": delivery.bytes,
                    "holdfast.attempt": delivery.attempt,
                    "holdfast.version": delivery.receipt.version,
                },
                [Link(_span_context(parent)), *claimer],
            )
            span.end()
            self._remember(delivery.snowflake, span.get_span_context())

    # --- Verdicts ----------------------------------------------------------------------------------------------

    def settle(
        self, request: Mapping[bytes, bytes], ref: QueueRef, verdicts: Sequence[Verdict], results: Sequence[Result]
    ) -> None:
        """Of each verdict: in the trace of its message where that is known, else in the caller's."""
        if self._tracer is None:
            return
        given = _parent_of_request(request)
        for verdict, result in zip(verdicts, results, strict=True):
            known = self._in_flight.get(result.snowflake)
            if known is None and given is None:
                continue
            name = verdict.settle.value
            span = self._tracer.start_span(
                f"{name} {ref.queue}",
                _context(given) if known is None else trace.set_span_in_context(NonRecordingSpan(known), Context()),
                SpanKind.CLIENT,
                {**_about(ref, name, "settle"), "messaging.message.id": result.id},
                [] if known is None else _links(given),
            )
            if result.correlation_id is not None:
                span.set_attribute("messaging.message.conversation_id", result.correlation_id)
            if not result.ok:
                _fail(span, result.error or "internal")
            elif result.lease_expires_at is None:
                self._in_flight.pop(result.snowflake, None)  # it is in flight no more
            span.end()

    def _remember(self, snowflake: int, context: SpanContext) -> None:
        self._in_flight[snowflake] = context
        self._in_flight.move_to_end(snowflake)
        if len(self._in_flight) > _MAX_REMEMBERED:
            self._in_flight.popitem(last=False)


_MAX_LINKS = 100


def global_provider() -> TracerProvider | None:
    """The one that was set up before us, as `opentelemetry-instrument` does; None if nobody did."""
    provider = trace.get_tracer_provider()
    is_real = not isinstance(provider, ProxyTracerProvider | trace.NoOpTracerProvider)
    return provider if is_real else None


# --- Contexts ------------------------------------------------------------------------------------------------------


def _parent_of_request(headers: Mapping[bytes, bytes]) -> Parent | None:
    raw = headers.get(b"traceparent")
    if raw is None:
        return None
    return parse_parent(raw.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1"))


def _carrying(drafts: list[Draft], parent: Parent) -> list[Draft]:
    """The drafts with this context in their headers, but those that have one of their own."""
    carried = {TRACEPARENT: parent.traceparent, **({TRACESTATE: parent.tracestate} if parent.tracestate else {})}
    return [
        draft if draft.headers and parent_of(draft.headers) else replace(draft, headers=_with(draft.headers, carried))
        for draft in drafts
    ]


def _with(headers: Mapping[str, str], carried: dict[str, str]) -> dict[str, str]:
    # A tracestate belongs to its traceparent: one without is nobody's.
    return {**{name: value for name, value in headers.items() if name != TRACESTATE}, **carried}


def _span_context(parent: Parent) -> SpanContext:
    return SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent.flags, 16)),
        trace_state=TraceState.from_header([parent.tracestate]) if parent.tracestate else TraceState(),
    )


def _context(parent: Parent | None) -> Context:
    """Never the ambient one: what a span belongs to is said, not found lying about."""
    if parent is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), Context())


def _parent_of_span(span: Span) -> Parent | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    flags = f"{context.trace_flags:02x}"
    return Parent(f"{context.trace_id:032x}", f"{context.span_id:016x}", flags, context.trace_state.to_header())


def _links(parent: Parent | None) -> list[Link]:
    return [] if parent is None else [Link(_span_context(parent))]


# --- Spans ---------------------------------------------------------------------------------------------------------


def _about(ref: QueueRef, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": ref.queue,
        "holdfast.tenant": ref.tenant,
    }


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _fail(span, error.code if isinstance(error, HoldfastError) else type(error).__name__)
        raise
    finally:
        span.end()


def _fail(span: Span, code: str) -> None:
    """The code alone: texts of errors may quote what a caller sent."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _tell(span: Span, answers: Sequence[Enqueued]) -> None:
    if len(answers) == 1:
        span.set_attribute("messaging.message.id", answers[0].id)
        span.set_attribute("messaging.message.conversation_id", answers[0].correlation_id)


def _tell_nobody(answers: Sequence[Enqueued]) -> None:
    pass
