"""A parser of HTTP/1.1 responses, without I/O. The connections on a loop and in threads feed it."""

import re
from collections import deque

import httptools
import msgspec


class HttpReply(msgspec.Struct, frozen=True, gc=False):
    """A complete response."""

    status: int
    # Names are in lower case.
    headers: dict[bytes, bytes]
    body: bytes


# The head that the server writes before a JSON document (`doors/http/connections/response_heads.py`). With it, the
# connection stays open and the length is given once. Any other head goes through the parser.
_JSON_HEAD = re.compile(
    rb"HTTP/1\.1 200 OK\r\n"
    rb"date: [ -~]*\r\n"
    rb"content-type: application/json\r\n"
    rb"content-length: ([0-9]{1,9})\r\n"
    rb"x-correlation-id: ([!-~]*)\r\n\r\n"
)
_CORRELATION_ID = b"x-correlation-id"


def parse_json_response(data: bytes) -> HttpReply | None:
    """Return the response if `data` is exactly one JSON document with the usual head; otherwise return None.

    Of the headers, only the correlation id is kept, because the caller does not need the others.
    """
    head = _JSON_HEAD.match(data)
    if head is None or head.end() + int(head[1]) != len(data):
        return None
    return HttpReply(200, {_CORRELATION_ID: head[2]}, data[head.end() :])


class ResponseParser:
    """The parser of one response. `reply` is set once the response is complete."""

    # Most responses have the usual head and need none of these. `headers` and `parts` are made with `_parser`.
    _parser: httptools.HttpResponseParser | None = None
    status = 0
    is_head_read = False
    reply: HttpReply | None = None
    keeps_alive = False
    headers: dict[bytes, bytes]
    parts: deque[bytes]

    def __init__(self, *, is_stream: bool) -> None:
        # A stream that begins with success is read in parts, as they arrive.
        self.is_streaming = is_stream

    def is_whole(self) -> bool:
        """Return whether the response is complete."""
        return self.reply is not None

    def feed(self, data: bytes) -> bool:
        """Parse the next bytes. Return False for bytes that are not HTTP/1.1, or that follow a complete response."""
        parser = self._parser
        if parser is None:
            if self.reply is not None:
                return False
            if not self.is_streaming and (response := parse_json_response(data)) is not None:
                self.reply, self.is_head_read, self.keeps_alive = response, True, True
                return True
            parser = self._parser = httptools.HttpResponseParser(self)
            self.headers, self.parts = {}, deque()
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return True

    def end(self) -> None:
        """Note the end of the connection, which ends a response without a length."""
        if (
            self.is_head_read
            and self.reply is None
            and b"content-length" not in self.headers
            and b"transfer-encoding" not in self.headers
        ):
            self.on_message_complete()

    def unread(self) -> bytes:
        """Return the parts that were not read, and remove them."""
        if len(self.parts) == 1:
            return self.parts.pop()
        unread = b"".join(self.parts)
        self.parts.clear()
        return unread

    # --- The parser's callbacks ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # an informational response, which the final one follows
            self.headers = {}
            return
        self.status = status
        self.is_head_read = True
        self.is_streaming = self.is_streaming and status == 200

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if not self.is_head_read or self._parser is None:
            return
        self.reply = HttpReply(self.status, self.headers, b"" if self.is_streaming else self.unread())
        self.keeps_alive = self._parser.should_keep_alive()
        self._parser = None  # the parser and this object refer to each other
