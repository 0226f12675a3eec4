"""An enqueue as the log and Redis have it, on its way to the store: the same bytes in both.

By position, so names cost nothing; a field is only ever added at the end, with a default.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.model.message import JSON, Draft
from holdfast.model.names import QueueRef


class LoggedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int
    payload: bytes
    priority: int
    # When it can be claimed, by the store's clock.
    visible_at: int
    # The end of its TTL, its own or its queue's at the time.
    expires_at: int | None
    ttl_ms: int | None
    bytes: int
    is_json: bool
    content_type: str
    headers: dict[str, str]
    correlation_id: str | None
    max_retries: int | None


class LoggedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of `enqueue`: stored whole or not at all."""

    tenant: str
    queue: str
    # Of the queue that it was meant for: another of the same name is not that one.
    queue_id: int
    # By the store's clock.
    enqueued_at: int
    messages: list[LoggedMessage]

    @property
    def ref(self) -> QueueRef:
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
    return _encoder.encode(call)


def decode_call(raw: bytes) -> LoggedCall:
    return _decoder.decode(raw)


def log_call(
    ref: QueueRef, queue_id: int, drafts: list[Draft], ids: list[int], now_ms: int, default_ttl_ms: int | None
) -> LoggedCall:
    """`now_ms` by the store's clock."""
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
