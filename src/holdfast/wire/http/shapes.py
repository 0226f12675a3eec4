"""Convert the model's structs to HTTP documents (`…_out`, `…_in`) and back (`…_of`)."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from holdfast.model.answers import Delivery, Info, LedgerEntry, Result
from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event, JournalEvent
from holdfast.model.ids import parse_id
from holdfast.model.message import JSON, Pieces, Receipt, State
from holdfast.model.requests import Settle, StateDocument
from holdfast.model.schedules import ScheduledMessage, ScheduleInfo
from holdfast.wire.errors import from_wire_code, to_wire_code
from holdfast.wire.http.admin_bodies import (
    InfoOut,
    JournalEventOut,
    ScheduledOut,
    ScheduleOut,
)
from holdfast.wire.http.bodies import (
    DeliveryOut,
    LedgerEntryOut,
    ResultOut,
    StateOut,
)

C = TypeVar("C", bound=msgspec.Struct)


# --- Payloads --------------------------------------------------------------------------------------------------------


def payload_in(payload: bytes, is_json: bool) -> tuple[Raw | UnsetType, str | UnsetType]:
    """Return the fields `payload` and `payload_base64` of a document."""
    return (Raw(payload), UNSET) if is_json else (UNSET, base64.b64encode(payload).decode())


def payload_of(payload: Raw | UnsetType, payload_base64: str | UnsetType, where: str) -> tuple[bytes, bool]:
    """Return a payload's bytes, and whether it was given as JSON.

    `where` is the path of the document in the body, for errors. Raise `InvalidArgument` if the payload is missing,
    malformed or given twice.
    """
    if payload is not UNSET:
        if payload_base64 is not UNSET:
            raise InvalidArgument(
                f"{where} has both payload and payload_base64; give only one", field=f"{where}.payload_base64"
            )
        return bytes(payload), True
    if payload_base64 is UNSET:
        raise InvalidArgument(f"{where} has neither payload nor payload_base64; give one", field=f"{where}.payload")
    try:
        return base64.b64decode(payload_base64, validate=True), False
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{where}: payload_base64 is not valid base64", field=f"{where}.payload_base64") from None


def payload_out(payload: Raw | UnsetType, payload_base64: str | UnsetType) -> bytes:
    """Return the payload of a server's document, empty if it has none."""
    if payload is not UNSET:
        return bytes(payload)
    try:
        return base64.b64decode("" if payload_base64 is UNSET else payload_base64)
    except binascii.Error as error:
        raise msgspec.DecodeError(str(error)) from None


def _payload_fields(payload: bytes | None, is_json: bool) -> dict[str, Any]:
    """Return the fields of a payload that is included only on request; None if it was not requested."""
    if payload is None:
        return {"payload": UNSET, "payload_base64": UNSET}
    return dict(zip(("payload", "payload_base64"), payload_in(payload, is_json), strict=True))


def _payload_of_fields(out: InfoOut | ScheduledOut) -> bytes | None:
    is_shown = out.payload is not UNSET or out.payload_base64 is not UNSET
    return payload_out(out.payload, out.payload_base64) if is_shown else None


def _copied(source: msgspec.Struct, kind: type[C], **own: Any) -> C:
    """Return a `kind` with the fields of `source` that have the same names, and `own` for the other fields."""
    names = (name for name in kind.__struct_fields__ if name not in own)
    return kind(**{name: getattr(source, name) for name in names}, **own)


def given_correlation_id(id: str, correlation_id: str) -> str | None:
    """Return the correlation id that the caller gave, or None if the server used the message's id as its default."""
    return None if correlation_id == id else correlation_id


# --- Deliveries and verdicts -----------------------------------------------------------------------------------------


def delivery_out(delivery: Delivery, *, with_payload: bool = True) -> DeliveryOut:
    """Return the document of a delivery.

    Without the payload if it follows as a separate multipart part, or if the caller is to read it by the receipt.
    """
    id = delivery.id
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    if with_payload and delivery.pieces is None:
        if delivery.is_json:
            payload = Raw(delivery.payload)
        else:
            payload_base64 = base64.b64encode(delivery.payload).decode()
    out = DeliveryOut(
        id=id,
        snowflake=str(delivery.snowflake),
        receipt=str(delivery.receipt),
        payload=payload,
        payload_base64=payload_base64,
        content_type=delivery.content_type,
        headers=delivery.headers,
        priority=delivery.priority,
        attempt=delivery.attempt,
        version=delivery.receipt.version,
        enqueued_at=delivery.enqueued_at,
        lease_expires_at=delivery.lease_expires_at,
        correlation_id=delivery.given_correlation_id or id,
        group=delivery.group,
        state=UNSET if delivery.state is None else state_out(delivery.state),
    )
    if not with_payload or delivery.pieces is None:
        return out
    pieces = delivery.pieces
    return replace(out, payload_bytes=pieces.size, payload_crc32=pieces.checksum, payload_is_json=delivery.is_json)


