"""Convert new messages to and from HTTP documents."""

from typing import Any

from msgspec import UNSET, Raw

from holdfast.model.message import BYTES, DEFAULT_PRIORITY, JSON, Draft, normalise_correlation_id
from holdfast.wire.http.bodies import MessageIn, MetaIn
from holdfast.wire.http.shapes import payload_in, payload_of


def is_json(draft: Draft) -> bool:
    """Return whether a message's payload is JSON."""
    return draft.content_type == JSON if draft.is_json is None else draft.is_json


def is_plain(draft: Draft) -> bool:
    """Return whether a message is JSON without options, as most messages are."""
    return draft == Draft(payload=draft.payload, content_type=JSON)


def message_in(draft: Draft) -> MessageIn:
    """Return the document of a new message."""
    if is_plain(draft):
        return MessageIn(payload=Raw(draft.payload))
    given_as_json = is_json(draft)
    payload, payload_base64 = payload_in(draft.payload, given_as_json)
    return MessageIn(
        payload=payload, payload_base64=payload_base64, **_options(draft, JSON if given_as_json else BYTES)
    )


def meta_in(draft: Draft, tenant: str, queue: str) -> MetaIn:
    """Return the `meta` part of a multipart enqueue."""
    return MetaIn(tenant=tenant, queue=queue, **_options(draft, BYTES))


def _options(draft: Draft, default_type: str) -> dict[str, Any]:
    """Return the options that differ from their defaults. Default values are not sent, to save bytes."""
    options: dict[str, Any] = {
        "content_type": None if draft.content_type == default_type else draft.content_type,
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


def draft_of(message: MessageIn, where: str, correlation_id: str | None) -> Draft:
    """Return the new message of a document. Raise `InvalidArgument` for a missing or malformed payload.

    `where` is the path of the document in the body, for errors. `correlation_id` is the call's, for messages that have
    none of their own.
    """
    # Most messages have no options.
    if message == MessageIn(payload=message.payload) and message.payload is not UNSET:
        return Draft(payload=bytes(message.payload), content_type=JSON, is_json=True, correlation_id=correlation_id)
    payload, is_json = payload_of(message.payload, message.payload_base64, where)
    return draft_with(message, payload, is_json=is_json, correlation_id=correlation_id)


def draft_with(message: MessageIn, payload: bytes, *, is_json: bool, correlation_id: str | None) -> Draft:
    """Return the new message of a document and its payload."""
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
