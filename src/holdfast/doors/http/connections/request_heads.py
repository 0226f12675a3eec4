"""Request heads: what is read of one, and which ones are refused before anybody is called."""

from collections.abc import Sequence
from urllib.parse import unquote

import httptools

from holdfast.doors.http.hosts import HOST, is_target_of, is_valid_host
from holdfast.model.message import normalise_correlation_id

# Target, names and values, and four bytes for each header's punctuation.
MAX_HEAD_BYTES = 64 * 1_024
MAX_HEADERS = 200

# Headers of which a second one would mean that a proxy on the way reads the request otherwise than we do.
_ONCE = frozenset({b"authorization", b"content-length", b"host", b"transfer-encoding"})
# The parser also takes 0.9 and 2.0, whose messages are framed in other ways.
_VERSIONS = frozenset({"1.0", "1.1"})
_CHUNKED = b"Transfer-Encoding: chunked"

HeaderPairs = Sequence[tuple[bytes, bytes]]


class RefusedRequest(Exception):
    """A request that is not parsed any further; its connection ends with this response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_http() -> RefusedRequest:
    return RefusedRequest(
        400,
        "this is not valid HTTP/1.1: look at the first line, at the headers, and that there is one Content-Length "
        "or one Transfer-Encoding",
    )


def too_large_head() -> RefusedRequest:
    return RefusedRequest(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes in all: send fewer or smaller ones")


def too_many_headers() -> RefusedRequest:
    return RefusedRequest(431, f"there are more than {MAX_HEADERS} headers: send fewer")


class RequestHead:
    """The head of a request that may be answered.

    Connections share the heads that clients send again and again, so nothing here changes once it is made, and the
    facts that every call asks for are worked out once.
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
        """Raise `RefusedRequest` where the head leaves open how the request is meant."""
        if version not in _VERSIONS:
            raise RefusedRequest(505, f"this server does not speak HTTP/{version}: send HTTP/1.1")
        self.method = method.decode("ascii")
        self.target = target
        self.version = version
        self.pairs = pairs
        # By name; of a header that comes twice the first counts.
        self.headers = headers = dict(reversed(pairs))
        self.keep_alive = keep_alive and version != "1.0"
        self.is_upgrade = is_upgrade
        if len(headers) < len(pairs):
            _check_once(pairs)
        # The header that says how long the body is; empty if there is none.
        self.framing = _framing(headers, version)
        _check_host(headers, target, version)
        self.host = headers.get(HOST, b"")
        # Programs do not send these: see `check_origin`.
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
        """Return whether the request can be carried out without a task, once its body is there."""
        return (
            self.method == "POST"
            and self.version == "1.1"
            and not self.is_upgrade
            and not self.expects_continue
            and self.headers.get(b"content-type", b"").lstrip()[:9].lower() != b"multipart"
        )


def _check_once(pairs: HeaderPairs) -> None:
    names = [name for name, _ in pairs]
    for name in _ONCE:
        if names.count(name) > 1:
            raise RefusedRequest(400, f"there are two {name.decode()} headers: send one")


def _framing(headers: dict[bytes, bytes], version: str) -> bytes:
    """Return the header that says where the request ends, which must not be open to two readings."""
    encoding = headers.get(b"transfer-encoding")
    length = headers.get(b"content-length", b"0")
    if encoding is None:
        return b"" if length == b"0" else b"Content-Length: " + length
    if b"content-length" in headers:
        raise RefusedRequest(400, "there are both Transfer-Encoding and Content-Length: send one")
    if encoding.strip().lower() != b"chunked" or version == "1.0":
        raise RefusedRequest(400, "the only Transfer-Encoding is chunked, and only in HTTP/1.1")
    return _CHUNKED


def _check_host(headers: dict[bytes, bytes], target: bytes, version: str) -> None:
    """Refuse a request that does not say, or says twice, by which name it calls this server (RFC 9112, 3.2)."""
    host = headers.get(HOST)
    if host is None:
        # HTTP/1.0 has no such header. The door decides whether it answers a request without one.
        if version != "1.0":
            raise RefusedRequest(
                400, "there is no Host header: HTTP/1.1 needs one, send the name that you call this server by"
            )
    elif not is_valid_host(host):
        raise RefusedRequest(400, "the Host header is not a name or an address with an optional port")
    if target[:1] != b"/" and target != b"*" and not is_target_of(target, host or b""):
        raise RefusedRequest(400, "the request's target and its Host header name different hosts: send the path alone")


def _split(target: bytes) -> tuple[str, bytes, bytes]:
    """Return a target's path, decoded and as it was sent, and its query."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise not_http() from None
    raw_path: bytes | None = url.path
    if raw_path is None:
        raise not_http()
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, url.query or b""
