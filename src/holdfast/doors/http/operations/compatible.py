"""Handle the compatible door, which has integer ids, base64 payloads and RFC 3339 timestamps.

A namespace is a tenant and a topic is a queue; these words are used only here. A dequeue may be a GET that changes
stored messages. Therefore nothing that a browser sends by itself, such as a cookie, may identify a caller of this
server.
"""

import base64
import binascii
import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.doors.http.calls import JSON_TYPE, HttpCall
from holdfast.doors.http.operations.messages import claim, send_watched
from holdfast.doors.http.request_bodies import decode
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import InvalidArgument, QueueNotFound, StaleLease
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import DEFAULT_PRIORITY, Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.compatible import AckIn, CompatibleItem, DequeueIn, LeasedItem, NackIn
from holdfast.wire.http.routes import integer_of
from holdfast.wire.requests import Nothing

DEFAULT_LIMIT = 10

_items = msgspec.json.Decoder(list[CompatibleItem])
_dequeue = msgspec.json.Decoder(DequeueIn)
_ack = msgspec.json.Decoder(AckIn)
_nack = msgspec.json.Decoder(NackIn)

# `datetime.fromisoformat` accepts more than RFC 3339 allows.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last instant that `datetime` can represent.
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


async def enqueue(call: HttpCall) -> None:
    """Handle `POST /enqueue`. All items are checked first; then each queue stores all of its items or none."""
    call.query()
    batches: dict[QueueRef, list[Draft]] = {}
    order: list[QueueRef] = []
    items = decode(_items, await call.body())
    for index, item in enumerate(items):
        ref = call.ref(item.namespace, item.topic)
        order.append(ref)
        batches.setdefault(ref, []).append(_draft_of(item, f"[{index}]", call.given_correlation_id))
    if len(batches) != 1:
        call.queue = None
    enqueued = {ref: iter(each) for ref, each in (await _enqueue_each(call, batches)).items()}
    every = [next(enqueued[ref]) for ref in order]
    if len(every) == 1:
        call.take_correlation_id(every[0].correlation_id)
    await call.answer(encode([each.snowflake for each in every]))


async def _enqueue_each(call: HttpCall, batches: dict[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
    with ExitStack() as traces:
        traced = {
            ref: traces.enter_context(call.tracing.enqueue(call.headers, ref, drafts))
            for ref, drafts in batches.items()
        }
        enqueued = await call.session.enqueue_each({ref: drafts for ref, (drafts, _) in traced.items()})
        for ref, (_, note) in traced.items():
            note(enqueued[ref])
    return enqueued


async def dequeue(call: HttpCall) -> None:
    """Handle `GET /dequeue`."""
    await _dequeue_with(call, DequeueIn())


async def dequeue_by_post(call: HttpCall) -> None:
    """Handle `POST /dequeue`."""
    await _dequeue_with(call, decode(_dequeue, await call.body() or b"{}"))


async def _dequeue_with(call: HttpCall, given: DequeueIn) -> None:
    """Claim messages. Each field may be in the query or in the body, but not in both."""
    fields = call.query("namespace", "topic", "limit")
    for name in fields:
        if getattr(given, name) is not None:
            raise InvalidArgument(f"{name} is given in the query and in the body; give it once", field=name)
    limit = integer_of(fields, "limit") if "limit" in fields else given.limit
    ref = call.ref(fields.get("namespace", given.namespace), fields.get("topic", given.topic))
    unsent = await claim(call, ref, ClaimRequest(limit=DEFAULT_LIMIT if limit is None else limit), 0)
    if len(unsent) == 1:
        call.take_correlation_id(unsent[0].correlation_id)
    try:
        body = encode([_leased(each) for each in unsent])
        await send_watched(call, body, [JSON_TYPE, (b"cache-control", b"no-store")])
    except BaseException:
        call.session.give_back(ref, unsent)
        raise


async def ack(call: HttpCall) -> None:
    """Handle `POST /ack`."""
    call.query()
    await _settle(call, decode(_ack, await call.body()), Settle.ACK)


async def nack(call: HttpCall) -> None:
    """Handle `POST /nack`."""
    call.query()
    given = decode(_nack, await call.body())
    await _settle(call, given, Settle.NACK, given.error)


async def _settle(call: HttpCall, given: AckIn, settle: Settle, error: str | None = None) -> None:
    ref = call.ref(given.namespace, given.topic)
    id = parse_id(given.id)
    receipt = None if given.receipt is None else Receipt.parse(given.receipt)
    if receipt is not None and receipt.id != id:
        raise InvalidArgument("the receipt belongs to another message than id", field="receipt")
    try:
        receipt = receipt or await call.session.held_by(ref, id)
        [result] = await call.settle(ref, [Verdict(settle=settle, receipt=receipt, error=error)])
    except QueueNotFound:
        raise _not_held(id) from None  # the message was deleted with its queue
    call.take_correlation_id(result.correlation_id)
    if not result.ok:
        raise _not_held(id) if result.is_stale else result.failure()
    await call.answer(encode(Nothing()))


def _not_held(id: int) -> StaleLease:
    return StaleLease(f"this caller does not hold message {id}, or the message no longer exists", id=to_uuid(id))


def _draft_of(item: CompatibleItem, where: str, correlation_id: str | None) -> Draft:
    try:
        payload = base64.b64decode(item.payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{where}: payload is not valid base64", field=f"{where}.payload") from None
    return Draft(
        payload=payload,
        is_json=False,
        priority=DEFAULT_PRIORITY if item.priority is None else item.priority,
        deliver_at=None if item.deliver_after is None else parse_instant(item.deliver_after, f"{where}.deliver_after"),
        key=item.idempotency_key,
        correlation_id=correlation_id,
    )


def parse_instant(text: str, field: str) -> int:
    """Return an RFC 3339 timestamp in milliseconds since 1970; 0 if it is earlier.

    Raise `InvalidArgument` for any other text.
    """
    if _INSTANT.fullmatch(text):
        try:
            instant = datetime.fromisoformat(text.upper())
            return max(0, (instant - _EPOCH) // timedelta(milliseconds=1))
        except (ValueError, OverflowError):
            pass  # for example month 13: the error below covers it too
    raise InvalidArgument(
        f"{field} {text[:80]!r} is not a timestamp; give it as 2030-01-31T12:00:00Z, with a time zone", field=field
    )


def write_instant(at_ms: int) -> str:
    """Return milliseconds since 1970 as an RFC 3339 timestamp. An instant after the year 9999 becomes its end."""
    instant = _EPOCH + timedelta(milliseconds=min(at_ms, _LAST_MS))
    return instant.strftime("%Y-%m-%dT%H:%M:%S") + f".{instant.microsecond // 1_000:03}Z"


def _leased(delivery: Delivery) -> LeasedItem:
    return LeasedItem(
        id=delivery.snowflake,
        id_str=str(delivery.snowflake),
        payload=base64.b64encode(delivery.payload).decode(),
        lease_expires_at=write_instant(delivery.lease_expires_at),
        receipt=str(delivery.receipt),
        priority=delivery.priority,
        attempt=delivery.attempt,
    )
