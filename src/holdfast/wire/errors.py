"""Errors as HTTP carries them: one table of statuses, one document."""

from typing import Any

from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, Internal, StaleLease

STATUS_BY_CODE: dict[str, int] = {
    "invalid_name": 400,
    "invalid_argument": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "queue_not_found": 404,
    "message_not_found": 404,
    "stale_lease": 409,
    "already_exists": 409,
    "draining": 409,
    "conflict": 412,
    "payload_too_large": 413,
    "over_quota": 429,
    "rate_limited": 429,
    "internal": 500,
    "store_unavailable": 503,
}

# The one code that HTTP spells in its own way.
STALE_LEASE = "queue_message_lease_mismatch"

_RETRY_AFTER_MS = 1_000
_STATUSES_TO_RETRY = frozenset({429, 503})


def to_wire_code(code: str) -> str:
    return STALE_LEASE if code == StaleLease.code else code


def from_wire_code(code: str) -> str:
    return StaleLease.code if code == STALE_LEASE else code


def retry_after_ms(error: HoldfastError) -> int | None:
    """How long a caller is asked to wait; None: asking again would not help."""
    if STATUS_BY_CODE[error.code] not in _STATUSES_TO_RETRY:
        return None
    return int(getattr(error, "retry_after_ms", _RETRY_AFTER_MS))


def error_document(error: HoldfastError) -> dict[str, Any]:
    """`{code, message, …facts, retry_after_ms?}`. Facts come first: none can pass for the code or the message."""
    document: dict[str, Any] = {name: _plain(value) for name, value in error.facts.items() if name != "retry_after_ms"}
    document.update(code=to_wire_code(error.code), message=error.message)
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        document["retry_after_ms"] = wait_ms
    return document


def error_of(document: Any) -> HoldfastError:
    """The error that a server's document tells of; what is not such a document is `Internal`."""
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        return Internal("the server answered an error in no known form")
    facts = {name: value for name, value in document.items() if name not in ("code", "message")}
    kind = ERRORS_BY_CODE.get(from_wire_code(document["code"]), Internal)
    return kind(str(document.get("message", "")), **facts)


def _plain(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
