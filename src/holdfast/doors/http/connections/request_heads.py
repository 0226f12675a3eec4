"""Parse request heads, and refuse invalid ones before any handler runs."""

from collections.abc import Sequence
from urllib.parse import unquote

import httptools

from holdfast.doors.http.hosts import HOST, is_target_of, is_valid_host
from holdfast.model.message import normalise_correlation_id

# The target, the names and values of headers, and four bytes of punctuation per header.
MAX_HEAD_BYTES = 64 * 1_024
MAX_HEADERS = 200

# Headers that may occur only once. A proxy on the way could read a repeated one differently than this server.
_SINGLE_HEADERS = frozenset({b"authorization", b"content-length", b"host", b"transfer-encoding"})
# The parser also accepts 0.9 and 2.0, whose messages are framed differently.
_VERSIONS = frozenset({"1.0", "1.1"})
_CHUNKED = b"Transfer-Encoding: chunked"

HeaderPairs = Sequence[tuple[bytes, bytes]]


class RefusedRequest(Exception):
    """A request is not parsed any further, and its connection ends with this response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_http() -> RefusedRequest:
    """Return the refusal of bytes that the parser rejects."""
    return RefusedRequest(
        400,
        "the request is not valid HTTP/1.1; check its first line and headers, and that it has one Content-Length or "
        "one Transfer-Encoding",
    )


def too_large_head() -> RefusedRequest:
    """Return the refusal of a head above `MAX_HEAD_BYTES`."""
    return RefusedRequest(
        431, f"the headers are larger than {MAX_HEAD_BYTES} bytes in total; send fewer or smaller ones"
    )


def too_many_headers() -> RefusedRequest:
    """Return the refusal of a head with more than `MAX_HEADERS` headers."""
    return RefusedRequest(431, f"the request has more than {MAX_HEADERS} headers; send fewer")


class RequestHead:
    """The head of a valid request.

    Connections share the heads that clients send again and again. Therefore a head never changes, and the properties
    that every call needs are computed once.
    """

    __slots__ = (
        "comes_in_parts",
        "correlation_id",
        "expects_continue",
        "framing",
        "has_body",
        "headers",
        "host",
        "is_encoded",
        "is_from_page",
        "is_traced",
        "is_upgrade",
        "keep_alive",
        "method",
        "pairs",
        "path",
        "query",
        "raw_path",
        "target",
        "version",
        "wants_parts",
    )

    def __init__(
        self,
        *,
        method: bytes,
        target: bytes,
        version: str,
        pairs: HeaderPairs,
        keep_alive: bool,
        is_upgrade: bool = False,
    ) -> None:
        """Raise `RefusedRequest` if the head is ambiguous or of an unsupported version."""
        if version not in _VERSIONS:
            raise RefusedRequest(505, f"HTTP/{version} is not supported; send HTTP/1.1")
        self.method = method.decode("ascii")
        self.target = target
        self.version = version
        self.pairs = pairs
        # By name. The first of repeated headers counts.
        self.headers = headers = dict(reversed(pairs))
        self.keep_alive = keep_alive and version != "1.0"
        self.is_upgrade = is_upgrade
        if len(headers) < len(pairs):
            _check_single_headers(pairs)
        # The header that gives the length of the body; empty if there is none.
        self.framing = _framing(headers, version)
        _check_host(headers, target, version)
        self.host = headers.get(HOST, b"")
        # Only browsers send these headers: see `check_origin`.
        self.is_from_page = b"origin" in headers or b"sec-fetch-site" in headers
        self.path, self.raw_path, self.query = _split(target)
        content_type = headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
        accepted = headers.get(b"accept", b"").split(b";", 1)[0].strip().lower()
        given = headers.get(b"x-correlation-id")
        self.correlation_id = None if given is None else normalise_correlation_id(given.decode("latin-1"))
        self.comes_in_parts = content_type == b"multipart/form-data"
        self.wants_parts = accepted == b"multipart/mixed"
        # HTTP/1.0 has no interim responses (RFC 9110, 10.1.1).
        self.expects_continue = version != "1.0" and headers.get(b"expect", b"").lower() == b"100-continue"
        self.has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        self.is_encoded = headers.get(b"content-encoding", b"identity").strip().lower() != b"identity"
        self.is_traced = b"traceparent" in headers

    @property
    def is_plain(self) -> bool:
        """Return whether the request can run without a task once its body has arrived."""
        return (
            self.method == "POST"
            and self.version == "1.1"
            and not self.is_upgrade
            and not self.expects_continue
            and self.headers.get(b"content-type", b"").lstrip()[:9].lower() != b"multipart"
        )


def _check_single_headers(pairs: HeaderPairs) -> None:
    names = [name for name, _ in pairs]
    for name in _SINGLE_HEADERS:
        if names.count(name) > 1:
            raise RefusedRequest(400, f"the request has several {name.decode()} headers; send only one")


def _framing(headers: dict[bytes, bytes], version: str) -> bytes:
    """Return the header that gives the length of the body. Refuse a request whose length is ambiguous."""
    encoding = headers.get(b"transfer-encoding")
    length = headers.get(b"content-length", b"0")
    if encoding is None:
        return b"" if length == b"0" else b"Content-Length: " + length
    if b"content-length" in headers:
        raise RefusedRequest(400, "the request has both Transfer-Encoding and Content-Length; send only one of them")
    if encoding.strip().lower() != b"chunked" or version == "1.0":
        raise RefusedRequest(400, "the only supported Transfer-Encoding is chunked, and only in HTTP/1.1")
    return _CHUNKED


def _check_host(headers: dict[bytes, bytes], target: bytes, version: str) -> None:
    """Refuse a request with a missing or invalid Host, or whose target names another host (RFC 9112, 3.2)."""
    host = headers.get(HOST)
    if host is None:
        # HTTP/1.0 does not require the header. The door decides whether it accepts a request without one.
        if version != "1.0":
            raise RefusedRequest(
                400, "the Host header is missing; HTTP/1.1 requires it, so send the name by which you call this server"
            )
    elif not is_valid_host(host):
        raise RefusedRequest(400, "the Host header is not a name or an address with an optional port")
    if target[:1] != b"/" and target != b"*" and not is_target_of(target, host or b""):
        raise RefusedRequest(400, "the request target and the Host header name different hosts; send only the path")


def _split(target: bytes) -> tuple[str, bytes, bytes]:
    """Return a target's decoded path, its path as it was sent, and its query."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise not_http() from None
    raw_path: bytes | None = url.path
    if raw_path is None:
        raise not_http()
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, url.query or b""
