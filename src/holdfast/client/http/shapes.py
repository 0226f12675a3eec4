"""Between the model and the wire's documents, as a client needs them: nothing is decided here."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from holdfast.model.answers import Delivery, Enqueued, Info, LedgerEntry, Result
from holdfast.model.events import Event, JournalEvent
from holdfast.model.ids import parse_id
from holdfast.model.message import BYTES, DEFAULT_PRIORITY, JSON, Draft, Pieces, Receipt, State
from holdfast.model.requests import Edit, Filter, Settle, StateDocument, Verdict
from holdfast.wire.errors import from_wire_code
from holdfast.wire.http import (
    DeliveryOut,
    EditIn,
    EnqueuedOut,
    FilterIn,
    InfoOut,
    JournalEventOut,
    LedgerEntryOut,
    MessageIn,
    MetaIn,
    ReceiptIn,
    ResultOut,
    StateOut,
    VerdictIn,
)

C = TypeVar("C", bound=msgspec.Struct)


def _payload_in(payload: bytes, is_json: bool) -> tuple[Raw | UnsetType, str | UnsetType]:
    return (Raw(payload), UNSET) if is_json else (UNSET, base64.b64encode(payload).decode())


def payload_out(payload: Raw | UnsetType, payload_base64: str | UnsetType) -> bytes:
    if payload is not UNSET:
        return bytes(payload)
    try:
        return base64.b64decode("" if payload_base64 is UNSET else payload_base64)
    except binascii.Error as error:
        raise msgspec.DecodeError(str(error)) from None


def _given(id: str, correlation_id: str) -> str | None:
    return None if correlation_id == id else correlation_id


# --- Enqueue -------------------------------------------------------------------------------------------------------


def is_json(draft: Draft) -> bool:
    return draft.content_type == JSON if draft.is_json is None else draft.is_json


def message_in(draft: Draft) -> MessageIn:
    given_as_json = is_json(draft)
    payload, payload_base64 = _payload_in(draft.payload, given_as_json)
    return MessageIn(
        payload=payload, payload_base64=payload_base64, **_options(draft, JSON if given_as_json else BYTES)
    )


def meta_in(draft: Draft, tenant: str, queue: str) -> MetaIn:
    return MetaIn(tenant=tenant, queue=queue, **_options(draft, BYTES))


def _options(draft: Draft, usual_type: str) -> dict[str, Any]:
    """What is not as usual: left out it costs nothing on the way."""
    options: dict[str, Any] = {
        "content_type": None if draft.content_type == usual_type else draft.content_type,
        "headers": draft.headers or None,
        "priority": None if draft.priority == DEFAULT_PRIORITY else draft.priority,
        "delay_ms": draft.delay_ms or None,
        "deliver_at": draft.deliver_at,
        "ttl_ms": draft.ttl_ms,
        "idempotency_key": draft.key,
        "group": draft.group,
        "correlation_id": draft.correlation_id,
        "max_retries": draft.max_retries,
    }
    return {name: value for name, value in options.items() if value is not None}


def enqueued_of(out: EnqueuedOut) -> Enqueued:
    return Enqueued(
        snowflake=int(out.snowflake),
        given_correlation_id=_given(out.id, out.correlation_id),
        duplicate=out.duplicate,
    )


# --- Claims and verdicts -------------------------------------------------------------------------------------------


def delivery_of(out: DeliveryOut) -> Delivery:
    return Delivery(
        snowflake=int(out.snowflake),
        given_correlation_id=_given(out.id, out.correlation_id),
        receipt=Receipt.parse(out.receipt),
        payload=payload_out(out.payload, out.payload_base64),
        pieces=None if out.payload_bytes is UNSET else _pieces_of(out),
        content_type=out.content_type,
        is_json=out.payload is not UNSET or out.payload_is_json is True,
        headers=out.headers,
        priority=out.priority,
        attempt=out.attempt,
        enqueued_at=out.enqueued_at,
        lease_expires_at=out.lease_expires_at,
        group=out.group,
        state=None if out.state is UNSET else _state_of(out.state),
    )


def _pieces_of(out: DeliveryOut) -> Pieces | None:
    """Where they are is the server's to know."""
    if out.payload_bytes is UNSET or out.payload_crc32 is UNSET:
        return None
    return Pieces(0, out.payload_bytes, out.payload_crc32)


def _state_of(out: StateOut) -> StateDocument:
    return StateDocument(
        document=None if out.etag is None else bytes(out.document),
        etag=out.etag,
        progress=None if out.progress is UNSET else out.progress,
    )


