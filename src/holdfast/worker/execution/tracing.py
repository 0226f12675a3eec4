"""Continue the producer's trace in the handler, if OpenTelemetry is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.client.message import Message
from holdfast.telemetry.w3c import TRACEPARENT

_MISSING = object()
_library: Any = None


@contextmanager
def following(message: Message) -> Iterator[None]:
    """Run a handler in a span `process QUEUE`, whose parent is the trace context in the message's headers.

    A message without one starts no trace, because the producer decides whether there is one.
    """
    library: Any = _opentelemetry() if TRACEPARENT in message.headers else _MISSING
    if library is _MISSING:
        yield
        return
    propagate, trace = library
    span = trace.get_tracer("holdfast").start_as_current_span(
        f"process {message.queue}",
        # Not the current context, because a handler belongs only to its message's trace.
        context=propagate.extract(message.headers, context=_empty()),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "holdfast",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.queue,
            "messaging.message.id": str(message.id),
            "messaging.message.conversation_id": message.correlation_id,
            "holdfast.tenant": message.tenant,
            "holdfast.attempt": message.attempt,
            "holdfast.version": message.version,
        },
        # An error's text may contain parts of the payload.
        record_exception=False,
    )
    with span:
        yield


def _opentelemetry() -> Any:
    """Return the library, or `_MISSING`. It is imported at the first message, so that importing Holdfast stays fast."""
    global _library
    if _library is None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            _library = _MISSING
        else:
            _library = TraceContextTextMapPropagator(), trace
    return _library


def _empty() -> Any:
    from opentelemetry.context import Context

    return Context()
