"""Make response heads. The bytes that all responses of a server share are made once a second, not per response."""

import re
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from holdfast.clock import Clock

Headers = Iterable[tuple[bytes, bytes]]

CLOSE = (b"connection", b"close")
STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
CONTINUE = STATUS_LINES[100] + b"\r\n"

# RFC 9110, 5.1 and 5.5. A line break in a value could add headers or a second response.
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ResponseHeads:
    """The maker of a server's response heads."""

    def __init__(self, clock: Clock) -> None:
        self._now_ms = clock.now_ms
        self._stale_at = float("-inf")
        self._date = b""
        self._json_ok = b""
        # Whether every response from now on is the last of its connection.
        self.is_last = False

    def json_ok(self, now_s: float) -> bytes:
        """Return the head of a 200 with a JSON document, up to the value of Content-Length, which the caller adds.

        `now_s` is the event loop's time. The date is updated at most once a second.
        """
        if now_s >= self._stale_at:
            self._refresh(now_s)
        return self._json_ok

    def make(self, status: int, headers: Headers, *, keep_alive: bool, now_s: float) -> bytes:
        """Return a head without the empty line at its end. The headers are not checked."""
        if now_s >= self._stale_at:
            self._refresh(now_s)
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._date]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def _refresh(self, now_s: float) -> None:
        self._stale_at = now_s + 1
        self._date = f"date: {formatdate(self._now_ms() // 1_000, usegmt=True)}\r\n".encode()
        self._json_ok = STATUS_LINES[200] + self._date + b"content-type: application/json\r\ncontent-length: "


def check_header(name: bytes, value: bytes) -> None:
    """Raise `ValueError` for a header with an invalid name, or with a line break or control character in its value."""
    if _NAME.fullmatch(name) is None or _BAD_VALUE.search(value):
        raise ValueError(f"the response has an invalid header {name!r}")
