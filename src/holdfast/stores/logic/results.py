"""Stored messages as they are answered; the same for every store."""

from msgspec.structs import replace

from holdfast.model.answers import Delivery, Result
from holdfast.model.errors import Draining, Internal, QueueNotFound, StaleLease
from holdfast.model.events import Event, JournalEvent
from holdfast.model.message import JSON, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Edit, StateDocument
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.contract import QueueRow

# Read once: to find a member in its class costs as much as the rest of a result.
_READY = State.READY
# Makes a `Receipt` in half the time of a call of the class.
_receipt = tuple.__new__


def no_such_queue(ref: QueueRef) -> QueueNotFound:
    return QueueNotFound(f"there is no queue {ref}", tenant=ref.tenant, queue=ref.queue)


def being_deleted(ref: QueueRef) -> Draining:
    return Draining(f"queue {ref} is being deleted", tenant=ref.tenant, queue=ref.queue)


def check_accepts(ref: QueueRef, row: QueueRow | None, *, auto_create: bool) -> None:
    """Refuse a new message for a queue that is being deleted, or does not exist and is not to be created."""
    if row is None:
        if not auto_create:
            raise no_such_queue(ref)
    elif row.drain_until is not None:
        raise being_deleted(ref)


def receipt_of(envelope: Envelope, life: Life) -> Receipt:
    if life.lease is None:
        raise Internal(f"a {life.state} message has no receipt")
    return _receipt(Receipt, (envelope.id, life.lease.token, life.version))


def delivery_of(envelope: Envelope, life: Life, state: StateDocument | None) -> Delivery:
    lease = life.lease
    if lease is None:
        raise Internal(f"a {life.state} message is not delivered")
    return Delivery(
        snowflake=envelope.id,
        given_correlation_id=envelope.given_correlation_id,
        receipt=_receipt(Receipt, (envelope.id, lease.token, life.version)),
        payload=envelope.payload,
        pieces=envelope.pieces,
        content_type=envelope.content_type,
        is_json=envelope.is_json,
        # A copy: what a handler does to it must not reach the store.
        headers=dict(envelope.headers) if envelope.headers else {},
        priority=life.priority,
        attempt=life.attempt,
        enqueued_at=envelope.enqueued_at,
        lease_expires_at=lease.expires_at,
        group=envelope.group,
        state=state,
    )


def edited(envelope: Envelope, edit: Edit) -> Envelope:
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
    """Return an event for the journal. `after` is the life that it led to; None: the one before. `seq` is its number,
    for a journal that gives numbers at once.

    A lease that the event ends is named still: when it was claimed tells how long the work took.
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
    """A verdict that held; `life` is what it led to."""
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
    """A verdict whose receipt holds no lease."""
    if envelope is None:
        return Result(snowflake=id, ok=False, error=StaleLease.code, is_known=False)
    return Result(snowflake=id, ok=False, error=StaleLease.code, given_correlation_id=envelope.given_correlation_id)
