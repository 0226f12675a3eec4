"""Encode and decode the calls that a door process makes of the store process of the same server.

They are sent in frames of the framed protocol, over a socket that no other program can reach. Both ends have the same
version, so these calls may change with any release. Each CALL frame begins with the caller that it is made for:

    2 bytes     length of the caller
    caller      as the two processes write it
    call        a call of the framed protocol (`calls.py`), or one of those below

Subscriptions, watches and uploads have state in the store process. A call opens one and returns its number, by which
later calls name it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.model.answers import Enqueued
from holdfast.model.limits import Charge
from holdfast.model.message import Draft, Pieces, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.wire.framed.answers import read_enqueued, write_enqueued
from holdfast.wire.framed.calls import HOT_CALLS, NAMED, CallFrame, FramedClaimRequest, FramedDraft

_LENGTH_BYTES = 2

# --- The caller ------------------------------------------------------------------------------------------------------


def write_caller(caller: bytes) -> bytes:
    """Return the beginning of every CALL frame that is made for this caller."""
    return len(caller).to_bytes(_LENGTH_BYTES, "big") + caller


def split_call(body: bytes) -> tuple[bytes, bytes]:
    """Return the caller and the call in a CALL frame."""
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    return body[_LENGTH_BYTES:end], body[end:]


# --- Calls -----------------------------------------------------------------------------------------------------------


class UploadedDraft(Draft, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message whose payload was uploaded. The blob id of its `pieces` is the number of the upload."""


class HeldByCall(CallFrame, frozen=True, gc=False, array_like=True, tag="held_by"):
    """Return the receipt of a message that the caller holds."""

    id: Any


class EnqueueEachCall(CallFrame, frozen=True, gc=False, array_like=True, tag="enqueue_each"):
    """Enqueue messages into several queues."""

    batches: list[tuple[QueueRef, list[FramedDraft]]]


class EnqueueUploadedCall(CallFrame, frozen=True, gc=False, array_like=True, tag="enqueue_uploaded"):
    """Enqueue messages whose payloads were uploaded."""

    drafts: list[UploadedDraft]


class OpenUploadCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_upload"):
    """Begin an upload, and return its number."""

    draft: FramedDraft


class WriteUploadCall(CallFrame, frozen=True, gc=False, array_like=True, tag="write_upload"):
    """Add a part to the payload of an upload."""

    number: int
    part: bytes


class OpenSubscriptionCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_subscription"):
    """Open a subscription, and return its number."""

    ask: FramedClaimRequest
    prefetch: int
    releases_at_end: bool


class NextDeliveriesCall(CallFrame, frozen=True, gc=False, array_like=True, tag="next_deliveries"):
    """Return the next deliveries of a subscription."""

    number: int
    wait_ms: int | None


class OpenWatchCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_watch"):
    """Open a watch, and return its number."""


class NextNewsCall(CallFrame, frozen=True, gc=False, array_like=True, tag="next_news"):
    """Wait until a watched queue may have new messages."""

    number: int
    wait_ms: int


class ReadDeliveredCall(CallFrame, frozen=True, gc=False, array_like=True, tag="read_delivered"):
    """Return part of the payload of a delivered message."""

    id: int
    offset: int
    limit: int


class CloseCall(CallFrame, frozen=True, gc=False, array_like=True, tag="close"):
    """End an upload, a subscription or a watch."""

    number: int


class CheckStoreCall(CallFrame, frozen=True, gc=False, array_like=True, tag="check_store"):
    """Raise an error while the store cannot be used."""


class PortionFrame(CallFrame, frozen=True, gc=False, array_like=True, tag="portion"):
    """A call between the store processes of a server, or from a door process, in their own form."""

    to_coordinator: bool
    call: bytes


class TakeTokensCall(CallFrame, frozen=True, gc=False, array_like=True, tag="take_tokens"):
    """Takes tokens of limits that all store processes share."""

    # Taken into debt, or given back if negative; then each taken or refused as a whole; then reserved.
    adjusted: list[Charge]
    asked: list[Charge]
    reserved: list[Charge]


class ScrapeCall(CallFrame, frozen=True, gc=False, array_like=True, tag="scrape"):
    """Returns the metrics of a store process since the last call."""


class SeriesReport(msgspec.Struct, frozen=True, array_like=True):
    """A histogram of calls that ended since the last report."""

    operation: str
    ref: QueueRef | None
    outcome: str
    counts: list[int]
    sum: float


