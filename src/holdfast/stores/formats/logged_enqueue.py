"""The format of an enqueue in the write-ahead log and in Redis, on its way to the store: the same bytes in both.

A call is a MessagePack array, so the names of its fields take no space.

How to change this format: add a field at the end of its struct, with a default. Records without the field then decode
to the default, and older versions ignore the field. For any other change, give the new form a mark of its own (in the
log, a new `RecordKind`) and keep decoding this one: a log and Redis may hold calls of both forms.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.model.message import JSON, Draft
from holdfast.model.names import QueueRef


class LoggedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of a logged enqueue."""

    id: int
    payload: bytes
    priority: int
    # The instant from which it can be claimed, by the store's clock.
    visible_at: int
    # The end of its TTL. A message without its own TTL has the one that its queue had when it was enqueued.
    expires_at: int | None
    ttl_ms: int | None
    bytes: int
    is_json: bool
    content_type: str
    headers: dict[str, str]
    correlation_id: str | None
    max_retries: int | None


class LoggedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of `enqueue`: all of its messages are stored, or none."""

    tenant: str
    queue: str
    # Identifies the queue: a queue deleted and created again under the same name has another id.
    queue_id: int
    # The time of the enqueue, by the store's clock.
    enqueued_at: int
    messages: list[LoggedMessage]

    @property
    def ref(self) -> QueueRef:
        """Return the name of the queue."""
        return QueueRef(self.tenant, self.queue)


class LoggedBatch(NamedTuple):
    """Calls for one database from one opening of a log, each with its record number: as much as one transaction
    stores."""

    node: UUID
    epoch: int
    shard: int
    calls: list[tuple[int, LoggedCall]]
    # All records of these numbers are in `calls`, or must not be stored.
    span: range


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LoggedCall)


def encode_call(call: LoggedCall) -> bytes:
    """Return the stored bytes of a call."""
    return _encoder.encode(call)


def decode_call(raw: bytes) -> LoggedCall:
    """Return the call with these stored bytes. Raise `msgspec.MsgspecError` if they are damaged."""
    return _decoder.decode(raw)


def log_call(
    ref: QueueRef, queue_id: int, drafts: list[Draft], ids: list[int], now_ms: int, default_ttl_ms: int | None
) -> LoggedCall:
    """Return the call that enqueues `drafts` under the ids `ids`. `now_ms` is the time by the store's clock."""
    messages = []
    for id, draft in zip(ids, drafts, strict=True):
        ends_after_ms = default_ttl_ms if draft.ttl_ms is None else draft.ttl_ms
        visible_at = now_ms + draft.delay_ms if draft.deliver_at is None else max(now_ms, draft.deliver_at)
        messages.append(
            LoggedMessage(
                id,
                draft.payload,
                draft.priority,
                visible_at,
                None if ends_after_ms is None else now_ms + ends_after_ms,
                draft.ttl_ms,
                draft.bytes,
                draft.content_type == JSON if draft.is_json is None else draft.is_json,
                draft.content_type,
                draft.headers,
                draft.correlation_id,
                draft.max_retries,
            )
        )
    return LoggedCall(ref.tenant, ref.queue, queue_id, now_ms, messages)
