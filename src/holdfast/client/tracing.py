"""The trace context of a producer, carried in the headers of its messages."""

import sys
from typing import Any

from msgspec.structs import replace

from holdfast.model.message import Draft
from holdfast.telemetry.w3c import TRACEPARENT, TRACESTATE, Parent


def with_trace(drafts: list[Draft]) -> list[Draft]:
    """Put the context of the current span into the headers of each message that has no context of its own.

    It travels with the message, not with the request, because callers of different traces may share a request.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")  # without it the program has no span
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
