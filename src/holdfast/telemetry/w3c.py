"""Parse and write W3C trace contexts: the headers `traceparent` and `tracestate`. It needs no library."""

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MAX_TRACEPARENT = 256
# The standard requires to pass on at least this length. Longer ones are dropped.
_MAX_TRACESTATE = 512
_MEMBERS = re.compile(r"[ -~\t]*=[ -~\t]*", re.ASCII)


class Parent(NamedTuple):
    """The trace context that a message carries: the trace and its latest span."""

    trace_id: str
    span_id: str
    flags: str = "00"
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        """Return the value of the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_parent(traceparent: str | None, tracestate: str | None = None) -> Parent | None:
    """Return the context of the two headers, or None if they are missing or malformed."""
    if traceparent is None or len(traceparent) > _MAX_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(traceparent.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    # From a later version the known fields are passed on, as the standard requires.
    return Parent(trace_id, span_id, flags if version == "00" else f"{int(flags, 16) & 1:02x}", _state(tracestate))


def parent_of(headers: Mapping[str, str]) -> Parent | None:
    """Return the context in the headers of a message, or None."""
    return parse_parent(headers.get(TRACEPARENT), headers.get(TRACESTATE)) if headers else None


def _state(tracestate: str | None) -> str:
    text = (tracestate or "").strip(" \t")
    return text if len(text) <= _MAX_TRACESTATE and _MEMBERS.fullmatch(text) else ""
