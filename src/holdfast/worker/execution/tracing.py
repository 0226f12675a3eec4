"""The producer's trace goes on in the handler, where OpenTelemetry is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.client.message import Message
from holdfast.telemetry.w3c import TRACEPARENT

_MISSING = object()
_library: Any = None


@contextmanager
def following(message: Message) -> Iterator[None]:
    """Around a handler: a span `process QUEUE` under the context in the message's headers is the current one.

    A message that carries none starts no trace: whether to is the producer's to say.
    """
    library: Any = _opentelemetry() if TRACEPARENT in message.headers else _MISSING
    if library is _MISSING:
        yield
        return
    propagate, trace = library
    span = trace.get_tracer("holdfast").start_as_current_span(
        f"process {message.queue}",
        # Never the ambient context: a handler belongs to its message alone.
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
        # The text of an error may quote the payload.
        record_exception=False,
    )
    with span:
        yield


def _opentelemetry() -> Any:
    """Looked for once, at the first message: importing Holdfast stays quick."""
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
