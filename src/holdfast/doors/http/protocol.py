"""HTTP/1.1 on one connection: uvicorn's protocol, less patient, and telling who the peer is.

What a server must set for it (`uvicorn.Config`):

- `http=HttpProtocol`, `ws="none"`, `lifespan` as it likes, `server_header=False`, `proxy_headers=False`. With proxy
  headers, a caller would write its own address.
- `timeout_keep_alive`: how long a connection may stand idle between two requests. This file does not count that time.
- TLS: `ssl_certfile=tls_cert`, `ssl_keyfile=tls_key`. For client certificates also `ssl_ca_certs=tls_client_ca` and
  `ssl_cert_reqs=ssl.CERT_OPTIONAL`: a certificate that is sent must be good or the handshake fails; a caller without
  one may still have a token, or ask for `/healthz`. `ssl.CERT_REQUIRED` turns those away in the handshake.

In the scope of each call, `scope["extensions"]["holdfast"]` is its `Exchange`: who the peer is, and a short way to its
body and for its answer. An application with `short_ways` (by path, for POST) is not called at all for those, when the
call came whole in one read: it is given the `ShortExchange` instead.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from holdfast.doors.http.exchange import CycleExchange, ShortExchange
from holdfast.doors.http.hosts import HOST, is_target_of, is_valid_host
from holdfast.doors.http.steps import Rest
from holdfast.doors.identity import PeerCertificate, peer_of
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import normalise_correlation_id
from holdfast.wire.errors import error_document
from holdfast.wire.http import encode

# URL, names and values, and four bytes for each header's punctuation.
MAX_HEAD_BYTES = 64 * 1_024
MAX_HEADERS = 200
# Requests sent ahead of their turn. Reading stops at the first of them, but one read may bring thousands.
MAX_PIPELINED = 64
# From the first byte, or from the connection, to the end of the headers.
HEAD_PATIENCE_S = 10.0
# A caller that is refused while it sends would lose the answer to a reset: what it still sends is read and dropped.
LINGER_S = 1.0
MAX_LINGER_BYTES = 64 * 1_024 * 1_024

# Headers of which a second one would mean that somebody on the way reads the request otherwise than we do.
_ONCE = frozenset({b"authorization", b"content-length", b"host", b"transfer-encoding"})


class RefusedRequest(Exception):
    """Not to be parsed any further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


_TOO_LARGE = (431, f"the headers are larger than {MAX_HEAD_BYTES} bytes in all: send fewer or smaller ones")
_TOO_MANY = (431, f"there are more than {MAX_HEADERS} headers: send fewer")
_GARBAGE = (
    400,
    "this is not valid HTTP/1.1: look at the first line, at the headers, and that there is one Content-Length "
    "or one Transfer-Encoding",
)