class DoorReport(msgspec.Struct, frozen=True, array_like=True):
    """The counts of a door process since its last report."""

    requests: list[SeriesReport]
    # The requests that wait for a turn now, and the histogram of the waits that have ended.
    turns_waiting: int
    turn_counts: list[int]
    turn_sum: float
    highest_lag_ms: int
    # Since the start of the process.
    cpu_s: float
    # Tenants whose weights the process needs.
    tenants: list[str]


class ReportCall(CallFrame, frozen=True, gc=False, array_like=True, tag="report"):
    """Add the counts of a door process, and return the weights of its tenants."""

    report: DoorReport


class RenderMetricsCall(CallFrame, frozen=True, gc=False, array_like=True, tag="render_metrics"):
    """Return the metrics of the server."""


_LINK_CALLS = (
    HeldByCall,
    EnqueueEachCall,
    EnqueueUploadedCall,
    OpenUploadCall,
    WriteUploadCall,
    OpenSubscriptionCall,
    NextDeliveriesCall,
    OpenWatchCall,
    NextNewsCall,
    ReadDeliveredCall,
    CloseCall,
    CheckStoreCall,
    ReportCall,
    RenderMetricsCall,
    PortionFrame,
    TakeTokensCall,
    ScrapeCall,
)

_calls: msgspec.msgpack.Decoder[CallFrame] = msgspec.msgpack.Decoder(
    reduce(or_, (*HOT_CALLS, *(each.call_type for each in NAMED.values()), *_LINK_CALLS))
)
_encode = msgspec.msgpack.Encoder().encode


def read_link_call(call: bytes) -> CallFrame:
    """Decode a call. Raise `msgspec.DecodeError` for any other bytes."""
    return _calls.decode(call)


def write_link_call(call: CallFrame) -> bytes:
    """Encode a call without messages. The calls with messages have functions of their own."""
    return _encode(call)


def write_enqueue_each(batches: Mapping[QueueRef, Sequence[Draft]]) -> bytes:
    """Encode an `EnqueueEachCall`."""
    forms = [(ref, [astuple(draft)[:-1] for draft in drafts]) for ref, drafts in batches.items()]
    return _encode(("enqueue_each", None, None, None, forms))


def write_enqueue_uploaded(ref: QueueRef, drafts: Sequence[Draft]) -> bytes:
    """Encode an `EnqueueUploadedCall`."""
    return _encode(("enqueue_uploaded", *ref, None, [astuple(each) for each in drafts]))


def write_open_upload(ref: QueueRef, draft: Draft) -> bytes:
    """Encode an `OpenUploadCall`."""
    return _encode(("open_upload", *ref, None, astuple(draft)[:-1]))


def write_open_subscription(ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool) -> bytes:
    """Encode an `OpenSubscriptionCall`."""
    return _encode(("open_subscription", *ref, None, astuple(ask), prefetch, releases_at_end))


# --- Answers ---------------------------------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True, array_like=True):
    """The result of `NextNewsCall`."""

    has_news: bool
    is_closed: bool


class SharedTokens(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `take_tokens`: the longest wait and the charge that causes it, and the tokens reserved."""

    wait_ms: int
    short: int
    reserved: list[int]


write_link_answer = _encode
read_shared_tokens = msgspec.msgpack.Decoder(SharedTokens).decode
read_number = msgspec.msgpack.Decoder(int).decode
read_news = msgspec.msgpack.Decoder(News).decode
read_weights = msgspec.msgpack.Decoder(dict[str, int]).decode
read_problems = msgspec.msgpack.Decoder(list[str]).decode
read_bytes = msgspec.msgpack.Decoder(bytes).decode
read_receipt = msgspec.msgpack.Decoder(Receipt).decode
_batches = msgspec.msgpack.Decoder(list[tuple[QueueRef, bytes]])


def write_enqueued_each(every: Mapping[QueueRef, list[Enqueued]]) -> bytes:
    """Encode the result of an `EnqueueEachCall`."""
    return _encode([(ref, write_enqueued(enqueued)) for ref, enqueued in every.items()])


def read_enqueued_each(body: bytes) -> dict[QueueRef, list[Enqueued]]:
    """Decode the result of an `EnqueueEachCall`."""
    return {ref: read_enqueued(enqueued) for ref, enqueued in _batches.decode(body)}


def number_of_upload(draft: Draft) -> int | None:
    """Return the number of the upload with the message's payload; None for a payload in the message itself."""
    return None if draft.pieces is None else draft.pieces.blob_id


def pieces_of_upload(number: int, size: int) -> Pieces:
    """Return the `pieces` that refer to an upload until the store process has finished it."""
    return Pieces(number, size, 0)
