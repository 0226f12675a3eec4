"""Calls between the processes of one server: from a door process to the store process.

They travel in the frames of the framed protocol, over a socket that no other program reaches, and both ends are of one
version. Each CALL carries the caller that it is made for:

    2 bytes     length of the caller
    caller      as the two processes write it
    call        one of the framed protocol (`calls.py`), or one of those below

Subscriptions, watches and uploads have state in the store process. A call opens one and returns its number, by which
the later calls name it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft, Pieces, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.wire.framed.answers import read_enqueued, write_enqueued
from holdfast.wire.framed.calls import HOT_CALLS, NAMED, CallFrame, FramedClaimRequest, FramedDraft

_LENGTH_BYTES = 2

# --- The caller ------------------------------------------------------------------------------------------------------


def write_caller(caller: bytes) -> bytes:
    """Return the head of every CALL that is made for this caller."""
    return len(caller).to_bytes(_LENGTH_BYTES, "big") + caller


def split_call(body: bytes) -> tuple[bytes, bytes]:
    """Return the caller and the call of a CALL."""
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    return body[_LENGTH_BYTES:end], body[end:]


# --- Calls -----------------------------------------------------------------------------------------------------------


class UploadedDraft(Draft, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message whose `pieces` name, by their place, the upload that its payload came in."""


class HeldByCall(CallFrame, frozen=True, gc=False, array_like=True, tag="held_by"):
    id: Any


class EnqueueEachCall(CallFrame, frozen=True, gc=False, array_like=True, tag="enqueue_each"):
    batches: list[tuple[QueueRef, list[FramedDraft]]]


class EnqueueUploadedCall(CallFrame, frozen=True, gc=False, array_like=True, tag="enqueue_uploaded"):
    drafts: list[UploadedDraft]


class OpenUploadCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_upload"):
    draft: FramedDraft


class WriteUploadCall(CallFrame, frozen=True, gc=False, array_like=True, tag="write_upload"):
    number: int
    part: bytes


class OpenSubscriptionCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_subscription"):
    ask: FramedClaimRequest
    prefetch: int
    releases_at_end: bool


class NextDeliveriesCall(CallFrame, frozen=True, gc=False, array_like=True, tag="next_deliveries"):
    number: int
    wait_ms: int | None


class OpenWatchCall(CallFrame, frozen=True, gc=False, array_like=True, tag="open_watch"):
    pass


class NextNewsCall(CallFrame, frozen=True, gc=False, array_like=True, tag="next_news"):
    number: int
    wait_ms: int


class ReadDeliveredCall(CallFrame, frozen=True, gc=False, array_like=True, tag="read_delivered"):
    id: int
    offset: int
    limit: int


class CloseCall(CallFrame, frozen=True, gc=False, array_like=True, tag="close"):
    """Ends an upload, a subscription or a watch."""

    number: int


class CheckStoreCall(CallFrame, frozen=True, gc=False, array_like=True, tag="check_store"):
    pass


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
    # Requests that wait for a turn now, and the waits that have ended.
    turns_waiting: int
    turn_counts: list[int]
    turn_sum: float
    highest_lag_ms: int
    # Since the process began.
    cpu_s: float
    # Tenants whose weights the process needs.
    tenants: list[str]


class ReportCall(CallFrame, frozen=True, gc=False, array_like=True, tag="report"):
    report: DoorReport


class RenderMetricsCall(CallFrame, frozen=True, gc=False, array_like=True, tag="render_metrics"):
    pass


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
)

_calls: msgspec.msgpack.Decoder[CallFrame] = msgspec.msgpack.Decoder(
    reduce(or_, (*HOT_CALLS, *(each.call_type for each in NAMED.values()), *_LINK_CALLS))
)
_encode = msgspec.msgpack.Encoder().encode


def read_link_call(call: bytes) -> CallFrame:
    """Raise `msgspec.DecodeError` for anything else."""
    return _calls.decode(call)


def write_link_call(call: CallFrame) -> bytes:
    """Return a call that has no messages in it: for those there are functions of their own."""
    return _encode(call)


def write_enqueue_each(batches: Mapping[QueueRef, Sequence[Draft]]) -> bytes:
    forms = [(ref, [astuple(draft)[:-1] for draft in drafts]) for ref, drafts in batches.items()]
    return _encode(("enqueue_each", None, None, None, forms))


def write_enqueue_uploaded(ref: QueueRef, drafts: Sequence[Draft]) -> bytes:
    return _encode(("enqueue_uploaded", *ref, None, [astuple(each) for each in drafts]))


def write_open_upload(ref: QueueRef, draft: Draft) -> bytes:
    return _encode(("open_upload", *ref, None, astuple(draft)[:-1]))


def write_open_subscription(ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool) -> bytes:
    return _encode(("open_subscription", *ref, None, astuple(ask), prefetch, releases_at_end))


# --- Answers ---------------------------------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `next_news`."""

    has_news: bool
    is_closed: bool


write_link_answer = _encode
read_number = msgspec.msgpack.Decoder(int).decode
read_news = msgspec.msgpack.Decoder(News).decode
read_weights = msgspec.msgpack.Decoder(dict[str, int]).decode
read_problems = msgspec.msgpack.Decoder(list[str]).decode
read_bytes = msgspec.msgpack.Decoder(bytes).decode
read_receipt = msgspec.msgpack.Decoder(Receipt).decode
_batches = msgspec.msgpack.Decoder(list[tuple[QueueRef, bytes]])


def write_enqueued_each(every: Mapping[QueueRef, list[Enqueued]]) -> bytes:
    return _encode([(ref, write_enqueued(enqueued)) for ref, enqueued in every.items()])


def read_enqueued_each(body: bytes) -> dict[QueueRef, list[Enqueued]]:
    return {ref: read_enqueued(enqueued) for ref, enqueued in _batches.decode(body)}


def number_of_upload(draft: Draft) -> int | None:
    """Return the number of the upload that a message's payload came in; None for a payload in the message itself."""
    return None if draft.pieces is None else draft.pieces.place


def pieces_of_upload(number: int, size: int) -> Pieces:
    """Return the `pieces` that stand for the payload of an upload until the store process has finished it."""
    return Pieces(number, size, 0)
