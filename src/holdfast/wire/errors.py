"""Errors on the wire: the HTTP status of each code, and the error document."""

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

# The only code that HTTP spells differently.
STALE_LEASE = "queue_message_lease_mismatch"

_RETRY_AFTER_MS = 1_000
_STATUSES_TO_RETRY = frozenset({429, 503})


def to_wire_code(code: str) -> str:
    """Return an error code as HTTP spells it."""
    return STALE_LEASE if code == StaleLease.code else code


def from_wire_code(code: str) -> str:
    """Return the error code that HTTP spells `code`."""
    return StaleLease.code if code == STALE_LEASE else code


def retry_after_ms(error: HoldfastError) -> int | None:
    """Return how long the caller should wait before a retry; None if a retry would not help."""
    if STATUS_BY_CODE[error.code] not in _STATUSES_TO_RETRY:
        return None
    return int(getattr(error, "retry_after_ms", _RETRY_AFTER_MS))


def error_document(error: HoldfastError) -> dict[str, Any]:
    """Return an error as `{code, message, …facts, retry_after_ms?}`."""
    # Facts are set first, so that no fact can replace the code or the message.
    document: dict[str, Any] = {name: _plain(value) for name, value in error.facts.items() if name != "retry_after_ms"}
    document.update(code=to_wire_code(error.code), message=error.message)
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        document["retry_after_ms"] = wait_ms
    return document


def error_of(document: Any) -> HoldfastError:
    """Return the error of a server's error document, or `Internal` if it is not an error document."""
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        return Internal("the server returned an error in an unknown format")
    facts = {name: value for name, value in document.items() if name not in ("code", "message")}
    kind = ERRORS_BY_CODE.get(from_wire_code(document["code"]), Internal)
    return kind(str(document.get("message", "")), **facts)


def _plain(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
