"""Parse the requests of one connection with httptools, and enforce limits."""

from typing import Protocol

import httptools

from holdfast.doors.http.connections.request_heads import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    RefusedRequest,
    RequestHead,
    not_http,
    too_large_head,
    too_many_headers,
)


class RequestSink(Protocol):
    """The receiver of parsed requests. Its methods may raise `RefusedRequest`."""

    def begin_request(self, head: RequestHead) -> None:
        """Take the head of the next request."""

    def add_body(self, part: bytes) -> None:
        """Take a part of the request's body."""

    def end_request(self) -> None:
        """Note that the request is complete."""


class RequestReader:
    """The parser of one connection's requests."""

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser = self._make_parser()
        self._refusal: RefusedRequest | None = None
        self._target = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        # The bytes since the parser last called back. It buffers an element until it is complete.
        self._unread_bytes = 0
        self._has_called_back = False
        # After an upgrade request: the header that gives the length of the body, and whether that header is being
        # passed to the new parser.
        self._framing = b""
        self._is_reading_again = False
        # Whether the parser is between two requests.
        self.is_idle = True
        # True from the start, because a new connection has to send a head.
        self.is_reading_head = True
        self.is_reading_body = False

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raise `RefusedRequest` for an invalid request."""
        self._has_called_back = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            raise self._refusal or not_http() from None
        self._unread_bytes = 0 if self._has_called_back else self._unread_bytes + len(data)
        if self._unread_bytes > MAX_HEAD_BYTES:
            raise too_large_head()

    @property
    def headers_so_far(self) -> dict[bytes, bytes]:
        """Return the headers received so far of an incomplete head."""
        return dict(self._pairs) if self.is_reading_head else {}

    def _make_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests after the last one of a connection are parsed, and dropped once that one has its response.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                # A request to upgrade, as Java's client sends by default, may be ignored. But this parser treats the
                # following bytes as the other protocol. A new parser therefore reads on, and gets only the length of
                # the body.
                data = data[offer.args[0] :]
                self._parser = self._make_parser()
                framing, self._framing = self._framing, b""
                if framing:
                    self._is_reading_again = True
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
                    self._is_reading_again = False

    # --- Called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_reading_again:
            return
        self._has_called_back = True
        self.is_idle = False
        self.is_reading_head = True
        self._head_bytes = 0
        self._target = b""
        self._pairs = []

    def on_url(self, url: bytes) -> None:
        if self._is_reading_again:
            return
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_reading_again:
            return
        self._count(len(name) + len(value) + 4)
        # Trailers arrive after the call has begun, and are not headers of the request.
        if not self.is_reading_head:
            return
        if len(self._pairs) >= MAX_HEADERS:
            self._refuse(too_many_headers())
        self._pairs.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_reading_again:
            return
        self._has_called_back = True
        parser = self._parser
        try:
            head = RequestHead(
                method=parser.get_method(),
                target=self._target,
                version=parser.get_http_version(),
                pairs=self._pairs,
                keep_alive=parser.should_keep_alive(),
                is_upgrade=parser.should_upgrade(),
            )
            self._sink.begin_request(head)
        except RefusedRequest as refusal:
            self._refuse(refusal)
        self.is_reading_head = False
        self.is_reading_body = True
        if head.is_upgrade:
            self._framing = head.framing

    def on_body(self, body: bytes) -> None:
        self._has_called_back = True
        self._sink.add_body(body)

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self._has_called_back = True
        self.is_reading_body = False
        self.is_idle = True
        self._sink.end_request()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(too_large_head())

    def _refuse(self, refusal: RefusedRequest) -> None:
        """Stop the parser. It reports only that a callback failed, so the refusal is kept here."""
        self._refusal = refusal
        raise refusal
