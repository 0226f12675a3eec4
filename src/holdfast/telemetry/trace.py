"""Traces across a queue.

The trace context of an enqueue is stored in the headers of the message, even if tracing is off, so that a handler can
continue the producer's trace. If tracing is on, the server adds spans to that trace: `enqueue`, whose context the
message then carries; `claim` for each delivery; and `ack`, `nack`, `extend` or `release` for each verdict. If a claim
or a verdict has a context of its own, its span has a link to it.
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

# The maximum number of messages in flight whose traces are remembered for their verdicts. A receipt has no context.
_MAX_REMEMBERED = 50_000


class Tracing:
    """The tracing of a server. Without a provider it makes no spans, but still copies contexts into messages."""

    def __init__(self, provider: TracerProvider | None = None, shut_down: Callable[[], None] = lambda: None) -> None:
        self._tracer: Tracer | None = None if provider is None else provider.get_tracer("holdfast")
        self.is_on = provider is not None
        # Exports the remaining spans; may block for seconds.
        self.shut_down = shut_down
        self._in_flight: OrderedDict[int, SpanContext] = OrderedDict()

    # --- Enqueue -----------------------------------------------------------------------------------------------

    @contextmanager
    def enqueue(
        self, request: Mapping[bytes, bytes], ref: QueueRef, drafts: list[Draft]
    ) -> Iterator[tuple[list[Draft], Callable[[Sequence[Enqueued]], None]]]:
        """Trace an enqueue, as a context manager around it.

        It gives the drafts to enqueue, and a function to call with the results. A message keeps the context in its own
        headers; the others get that of the span, or without tracing that of the request. `request` has the headers of
        the request, with names in lower case.
        """
        given = _parent_of_request(request)
        if self._tracer is None:
            yield (drafts if given is None else _add_context(drafts, given)), _ignore_results
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
            traced = drafts if carried is None else _add_context(drafts, carried)
            yield traced, lambda results: _note_results(span, results)

    # --- Claim -------------------------------------------------------------------------------------------------

    def deliver(self, request: Mapping[bytes, bytes], ref: QueueRef, deliveries: Sequence[Delivery]) -> None:
        """Add a span for each delivery whose message carries a context."""
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
        """Add a span for each verdict, in the trace of its message if that is known, or else in the caller's."""
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
                self._in_flight.pop(result.snowflake, None)  # it is no longer in flight
            span.end()

    def _remember(self, snowflake: int, context: SpanContext) -> None:
        self._in_flight[snowflake] = context
        self._in_flight.move_to_end(snowflake)
        if len(self._in_flight) > _MAX_REMEMBERED:
            self._in_flight.popitem(last=False)


_MAX_LINKS = 100


def global_provider() -> TracerProvider | None:
    """Return the provider of this process, such as `opentelemetry-instrument` sets one; None if there is none."""
    provider = trace.get_tracer_provider()
    is_real = not isinstance(provider, ProxyTracerProvider | trace.NoOpTracerProvider)
    return provider if is_real else None


# --- Contexts ------------------------------------------------------------------------------------------------------


def _parent_of_request(headers: Mapping[bytes, bytes]) -> Parent | None:
    raw = headers.get(b"traceparent")
    if raw is None:
        return None
    return parse_parent(raw.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1"))


def _add_context(drafts: list[Draft], parent: Parent) -> list[Draft]:
    """Return the drafts with this context in their headers, except where they have a context of their own."""
    carried = {TRACEPARENT: parent.traceparent, **({TRACESTATE: parent.tracestate} if parent.tracestate else {})}
    return [
        draft if draft.headers and parent_of(draft.headers) else replace(draft, headers=_with(draft.headers, carried))
        for draft in drafts
    ]


def _with(headers: Mapping[str, str], carried: dict[str, str]) -> dict[str, str]:
    # A tracestate without a traceparent has no meaning, so it is dropped.
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
    """Return the context for a span. It is never the current context of the task, which belongs to another trace."""
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
    """Mark a span as failed. It gets the code only, because the text of an error may quote a caller's data."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _note_results(span: Span, results: Sequence[Enqueued]) -> None:
    if len(results) == 1:
        span.set_attribute("messaging.message.id", results[0].id)
        span.set_attribute("messaging.message.conversation_id", results[0].correlation_id)


def _ignore_results(results: Sequence[Enqueued]) -> None:
    pass
