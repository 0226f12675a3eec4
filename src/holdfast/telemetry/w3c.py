"""W3C trace context: `traceparent` and `tracestate`, parsed and spelled. Pure, and of no library's."""

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MAX_TRACEPARENT = 256
# Vendors must pass on at least this much; longer ones need not be.
_MAX_TRACESTATE = 512
_MEMBERS = re.compile(r"[ -~\t]*=[ -~\t]*", re.ASCII)


class Parent(NamedTuple):
    """Where a trace stands: what a message carries across the queue."""

    trace_id: str
    span_id: str
    flags: str = "00"
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_parent(traceparent: str | None, tracestate: str | None = None) -> Parent | None:
    """None for anything that is not of the form: it is then as if none had been given."""
    if traceparent is None or len(traceparent) > _MAX_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(traceparent.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    # Of a later version what we know of it is passed on, as the standard asks.
    return Parent(trace_id, span_id, flags if version == "00" else f"{int(flags, 16) & 1:02x}", _state(tracestate))


def parent_of(headers: Mapping[str, str]) -> Parent | None:
    """What a message's own headers carry."""
    return parse_parent(headers.get(TRACEPARENT), headers.get(TRACESTATE)) if headers else None


def _state(tracestate: str | None) -> str:
    text = (tracestate or "").strip(" \t")
    return text if len(text) <= _MAX_TRACESTATE and _MEMBERS.fullmatch(text) else ""