def delivery_of(out: DeliveryOut) -> Delivery:
    """Return the delivery of a document."""
    return Delivery(
        snowflake=int(out.snowflake),
        given_correlation_id=given_correlation_id(out.id, out.correlation_id),
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
    """Return the size and checksum of an omitted payload. Only the server knows where its pieces are stored."""
    if out.payload_bytes is UNSET or out.payload_crc32 is UNSET:
        return None
    return Pieces(0, out.payload_bytes, out.payload_crc32)


def state_out(state: StateDocument) -> StateOut:
    """Return the document of a message's state."""
    return StateOut(
        document=Raw(b"null" if state.document is None else state.document),
        etag=state.etag,
        progress=UNSET if state.progress is None else state.progress,
    )


def _state_of(out: StateOut) -> StateDocument:
    return StateDocument(
        document=None if out.etag is None else bytes(out.document),
        etag=out.etag,
        progress=None if out.progress is UNSET else out.progress,
    )


# A module-level name is faster to read than a member of an enumeration.
_ACK = Settle.ACK


def result_out(settle: Settle, result: Result) -> ResultOut:
    """Return the document of a verdict's result.

    It includes the new state for a nack or a release, and the new expiry for an extend.
    """
    id = result.id
    # Most results are of this kind.
    if settle is _ACK and result.ok:
        return ResultOut(
            id=id, ok=True, correlation_id=(result.given_correlation_id or id) if result.is_known else None
        )
    has_state = settle in (Settle.NACK, Settle.RELEASE) and result.ok
    return ResultOut(
        id=id,
        ok=result.ok,
        correlation_id=(result.given_correlation_id or id) if result.is_known else None,
        error=UNSET if result.error is None else to_wire_code(result.error),
        state=result.state if has_state and result.state is not None else UNSET,
        retry_at=result.retry_at if settle is Settle.NACK and result.ok else UNSET,
        lease_expires_at=result.lease_expires_at if settle is Settle.EXTEND and result.ok else UNSET,
    )


# The only state that a successful verdict of this kind leads to. The result's document omits it.
_STATE_AFTER = {Settle.ACK: State.SUCCEEDED, Settle.EXTEND: State.IN_FLIGHT}


def result_of(settle: Settle, out: ResultOut, snowflake: int | None = None) -> Result:
    """Return the result of a document.

    `snowflake` is the message of the verdict, if the caller knows it. It saves parsing the id, which takes as long as
    everything else here.
    """
    state_after = _STATE_AFTER.get(settle) if out.ok else None
    return Result(
        snowflake=parse_id(out.id) if snowflake is None else snowflake,
        ok=out.ok,
        given_correlation_id=None if out.correlation_id is None else given_correlation_id(out.id, out.correlation_id),
        is_known=out.correlation_id is not None,
        error=None if out.error is UNSET else from_wire_code(out.error),
        state=state_after if out.state is UNSET else State(out.state),
        retry_at=None if out.retry_at is UNSET else out.retry_at,
        lease_expires_at=None if out.lease_expires_at is UNSET else out.lease_expires_at,
    )


def ledger_entry_out(entry: LedgerEntry) -> LedgerEntryOut:
    """Return the document of an open claim."""
    return LedgerEntryOut(
        number=entry.number,
        claimed_at=entry.claimed_at,
        messages=[delivery_out(each) for each in entry.deliveries],
        lost=entry.lost,
    )


def ledger_entry_of(out: LedgerEntryOut) -> LedgerEntry:
    """Return the open claim of a document."""
    return LedgerEntry(
        number=out.number,
        claimed_at=out.claimed_at,
        deliveries=[delivery_of(each) for each in out.messages],
        lost=out.lost,
    )


# --- Inspection ------------------------------------------------------------------------------------------------------


def info_out(info: Info) -> InfoOut:
    """Return the document of a message's information."""
    return _copied(info, InfoOut, snowflake=str(info.snowflake), **_payload_fields(info.payload, info.is_json))


def info_of(out: InfoOut) -> Info:
    """Return the message information of a document."""
    payload = _payload_of_fields(out)
    return _copied(
        out,
        Info,
        snowflake=int(out.snowflake),
        state=State(out.state),
        payload=payload,
        is_json=out.payload is not UNSET if payload is not None else out.content_type == JSON,
    )


def event_out(event: JournalEvent) -> JournalEventOut:
    """Return the document of a journal event."""
    return JournalEventOut(
        seq=event.seq,
        shard=event.shard,
        at=event.at,
        event=event.event,
        tenant=event.tenant,
        queue=event.queue,
        id=event.id,
        attempt=event.attempt,
        version=event.version,
        priority=event.priority,
        enqueued_at=event.enqueued_at,
        claimed_at=event.claimed_at,
        bytes=event.bytes,
        error=event.error,
        reason=event.reason,
        correlation_id=event.correlation_id,
    )


def event_of(out: JournalEventOut) -> JournalEvent:
    """Return the journal event of a document."""
    return JournalEvent(
        snowflake=parse_id(out.id),
        given_correlation_id=given_correlation_id(out.id, out.correlation_id),
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


def config_of(document: Mapping[str, Any], kind: type[C]) -> C:
    """Return a `kind` of a document, and of its nested documents. Fields that a newer server added are ignored."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    fields: dict[str, Any] = {}
    for name, value in document.items():
        if name in known:
            nested = known[name].type
            is_struct = isinstance(nested, type) and issubclass(nested, msgspec.Struct) and isinstance(value, dict)
            fields[name] = config_of(value, nested) if is_struct else value
    return msgspec.convert(fields, kind, from_attributes=True)


# --- Schedules -------------------------------------------------------------------------------------------------------


def schedule_out(info: ScheduleInfo) -> ScheduleOut:
    """Return the document of a schedule."""
    message = info.message
    fields = _payload_fields(message.payload, message.is_json)
    return _copied(info, ScheduleOut, message=_copied(message, ScheduledOut, **fields))


def schedule_of(out: ScheduleOut) -> ScheduleInfo:
    """Return the schedule of a document."""
    message = _copied(out.message, ScheduledMessage, payload=_payload_of_fields(out.message))
    return _copied(out, ScheduleInfo, message=message)
