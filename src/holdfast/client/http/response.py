"""The answer to one call over HTTP/1.1, read from bytes as they come. No I/O: both kinds of connections feed it."""

from collections import deque
from typing import NamedTuple

import httptools


class Answer(NamedTuple):
    status: int
    # Names in lower case.
    headers: dict[bytes, bytes]
    body: bytes


class Response:
    """Feed it what the connection gives. `answer` is set once the answer is whole."""

    __slots__ = ("_parser", "answer", "headers", "is_head_read", "is_streaming", "keeps_alive", "parts", "status")

    def __init__(self, *, is_stream: bool) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.parts: deque[bytes] = deque()
        self.status = 0
        self.is_head_read = False
        # Its parts are for the reader as they come: a stream that begins well.
        self.is_streaming = is_stream
        self.answer: Answer | None = None
        self.keeps_alive = False

    def is_whole(self) -> bool:
        return self.answer is not None

    def feed(self, data: bytes) -> bool:
        """Return False for bytes that are no HTTP/1.1, or that follow a whole answer."""
        if self._parser is None:
            return False
        try:
            self._parser.feed_data(data)
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
        self.answer = Answer(self.status, self.headers, b"" if self.is_streaming else self.unread())
        self.keeps_alive = self._parser.should_keep_alive()
        self._parser = None  # the two hold each other
