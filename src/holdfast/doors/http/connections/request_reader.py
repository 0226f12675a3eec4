"""Requests as they are read off one connection: httptools' parser, held to our limits."""

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
    """The receiver of the requests. It may raise `RefusedRequest`."""

    def begin_request(self, head: RequestHead) -> None: ...

    def add_body(self, part: bytes) -> None: ...

    def end_request(self) -> None: ...


class RequestReader:
    """Parses one connection's bytes."""

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser = self._make_parser()
        self._refusal: RefusedRequest | None = None
        self._target = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        # Bytes since the parser last called back: it keeps what it has not finished reading.
        self._unread_bytes = 0
        self._has_called_back = False
        # After an offer to upgrade: the header that says how long the body is, and whether it is being read again.
        self._framing = b""
        self._is_reading_again = False
        # No byte of an unfinished request was read.
        self.is_idle = True
        # A connection begins with a head that it owes.
        self.is_reading_head = True
        self.is_reading_body = False

    def feed(self, data: bytes) -> None:
        """Read on. Raise `RefusedRequest` if that cannot be."""
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
        """The headers of a request whose head is being read."""
        return dict(self._pairs) if self.is_reading_head else {}

    def _make_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Requests behind one that is its connection's last are read, and dropped once that one is answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                # An offer to speak something else, as Java's client makes it by default, need not be taken. But the
                # parser takes what follows for that something: another one reads on, told only of the body's length.
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
        # Trailers come after the call began, and are no headers of it.
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
        """Stop the parser, which passes on that there was an error, but not which."""
        self._refusal = refusal
        raise refusal