ShortWay = Callable[[ShortExchange], Coroutine[Any, Any, None]]


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer: PeerCertificate | None = None
        self._short_ways: Mapping[bytes, ShortWay] = getattr(self.app, "short_ways", {})
        # The request's headers by name; of one that comes twice the first counts.
        self._given: dict[bytes, bytes] = {}
        # The Host that the last request named and that was found valid: the next one names the same.
        self._host: bytes | None = None
        # Of a request that may take the short way: as much of its body as has come.
        self._held_body: bytes | None = None
        # When the last answer was sent and nothing was asked since; one timer looks at it, not one for each answer.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._refusal: RefusedRequest | None = None
        # Whatever comes from now on is dropped.
        self._is_refused = False
        self._is_reading_head = True
        self._is_reading_body = False
        self._head_bytes = 0
        # Bytes since the parser last had something to say: it keeps what it has not finished reading.
        self._unsaid_bytes = 0
        self._has_said = False
        # After an offer to upgrade: the header that says how long the body is, and whether it is being read again.
        self._framing = b""
        self._is_reading_again = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = peer_of(transport)
        self._patience = self.loop.call_later(HEAD_PATIENCE_S, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        self._unset_keepalive_if_required()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._unsaid_bytes += len(data)
            if self._unsaid_bytes > MAX_LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self._has_said = False
        try:
            self._feed(data)
            if self._held_body is not None:
                self._begin_long()  # there is more of it to come
            self._unsaid_bytes = 0 if self._has_said else self._unsaid_bytes + len(data)
            if self._unsaid_bytes > MAX_HEAD_BYTES:
                self._refuse(*_TOO_LARGE)
                return
        except httptools.HttpParserError:
            refusal = self._refusal
            self._refuse(*(_GARBAGE if refusal is None else (refusal.status, refusal.message)))
            return
        # In the middle of a head, or of a body that nobody reads any more: not for long. While a request is being
        # answered, whoever answers it decides how long its body may take.
        if self._is_answering or not (self._is_reading_head or self._is_reading_body):
            self._stop_patience()
        elif self._patience is None:
            self._patience = self.loop.call_later(HEAD_PATIENCE_S, self._lose_patience)

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                # An offer to speak something else, as Java's client makes it by default, need not be taken. But the
                # parser takes what follows for that something: another one reads on, told only of the body's length.
                data = data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                framing, self._framing = self._framing, b""
                if framing:
                    self._is_reading_again = True
                    self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
                    self._is_reading_again = False

    def on_message_begin(self) -> None:
        if self._is_reading_again:
            return
        self._has_said = True
        self._is_reading_head = True
        self._head_bytes = 0
        self._idle_since = None
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        if self._is_reading_again:
            return
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_reading_again:
            return
        self._count(len(name) + len(value) + 4)
        # Trailers come after the call began, and are no headers of it.
        if not self._is_reading_head:
            return
        if len(self.headers) >= MAX_HEADERS:
            self._stop(*_TOO_MANY)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_reading_again:
            return
        self._has_said = True
        framing = self._check_framing()
        self._check_host()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(400, f"more than {MAX_PIPELINED} requests were sent ahead: wait for answers")
        self._is_reading_head = False
        self._is_reading_body = True
        is_upgrade = self.parser.should_upgrade()
        if self.url in self._short_ways and not is_upgrade and self._may_be_short():
            self._held_body = b""
            return
        self._begin_cycle()
        if is_upgrade:
            self._framing = framing

    def _may_be_short(self) -> bool:
        return (
            not self._is_answering
            and not self.expect_100_continue
            and self._given.get(b"content-type", b"").lstrip()[:9].lower() != b"multipart"  # it is read as events
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
        )

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = {"holdfast": CycleExchange(cycle, self)}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    # --- The short way -------------------------------------------------------------------------------------------

    def _begin_long(self) -> None:
        """It does not come whole in one read."""
        body, self._held_body = self._held_body or b"", None
        self._begin_cycle()
        if body:
            super().on_body(body)

    def _run_short(self, body: bytes) -> None:
        exchange = ShortExchange(self, self.url, self._given, body, self.parser.should_keep_alive())
        self.cycle = exchange  # type: ignore[assignment]
        exchange.run(self._short_ways[self.url](exchange))

    def go_on_as_task(self, rest: Rest[None]) -> None:
        task = self.loop.create_task(rest.wait())
        self.tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.break_off(error)

    def break_off(self, error: BaseException) -> None:
        """What comes out of a call is no error of the caller's: those are answered. All that can be done is to stop."""
        self.logger.error("a call broke off", exc_info=error)
        self.transport.close()

    def lengthen(self, short: ShortExchange) -> RequestResponseCycle:
        """A cycle, in the place of a call that has begun the short way."""
        reading = self.url, self.headers, self.expect_100_continue, self.scope
        super().on_message_begin()  # makes a scope
        scope = self.scope
        self.url, self.headers, self.expect_100_continue, self.scope = reading
        scope["method"] = "POST"
        scope["path"] = short.path.decode("ascii")
        scope["raw_path"] = short.path
        scope["query_string"] = b""
        scope["headers"] = list(short.headers.items())
        cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=short.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        current: object = self.cycle
        if current is short:
            self.cycle = cycle
        return cycle

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self.server_state.default_headers

    def on_response_complete(self) -> None:
        """As uvicorn's, but for the timer: made and cancelled for each answer it would cost more than the head."""
        if self._is_refused:
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        since = self.loop.time() if self._idle_since is None else self._idle_since
        left_s = since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_whether_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._has_said = True
        if self._held_body is None:
            super().on_body(body)
        else:
            self._held_body += body

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self._has_said = True
        self._is_reading_body = False
        if self._held_body is None:
            super().on_message_complete()
        else:
            body, self._held_body = self._held_body, None
            self._run_short(body)

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop(*_TOO_LARGE)

    def _check_framing(self) -> bytes:
        """Where one request ends and the next begins must not be open to two readings. Answers the header that says."""
        self._given = given = dict(reversed(self.headers))
        if len(given) < len(self.headers):
            self._check_once()
        encoding = given.get(b"transfer-encoding")
        length = given.get(b"content-length", b"0")
        if encoding is None:
            return b"" if length == b"0" else b"Content-Length: " + length
        if b"content-length" in given:
            self._stop(400, "there are both Transfer-Encoding and Content-Length: send one")
        if encoding.strip().lower() != b"chunked" or self.parser.get_http_version() == "1.0":
            self._stop(400, "the only Transfer-Encoding is chunked, and only in HTTP/1.1")
        return b"Transfer-Encoding: chunked"

    def _check_host(self) -> None:
        """Refuse a request that does not say, or says twice, by which name it calls this server (RFC 9112, 3.2)."""
        host = self._given.get(HOST)
        if host is None:
            # HTTP/1.0 has no such header. The door decides whether it answers a request without one.
            if self.parser.get_http_version() != "1.0":
                self._stop(
                    400, "there is no Host header: HTTP/1.1 needs one, send the name that you call this server by"
                )
        elif host != self._host:
            if not is_valid_host(host):
                self._stop(400, "the Host header is not a name or an address with an optional port")
            self._host = host
        if self.url[:7].lower() in (b"http://", b"https:/") and not is_target_of(self.url, host or b""):
            self._stop(400, "the request's target and its Host header name different hosts: send the path alone")

    def _check_once(self) -> None:
        names = [name for name, _ in self.headers]
        for name in _ONCE:
            if names.count(name) > 1:
                self._stop(400, f"there are two {name.decode()} headers: send one")

    def _stop(self, status: int, message: str) -> None:
        """From within a callback of the parser, which passes on that there was an error, but not which."""
        self._refusal = RefusedRequest(status, message)
        raise self._refusal

    def _refuse(self, status: int, message: str) -> None:
        self._is_refused = True
        self._unsaid_bytes = 0
        self._stop_patience()
        if self._is_answering or self.transport.is_closing():
            # An answer is under way, and this would be read as part of it.
            self.transport.close()
            return
        body = encode({"error": error_document(InvalidArgument(message))})
        # Before a first request there are none, and after a head they are those of a request that is past.
        headers = dict(self.headers or ()) if self._is_reading_head else {}
        given = headers.get(b"x-correlation-id", b"")
        correlation_id = normalise_correlation_id(given.decode("latin-1")) or secrets.token_hex(12)
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-correlation-id: %b\r\n\r\n%b" % (STATUS_LINE[status], len(body), correlation_id.encode(), body)
        )
        self._linger()

    def close_after_answer(self) -> None:
        """An answer was its connection's last."""
        if self.transport.is_closing():
            return
        if self._is_reading_body or self.pipeline or self.flow.read_paused:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        self._is_refused = True
        self._unsaid_bytes = 0
        self._stop_patience()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._patience = self.loop.call_later(LINGER_S, self.transport.close)

    def _lose_patience(self) -> None:
        self._patience = None
        if not self._is_answering:
            self.transport.close()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
