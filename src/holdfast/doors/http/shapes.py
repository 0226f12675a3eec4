"""Between the wire's documents and the model: nothing is decided here."""

import base64
import binascii
from collections.abc import Iterable

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from holdfast.model.answers import Delivery, Enqueued, Info, LedgerEntry, Result
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.message import BYTES, DEFAULT_PRIORITY, JSON, Draft, Receipt, normalise_correlation_id
from holdfast.model.requests import Ask, Settle, StateDocument, Verdict
from holdfast.wire.errors import to_wire_code
from holdfast.wire.http import (
    DeliveryOut,
    DequeueRequest,
    EnqueuedOut,
    InfoOut,
    LedgerEntryOut,
    MessageIn,
    ReceiptIn,
    ResultOut,
    StateOut,
    VerdictIn,
)

# The verdicts that may ride on a dequeue.
_RIDING = {"ack": Settle.ACK, "nack": Settle.NACK, "release": Settle.RELEASE}


def payload_of(payload: Raw | UnsetType, payload_base64: str | UnsetType, where: str) -> tuple[bytes, bool]:
    """The payload's bytes, and whether it was given as JSON."""
    if payload is not UNSET:
        if payload_base64 is not UNSET:
            raise InvalidArgument(f"{where} has payload and payload_base64: give one", field=f"{where}.payload_base64")
        return bytes(payload), True
    if payload_base64 is UNSET:
        raise InvalidArgument(f"{where} has neither payload nor payload_base64", field=f"{where}.payload")
    try:
        return base64.b64decode(payload_base64, validate=True), False
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{where}: payload_base64 is not base64", field=f"{where}.payload_base64") from None


def draft_of(message: MessageIn, where: str, correlation_id: str | None) -> Draft:
    """`correlation_id` is the call's, for messages that have none of their own."""
    payload, is_json = payload_of(message.payload, message.payload_base64, where)
    return draft_with(message, payload, is_json=is_json, correlation_id=correlation_id)


def draft_with(message: MessageIn, payload: bytes, *, is_json: bool, correlation_id: str | None) -> Draft:
    own = None if message.correlation_id is None else normalise_correlation_id(message.correlation_id)
    return Draft(
        payload=payload,
        content_type=message.content_type or (JSON if is_json else BYTES),
        is_json=is_json,
        headers=message.headers or {},
        priority=DEFAULT_PRIORITY if message.priority is None else message.priority,
        delay_ms=message.delay_ms or 0,
        deliver_at=message.deliver_at,
        ttl_ms=message.ttl_ms,
        key=message.idempotency_key,
        group=message.group,
        correlation_id=own or correlation_id,
        max_retries=message.max_retries,
    )


def enqueued_out(enqueued: Enqueued) -> EnqueuedOut:
    id = enqueued.id
    return EnqueuedOut(
        id=id,
        snowflake=str(enqueued.snowflake),
        correlation_id=enqueued.given_correlation_id or id,
        duplicate=enqueued.duplicate,
    )


def ask_of(request: DequeueRequest, *, with_state: bool, ledger: tuple[str, int] | None = None) -> Ask:
    return Ask(
        limit=request.limit,
        lease_ms=request.lease_ms,
        owner=request.owner,
        with_state=with_state,
        ledger=ledger,
        streams=request.payloads_apart,
    )


def delivery_out(delivery: Delivery, *, with_payload: bool = True) -> DeliveryOut:
    """Without its payload where that follows as a part of its own, or is for the caller to read by its receipt."""
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


def state_out(state: StateDocument) -> StateOut:
    return StateOut(
        document=Raw(b"null" if state.document is None else state.document),
        etag=state.etag,
        progress=UNSET if state.progress is None else state.progress,
    )


def riding_verdicts(given: Iterable[VerdictIn]) -> list[Verdict]:
    verdicts = []
    for each in given:
        settle = _RIDING.get(each.verdict)
        if settle is None:
            raise InvalidArgument(
                f"{each.verdict[:80]!r} is not a verdict: give {', '.join(_RIDING)}", field="verdicts.verdict"
            )
        verdicts.append(
            Verdict(
                settle=settle,
                receipt=Receipt.parse(each.receipt),
                error=each.error,
                delay_ms=each.delay_ms,
                defer=each.defer,
                final=each.final,
                exhausted=each.exhausted,
            )
        )
    return verdicts


def receipts_of(given: Iterable[str | ReceiptIn]) -> list[ReceiptIn]:
    return [ReceiptIn(receipt=each) if isinstance(each, str) else each for each in given]


def result_out(settle: Settle, result: Result) -> ResultOut:
    """A result says what its verdict leaves open: a nack and a release the state, an extend the lease."""
    tells_state = settle in (Settle.NACK, Settle.RELEASE) and result.ok
    id = result.id
    return ResultOut(
        id=id,
        ok=result.ok,
        correlation_id=(result.given_correlation_id or id) if result.is_known else None,
        error=UNSET if result.error is None else to_wire_code(result.error),
        state=result.state if tells_state and result.state is not None else UNSET,
        retry_at=result.retry_at if settle is Settle.NACK and result.ok else UNSET,
        lease_expires_at=result.lease_expires_at if settle is Settle.EXTEND and result.ok else UNSET,
    )


def info_out(info: Info) -> InfoOut:
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    if info.payload is not None:
        if info.is_json:
            payload = Raw(info.payload)
        else:
            payload_base64 = base64.b64encode(info.payload).decode()
    return InfoOut(
        id=info.id,
        snowflake=str(info.snowflake),
        state=info.state,
        priority=info.priority,
        attempt=info.attempt,
        failures=info.failures,
        expiries=info.expiries,
        releases=info.releases,
        version=info.version,
        enqueued_at=info.enqueued_at,
        visible_at=info.visible_at,
        lease_expires_at=info.lease_expires_at,
        last_error=info.last_error,
        reason=info.reason,
        correlation_id=info.correlation_id,
        headers=info.headers,
        bytes=info.bytes,
        content_type=info.content_type,
        group=info.group,
        owner=info.owner,
        claimed_at=info.claimed_at,
        settled_at=info.settled_at,
        expires_at=info.expires_at,
        progress=info.progress,
        payload=payload,
        payload_base64=payload_base64,
    )


def ledger_entry_out(entry: LedgerEntry) -> LedgerEntryOut:
    return LedgerEntryOut(
        number=entry.number,
        claimed_at=entry.claimed_at,
        messages=[delivery_out(each) for each in entry.deliveries],
        lost=entry.lost,
    )


def results_error(results: Iterable[Result]) -> HoldfastError | None:
    """Return the error that stands beside the results of a call; None if every verdict was carried out.

    Verdicts that could not be written go before stale ones: sending them again helps.
    """
    failed = sorted((each for each in results if not each.ok), key=lambda each: not each.is_retryable)
    if not failed:
        return None
    error = failed[0].failure()
    same = [each.id for each in failed if each.error == error.code]
    what = (
        "of the receipts no longer hold their message"
        if failed[0].is_stale
        else f"of the verdicts were not carried out ({error.code}); their leases stand, so send them again"
    )
    return type(error)(f"{len(same)} {what}; the results say what became of each", ids=same)
