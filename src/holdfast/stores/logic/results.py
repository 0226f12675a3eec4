"""Conversions of stored messages to responses; the same for every store."""

from msgspec.structs import replace

from holdfast.model.answers import Delivery, Result
from holdfast.model.errors import Draining, Internal, QueueNotFound, StaleLease
from holdfast.model.events import Event, JournalEvent
from holdfast.model.message import JSON, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Edit, StateDocument
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.values import QueueRow

# Read once, because looking up an enum member costs as much as the rest of a result.
_READY = State.READY
# Creates a `Receipt` in half the time that a call of the class takes.
_receipt = tuple.__new__


def no_such_queue(ref: QueueRef) -> QueueNotFound:
    """Return the error for a queue that does not exist."""
    return QueueNotFound(f"there is no queue {ref}", tenant=ref.tenant, queue=ref.queue)


def being_deleted(ref: QueueRef) -> Draining:
    """Return the error for a queue that is being deleted."""
    return Draining(
        f"queue {ref} is being deleted; create it again once the delete has finished",
        tenant=ref.tenant,
        queue=ref.queue,
    )


def check_accepts(ref: QueueRef, row: QueueRow | None, *, auto_create: bool) -> None:
    """Raise `Draining` if the queue is being deleted, and `QueueNotFound` if it does not exist and may not be
    created."""
    if row is None:
        if not auto_create:
            raise no_such_queue(ref)
    elif row.drain_until is not None:
        raise being_deleted(ref)


def receipt_of(envelope: Envelope, life: Life) -> Receipt:
    """Return the receipt of a message in flight."""
    if life.lease is None:
        raise Internal(f"a {life.state} message has no receipt")
    return _receipt(Receipt, (envelope.id, life.lease.token, life.version))


def delivery_of(envelope: Envelope, life: Life, state: StateDocument | None) -> Delivery:
    """Return the delivery of a message in flight."""
    lease = life.lease
    if lease is None:
        raise Internal(f"a {life.state} message cannot be delivered")
    return Delivery(
        snowflake=envelope.id,
        given_correlation_id=envelope.given_correlation_id,
        receipt=_receipt(Receipt, (envelope.id, lease.token, life.version)),
        payload=envelope.payload,
        pieces=envelope.pieces,
        content_type=envelope.content_type,
        is_json=envelope.is_json,
        # A copy, so that changes by a handler do not reach the store.
        headers=dict(envelope.headers) if envelope.headers else {},
        priority=life.priority,
        attempt=life.attempt,
        enqueued_at=envelope.enqueued_at,
        lease_expires_at=lease.expires_at,
        group=envelope.group,
        state=state,
    )


def edited(envelope: Envelope, edit: Edit) -> Envelope:
    """Return the envelope with another payload."""
    return replace(
        envelope,
        payload=edit.payload,
        pieces=None,
        content_type=edit.content_type,
        is_json=edit.content_type == JSON,
    )


def event_of(
    event: Event,
    ref: QueueRef,
    envelope: Envelope,
    before: Life,
    now_ms: int,
    after: Life | None = None,
    *,
    reason: str | None = None,
    error: str | None = None,
    seq: int = 0,
) -> JournalEvent:
    """Return an event for the journal.

    `after` is the life that the event led to; without it the life `before` is used. `seq` is the event's number in
    journals that assign numbers at once. A lease that the event ends is included: its start shows how long the work
    took.
    """
    life = after or before
    lease = life.lease or before.lease
    return JournalEvent(
        seq=seq,
        shard=0,
        at=now_ms,
        event=event,
        tenant=ref.tenant,
        queue=ref.queue,
        snowflake=envelope.id,
        given_correlation_id=envelope.given_correlation_id,
        attempt=life.attempt,
        version=life.version,
        priority=life.priority,
        enqueued_at=envelope.enqueued_at,
        claimed_at=None if lease is None else lease.claimed_at,
        bytes=envelope.bytes,
        error=error,
        reason=reason,
    )


def settled(envelope: Envelope, life: Life | None) -> Result:
    """Return the result of a verdict that held; `life` is the life that it led to, None if the message is gone."""
    if life is None:
        return Result(snowflake=envelope.id, ok=True, given_correlation_id=envelope.given_correlation_id)
    state, lease = life.state, life.lease
    return Result(
        snowflake=envelope.id,
        ok=True,
        given_correlation_id=envelope.given_correlation_id,
        state=state,
        retry_at=life.visible_at if state is _READY else None,
        lease_expires_at=None if lease is None else lease.expires_at,
    )


def stale(id: int, envelope: Envelope | None = None) -> Result:
    """Return the result of a verdict whose receipt holds no lease."""
    if envelope is None:
        return Result(snowflake=id, ok=False, error=StaleLease.code, is_known=False)
    return Result(snowflake=id, ok=False, error=StaleLease.code, given_correlation_id=envelope.given_correlation_id)
