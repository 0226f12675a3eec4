"""Trace contexts of producers, which travel in the headers of messages."""

import sys
from typing import Any

from msgspec.structs import replace

from holdfast.model.message import Draft
from holdfast.telemetry.w3c import TRACEPARENT, TRACESTATE, Parent


def with_trace(drafts: list[Draft]) -> list[Draft]:
    """Add the context of the current span to the headers of each message that has no context of its own.

    The context travels with the message and not with the request, because a request can carry the messages of several
    callers with different traces.
    """
    # A program that has not imported OpenTelemetry has no span.
    trace: Any = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return drafts
    ids = f"{context.trace_id:032x}", f"{context.span_id:016x}", f"{context.trace_flags:02x}"
    carried = {TRACEPARENT: Parent(*ids).traceparent}
    if context.trace_state:
        carried[TRACESTATE] = context.trace_state.to_header()
    return [
        draft if TRACEPARENT in draft.headers else replace(draft, headers={**draft.headers, **carried})
        for draft in drafts
    ]
