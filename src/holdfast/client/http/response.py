"""The answer to one call over HTTP/1.1, read from bytes as they come. No I/O: both kinds of connections feed it."""

import re
from collections import deque
from typing import NamedTuple

import httptools


class HttpReply(NamedTuple):
    status: int
    # Names in lower case.
    headers: dict[bytes, bytes]
    body: bytes


# The head that the server writes before a JSON document (`doors/http/connections/response_heads.py`). The
# connection stays open, and the length is stated once. The parser reads any other head.
_JSON_HEAD = re.compile(
    rb"HTTP/1\.1 200 OK\r\n"
    rb"date: [ -~]*\r\n"
    rb"content-type: application/json\r\n"
    rb"content-length: ([0-9]{1,9})\r\n"
    rb"x-correlation-id: ([!-~]*)\r\n\r\n"
)
_CORRELATION_ID = b"x-correlation-id"


def whole_json_answer(data: bytes) -> HttpReply | None:
    """Return the answer if `data` is a JSON document under the usual head, all of it and nothing else.

    Of its headers only the correlation id is kept: the others say nothing that the caller does not know.
    """
    head = _JSON_HEAD.match(data)
    if head is None or head.end() + int(head[1]) != len(data):
        return None
    return HttpReply(200, {_CORRELATION_ID: head[2]}, data[head.end() :])


class Response:
    """Feed it what the connection gives. `answer` is set once the answer is whole."""

    # Most answers need none of these: the server's usual one is taken as it is.
    _parser: httptools.HttpResponseParser | None = None
    status = 0
    is_head_read = False
    answer: HttpReply | None = None
    keeps_alive = False

    def __init__(self, *, is_stream: bool) -> None:
        # Its parts are for the reader as they come: a stream that begins well.
        self.is_streaming = is_stream
        self.headers: dict[bytes, bytes] = {}
        self.parts: deque[bytes] = deque()

    def is_whole(self) -> bool:
        return self.answer is not None

    def feed(self, data: bytes) -> bool:
        """Return False for bytes that are no HTTP/1.1, or that follow a whole answer."""
        parser = self._parser
        if parser is None:
            if self.answer is not None:
                return False
            if not self.is_streaming and (answer := whole_json_answer(data)) is not None:
                self.answer, self.is_head_read, self.keeps_alive = answer, True, True
                return True
            parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return True

    def end(self) -> None:
        """The connection was closed in order: an answer without a length ends with it."""
        if (
            self.is_head_read
            and self.answer is None
            and b"content-length" not in self.headers
            and b"transfer-encoding" not in self.headers
        ):
            self.on_message_complete()

    def unread(self) -> bytes:
        """Return the parts that were not read, and forget them."""
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
        if status < 200:  # only news of an answer to come
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
        self.answer = HttpReply(self.status, self.headers, b"" if self.is_streaming else self.unread())
        self.keeps_alive = self._parser.should_keep_alive()
        self._parser = None  # the two hold each other