def receipt_in(verdict: Verdict) -> str | ReceiptIn:
    receipt = str(verdict.receipt)
    if verdict.settle is Settle.NACK:
        return ReceiptIn(
            receipt=receipt,
            error=verdict.error,
            delay_ms=verdict.delay_ms,
            defer=verdict.defer,
            final=verdict.final,
            exhausted=verdict.exhausted,
        )
    if verdict.settle is Settle.EXTEND and verdict.lease_ms is not None:
        return ReceiptIn(receipt=receipt, lease_ms=verdict.lease_ms)
    return receipt


def verdict_in(verdict: Verdict) -> VerdictIn:
    return VerdictIn(
        receipt=str(verdict.receipt),
        verdict=verdict.settle,
        error=verdict.error,
        delay_ms=verdict.delay_ms,
        defer=verdict.defer,
        final=verdict.final,
        exhausted=verdict.exhausted,
    )


# The state that a verdict always leads to: such a result does not name it.
_LEADS_TO = {Settle.ACK: State.SUCCEEDED, Settle.EXTEND: State.IN_FLIGHT}


def result_of(settle: Settle, out: ResultOut) -> Result:
    leads_to = _LEADS_TO.get(settle) if out.ok else None
    return Result(
        snowflake=parse_id(out.id),
        ok=out.ok,
        given_correlation_id=None if out.correlation_id is None else _given(out.id, out.correlation_id),
        is_known=out.correlation_id is not None,
        error=None if out.error is UNSET else from_wire_code(out.error),
        state=leads_to if out.state is UNSET else State(out.state),
        retry_at=None if out.retry_at is UNSET else out.retry_at,
        lease_expires_at=None if out.lease_expires_at is UNSET else out.lease_expires_at,
    )


# --- Inspection ----------------------------------------------------------------------------------------------------


def info_of(out: InfoOut) -> Info:
    has_payload = out.payload is not UNSET or out.payload_base64 is not UNSET
    return Info(
        id=out.id,
        snowflake=int(out.snowflake),
        state=State(out.state),
        priority=out.priority,
        attempt=out.attempt,
        failures=out.failures,
        expiries=out.expiries,
        releases=out.releases,
        version=out.version,
        enqueued_at=out.enqueued_at,
        visible_at=out.visible_at,
        lease_expires_at=out.lease_expires_at,
        last_error=out.last_error,
        reason=out.reason,
        correlation_id=out.correlation_id,
        headers=out.headers,
        content_type=out.content_type,
        group=out.group,
        owner=out.owner,
        claimed_at=out.claimed_at,
        settled_at=out.settled_at,
        expires_at=out.expires_at,
        progress=out.progress,
        payload=payload_out(out.payload, out.payload_base64) if has_payload else None,
        is_json=out.payload is not UNSET if has_payload else out.content_type == JSON,
        bytes=out.bytes,
    )


def event_of(out: JournalEventOut) -> JournalEvent:
    return JournalEvent(
        snowflake=parse_id(out.id),
        given_correlation_id=_given(out.id, out.correlation_id),
        seq=out.seq,
        shard=out.shard,
        at=out.at,
        event=Event(out.event),
        tenant=out.tenant,
        queue=out.queue,
        attempt=out.attempt,
        version=out.version,
        priority=out.priority,
        enqueued_at=out.enqueued_at,
        claimed_at=out.claimed_at,
        bytes=out.bytes,
        error=out.error,
        reason=out.reason,
    )


def ledger_entry_of(out: LedgerEntryOut) -> LedgerEntry:
    return LedgerEntry(
        number=out.number,
        claimed_at=out.claimed_at,
        deliveries=[delivery_of(each) for each in out.messages],
        lost=out.lost,
    )


# --- Operators -----------------------------------------------------------------------------------------------------


def filter_in(which: Filter) -> FilterIn | None:
    """None: everything."""
    if which == Filter():
        return None
    return FilterIn(
        ids=None if which.ids is None else [str(each) for each in sorted(which.ids)],
        error_contains=which.error_contains,
        older_than_ms=which.older_than_ms,
        headers=which.headers or None,
        priority=which.priority,
        owner=which.owner,
        held_for_ms=which.held_for_ms,
        delayed=which.delayed,
    )


def edit_in(edit: Edit) -> EditIn:
    payload, payload_base64 = _payload_in(edit.payload, edit.content_type == JSON)
    return EditIn(id=str(edit.id), payload=payload, payload_base64=payload_base64)


def config_of(document: Mapping[str, Any], kind: type[C]) -> C:
    """The fields of `kind`, inside nested documents too; a newer server may say more."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    fields: dict[str, Any] = {}
    for name, value in document.items():
        if name in known:
            nested = known[name].type
            is_struct = isinstance(nested, type) and issubclass(nested, msgspec.Struct) and isinstance(value, dict)
            fields[name] = config_of(value, nested) if is_struct else value
    return msgspec.convert(fields, kind, from_attributes=True)
