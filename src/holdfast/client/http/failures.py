"""The errors of failed calls: those of the server, and those of a proxy before it."""

from typing import Any

import msgspec

from holdfast.client.http.response import HttpReply
from holdfast.model.errors import (
    Forbidden,
    HoldfastError,
    InvalidArgument,
    PayloadTooLarge,
    RateLimited,
    StoreUnavailable,
    Unauthenticated,
)
from holdfast.wire.errors import error_of

# Statuses that mean the server is unavailable. The server itself sends 503; a proxy sends 502 or 504.
UNAVAILABLE = frozenset({502, 503, 504})

_any = msgspec.json.Decoder()


def error_of_response(url: str, response: HttpReply) -> HoldfastError:
    """Return the error in a response. If it is not one of Holdfast, another program answered at the URL."""
    document = _document(response.body)
    if isinstance(document, dict) and isinstance(document.get("error"), dict) and "code" in document["error"]:
        return error_of(document["error"])
    status, shown = response.status, response.body[:80].decode("utf-8", "replace")
    match status:
        case 401:
            return Unauthenticated(f"{url} requires a credential (401), but is not a Holdfast server: {shown!r}")
        case 403:
            return Forbidden(f"a proxy before the server at {url} refuses this call (403): {shown!r}")
        case 413:
            return PayloadTooLarge(f"a proxy before the server at {url} accepts no body of this size (413)")
        case 429:
            return RateLimited(
                f"a proxy before the server at {url} limits the rate of requests (429)",
                retry_after_ms=retry_after_ms(response) or 1_000,
            )
        case 431:
            return InvalidArgument(f"{url} refuses the headers of this call as too large: check the token")
        case _ if status in UNAVAILABLE:
            return StoreUnavailable(f"{url} answers {status}: the server behind the proxy is unavailable", url=url)
    return InvalidArgument(
        f"{url} is not a Holdfast server ({status}: {shown!r}); use the URL that `holdfast serve` showed",
        field="url",
    )


def unexpected_response(url: str) -> InvalidArgument:
    """Return the error for a success response with an unexpected body."""
    return InvalidArgument(
        f"{url} is not a Holdfast server, or has a version that this client does not know; use the URL that "
        "`holdfast serve` showed",
        field="url",
    )


def retry_after_ms(response: HttpReply) -> int | None:
    """Return the header Retry-After in milliseconds; None without one, or if it is a date."""
    given = response.headers.get(b"retry-after", b"")
    return int(given) * 1_000 if given.isdigit() and len(given) < 7 else None


def is_closing(response: HttpReply) -> bool:
    """Return whether the server refused the call because it is shutting down. The call then had no effect."""
    document = _document(response.body)
    error: Any = document.get("error") if isinstance(document, dict) else None
    return isinstance(error, dict) and error.get("closing") is True


def has_results(response: HttpReply) -> bool:
    """Return whether a response to verdicts has a result for each, whatever its status."""
    document = _document(response.body)
    return isinstance(document, dict) and isinstance(document.get("results"), list)


def _document(body: bytes) -> Any:
    try:
        return _any.decode(body)
    except ValueError:  # msgspec's errors, and bytes that are not UTF-8
        return None
