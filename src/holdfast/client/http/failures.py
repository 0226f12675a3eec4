"""What went wrong with a call, in the words of the API: the server's own error, or what stood in its way."""

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

# Of something between us and the server that finds it gone: 502, 504. The server itself says 503.
UNAVAILABLE = frozenset({502, 503, 504})

_any = msgspec.json.Decoder()


def answer_error(url: str, answer: HttpReply) -> HoldfastError:
    """The error in an answer. What is not one of ours comes from something else at that URL."""
    document = _document(answer.body)
    if isinstance(document, dict) and isinstance(document.get("error"), dict) and "code" in document["error"]:
        return error_of(document["error"])
    status, shown = answer.status, answer.body[:80].decode("utf-8", "replace")
    match status:
        case 401:
            return Unauthenticated(f"{url} asks for a credential (401), but not as Holdfast does: {shown!r}")
        case 403:
            return Forbidden(f"something before the server at {url} refuses this call (403): {shown!r}")
        case 413:
            return PayloadTooLarge(f"something before the server at {url} takes no body of this size (413)")
        case 429:
            return RateLimited(
                f"something before the server at {url} asks to slow down (429)",
                retry_after_ms=retry_after_ms(answer) or 1_000,
            )
        case 431:
            return InvalidArgument(f"{url} finds the headers of this call too large: is the token the right one?")
        case _ if status in UNAVAILABLE:
            return StoreUnavailable(f"{url} answers {status}: the server behind it is not there", url=url)
    return InvalidArgument(
        f"what answers at {url} is not Holdfast ({status}: {shown!r}). Is it the URL that `holdfast serve` showed?",
        field="url",
    )


def strange_answer(url: str) -> InvalidArgument:
    """A success whose body is not the document it should be."""
    return InvalidArgument(
        f"what answers at {url} is not Holdfast, or a version that this client does not know. Is the URL the one that "
        "`holdfast serve` showed?",
        field="url",
    )


def retry_after_ms(answer: HttpReply) -> int | None:
    """Whole seconds; a date, which the header may hold too, is not looked at."""
    given = answer.headers.get(b"retry-after", b"")
    return int(given) * 1_000 if given.isdigit() and len(given) < 7 else None


def is_closing(answer: HttpReply) -> bool:
    """The server refused the call because it is on its way out: it did nothing of it."""
    document = _document(answer.body)
    error: Any = document.get("error") if isinstance(document, dict) else None
    return isinstance(error, dict) and error.get("closing") is True


def has_results(answer: HttpReply) -> bool:
    """Return whether an answer to verdicts says what became of each, whatever its status."""
    document = _document(answer.body)
    return isinstance(document, dict) and isinstance(document.get("results"), list)


def _document(body: bytes) -> Any:
    try:
        return _any.decode(body)
    except ValueError:  # msgspec's errors, and bytes that are no text
        return None
