"""One HTTP/1.1 connection.

`HttpConnection` reads requests, runs them one after the other in the order in which they arrived, and writes their
responses. A request to a hot route that has arrived whole runs at once, without a task. Every other request goes to the
ASGI application, as a task.

All responses that are ready by the end of one read leave in one write.

While several tenants call at once, received bytes are held until the connection's turn (`HeldRequests`).
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.http.connections.held_requests import HeldRequests
from holdfast.doors.http.connections.refusals import refusal_response
from holdfast.doors.http.connections.request_heads import RefusedRequest, RequestHead
from holdfast.doors.http.connections.request_reader import RequestReader
from holdfast.doors.http.connections.timeouts import CallerTimeouts
from holdfast.doors.identity import PeerCertificate, peer_of
from holdfast.doors.sockets.response_writer import ResponseWriter
from holdfast.doors.sockets.socket_reading import SocketReading
from holdfast.service.limits.request_turns import UNIDENTIFIED

if TYPE_CHECKING:
    from holdfast.doors.http.connections.connections import HttpConnections, KnownHead

# The maximum number of pipelined requests. Reading pauses at the first of them, but one read may contain thousands.
MAX_PIPELINED = 64
# The maximum number of bytes that are read and dropped at the end of a connection (see `LINGER_S`).
MAX_LINGER_BYTES = 64 * 1_024 * 1_024
# Reading pauses above this number of body bytes that the handler has not taken.
_HIGH_WATER_BYTES = 64 * 1_024

_log = logging.getLogger("holdfast")


class HttpConnection(asyncio.Protocol):
    """The asyncio protocol of one connection."""

    transport: asyncio.Transport

    def __init__(self, group: "HttpConnections") -> None:
        self._group = group
        self._hot_calls = group.hot_calls
        self._known_heads = group.known_heads
        self._turns = group.turns
        self.tasks = group.calls
        self.heads = group.heads
        self.loop = group.loop
        self.peer: PeerCertificate | None = None
        self.scheme = "http"
        self.client_address: tuple[str, int] | None = None
        self.server_address: tuple[str, int] | None = None
        self._reader = RequestReader(self)
        # The bytes that are being parsed, if a request begins at their start.
        self._read_from_start: bytes | None = None
        # The request that is running, the pipelined ones after it, and the one whose body is being read.
        self._current: Exchange | None = None
        self._ahead: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        # The current request, if it runs without a task should the rest of its body be in the bytes being parsed.
        self._awaited: Exchange | None = None
        # Received bytes that wait for the connection's turn.
        self._held = HeldRequests(self, self._reader, group.turns, group.known_heads)
        # Whether the connection continues with another protocol once the current request has been read.
        self._is_upgrading = False
        # The number of requests begun so far, from which the cost of a turn is calculated.
        self.requests_begun = 0
        self.responses = ResponseWriter(group.loop)
        self.reading = SocketReading(group.loop, self._is_watched)
        # Whether no more bytes are parsed for now.
        self.is_parsing_paused = False
        self.timeouts = CallerTimeouts(self, group.loop, group.keep_alive_s)
        # Whether all further received bytes are dropped.
        self.is_refused = False
        self._dropped_bytes = 0

    # --- Called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.responses.connect(self.transport)
        self.reading.connect(self.transport)
        self.peer = peer_of(transport)
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self.client_address = _address(transport.get_extra_info("peername"))
        self.server_address = _address(transport.get_extra_info("sockname"))
        self._group.add(self)
        self.timeouts.wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timeouts.stop()
        self.is_refused = True
        self._ahead.clear()
        self._held.drop()
        if self._current is not None:
            self._current.leave()
        self.responses.stop()
        self.reading.stop()
        self._group.discard(self)

    def pause_writing(self) -> None:
        self.responses.pause()

    def resume_writing(self) -> None:
        self.responses.resume()

    def data_received(self, data: bytes) -> None:
        if self._held.data or self._turns.is_contended:
            self._held.take(data)
        else:
            self.parse(data)

    # --- Turns -----------------------------------------------------------------------------------------------------

    def note_tenant(self, tenant: str, credential: bytes | None = None) -> None:
        """Note the tenant of the current request and, if known, the verified credential that identifies it."""
        self._held.note_tenant(tenant, credential)

    def note_unidentified(self) -> None:
        """Note that the caller of the current request could not be identified."""
        self._held.note_tenant(UNIDENTIFIED, None)

    @property
    def is_free(self) -> bool:
        """Return whether the next request can begin at once."""
        return self._current is None and not self._ahead

    @property
    def is_busy(self) -> bool:
        """Return whether a request is running, or is waiting to be run."""
        return self._current is not None or bool(self._ahead) or bool(self._held.data)

    # --- Reading ---------------------------------------------------------------------------------------------------

    def parse(self, data: bytes) -> None:
        """Parse received bytes and begin their requests."""
        if self.is_refused:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_LINGER_BYTES:
                self.transport.abort()
            return
        responses = self.responses
        responses.is_collecting = True
        try:
            if self._reader.is_idle:
                data = self._run_known(data)
            if data:
                self._read(data)
        except RefusedRequest as refusal:
            self._refuse(refusal)
            return
        finally:
            responses.end_collecting()
        # An incomplete head, or a body that no handler reads any more, must be complete soon. While a request is
        # running, its handler decides how long its body may take.
        if self._current is None and (self._reader.is_reading_head or self._reader.is_reading_body):
            self.timeouts.idle_since_s = None
            if not self.is_refused:
                self.timeouts.wait_for_head()
        elif self.timeouts.patience is not None and not self.is_refused:
            self.timeouts.stop_patience()

    def _run_known(self, data: bytes) -> bytes:
        """Run the requests at the start of `data` whose heads are cached, and return the remaining bytes.

        Clients send the same head again and again. The same bytes at the start of a request have the same meaning, so
        the head is looked up instead of parsed. The cache holds only heads that the parser has accepted, that keep the
        connection open and whose body has a stated length.
        """
        start, size = 0, len(data)
        while self._current is None and not self._ahead and not self.is_refused:
            end = data.find(b"\r\n\r\n", start) + 4
            known = self._known_heads.get(data[start:end])
            if known is None or start + known.whole_bytes > size:
                break
            stop = start + known.whole_bytes
            self.run_at_once(known, data[end:stop])
            if stop == size:
                return b""
            start = stop
        return b"" if self.is_refused else data[start:]

    def run_at_once(self, known: "KnownHead", body: bytes) -> None:
        """Run a whole request with a cached head, bypassing the parser, which is between two requests."""
        self._reader.is_reading_head = False
        self.requests_begun += 1
        self.timeouts.idle_since_s = None
        self._current = exchange = Exchange(self, known.head, body, is_body_whole=True)
        exchange.run(known.call(exchange))

    def _read(self, data: bytes) -> None:
        self._read_from_start = data if self._reader.is_idle and data.startswith(b"POST ") else None
        self._reader.feed(data)
        self._read_from_start = None
        if self._is_upgrading and self._reader.is_idle:
            self._hand_over()
            return
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            self.tasks.start(awaited)  # its body is incomplete, so it needs a task

    def begin_request(self, head: RequestHead) -> None:
        """Begin a request whose head was parsed, or queue it behind the current one. Called by the parser."""
        if self.is_refused:
            return  # it follows the last request of its connection
        if self._is_upgrading:
            raise RefusedRequest(400, "an upgrade request must be the last one; send nothing before its response")
        if self._group.upgrade is not None and self._group.upgrade.is_requested_by(head):
            if self._current is not None or self._ahead:
                raise RefusedRequest(400, "an upgrade request must not be pipelined; wait for the previous responses")
            self._is_upgrading = True
            self._incoming = None
            return
        if len(self._ahead) >= MAX_PIPELINED:
            raise RefusedRequest(400, f"more than {MAX_PIPELINED} requests are pipelined; wait for responses")
        self.timeouts.idle_since_s = None
        self.requests_begun += 1
        is_hot = head.is_plain and head.target in self._hot_calls
        if is_hot and self._read_from_start is not None:
            self._group.remember_head(self._read_from_start, head)
        self._read_from_start = None
        self._incoming = exchange = Exchange(self, head, b"", is_body_whole=False)
        if self._current is not None or self._ahead:
            self._ahead.append(exchange)
            self._pause_reading()
            return
        self._current = exchange
        if is_hot:
            self._awaited = exchange
        else:
            self.tasks.start(exchange)

    def add_body(self, part: bytes) -> None:
        """Add a part of the body of the request that is being read. Called by the parser."""
        exchange = self._incoming
        if exchange is None or exchange.is_answered:
            return
        if exchange.add_body(part) > _HIGH_WATER_BYTES and exchange is not self._awaited:
            self._pause_reading()

    def end_request(self) -> None:
        """Note that a request has arrived whole, and run it if it waits for that. Called by the parser."""
        exchange, self._incoming = self._incoming, None
        if exchange is None or exchange.is_answered:
            return
        exchange.end_body()
        if exchange is self._awaited:
            self._awaited = None
            exchange.run(self._hot_calls[exchange.head.target](exchange))

    def _pause_reading(self) -> None:
        self.is_parsing_paused = True
        self.reading.pause()

    def resume_reading(self) -> None:
        """Parse and read again, if that was paused."""
        if self.is_parsing_paused:
            self.is_parsing_paused = False
            self._held.go_on()

    def watch_caller(self) -> None:
        """Notice from now on if the caller leaves, as long as the current request is watched."""
        self.resume_reading()
        self.reading.watch()

    def _is_watched(self) -> bool:
        return self._current is not None and self._current.is_watched

    def _hand_over(self) -> None:
        """Hand the connection over to the protocol that it was upgraded to."""
        upgrade = self._group.upgrade
        assert upgrade is not None
        self.is_refused = True
        self.timeouts.stop()
        self.responses.write(upgrade.response)
        self.reading.resume()
        self.responses.stop()
        self.reading.stop()
        self._group.discard(self)
        successor = upgrade.make()
        self.transport.set_protocol(successor)
        successor.connection_made(self.transport)

    # --- Running ---------------------------------------------------------------------------------------------------

    def break_off(self, exchange: Exchange, error: BaseException) -> None:
        """End the connection after an unexpected error. Errors of callers have regular responses instead."""
        _log.error("call_aborted", exc_info=error)
        if not exchange.is_answered:
            self.close_after_response()

    def _run_ahead(self) -> None:
        """Begin the pipelined requests, until one of them has to wait."""
        responses = self.responses
        responses.is_collecting = True
        try:
            while self._ahead and self._current is None and not self.is_refused:
                self._current = exchange = self._ahead.popleft()
                call = self._hot_calls.get(exchange.head.target)
                if call is not None and exchange.is_body_whole and exchange.head.is_plain:
                    exchange.run(call(exchange))
                else:
                    self.tasks.start(exchange)
        finally:
            responses.end_collecting()
        if not self._ahead and not self.transport.is_closing():
            self.resume_reading()

    def write_whole(self, data: bytes, now_s: float) -> None:
        """Write a whole response after which the connection stays open. `now_s` is the event loop's time."""
        self.responses.write_last(data)
        if self.timeouts.idle_timer is None or self._ahead or self.is_parsing_paused:
            self.end_response(keep_alive=True)
        else:
            self._current = None
            self.timeouts.idle_since_s = now_s

    def write_last(self, data: bytes, *, keep_alive: bool = True) -> None:
        """Write a whole response, or the last part of one, and end it."""
        self.responses.write_last(data)
        self.end_response(keep_alive=keep_alive)

    def end_response(self, *, keep_alive: bool) -> None:
        """Continue with the next request, or end the connection."""
        self._current = None
        if not keep_alive:
            self.close_after_response()
            return
        if self.is_refused or self.transport.is_closing():
            return
        if self._ahead:
            self.loop.call_soon(self._run_ahead)
            return
        if self.is_parsing_paused:
            self.resume_reading()
        self.timeouts.wait_for_request()

    # --- Ending ----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Exchange | None:
        """Return the request that is running."""
        return self._current

    def shut_down(self) -> None:
        """End the connection as soon as no request is running on it."""
        if self._current is not None:
            self._current.keep_alive = False
        elif not self.is_busy:
            self.close()

    def _refuse(self, refusal: RefusedRequest) -> None:
        if self._current is self._awaited:
            self._current = self._awaited = None  # its handler has not run, so the refusal is its response
        if self._current is not None or self._ahead or self.transport.is_closing():
            # A previous response is not complete yet, and the refusal would be read as part of it.
            self.is_refused = True
            self.responses.flush()
            self.close()
            return
        headers_so_far = self._reader.headers_so_far
        self.responses.write(refusal_response(refusal, headers_so_far, self.heads, self.loop.time()))
        self._linger()

    def close_after_response(self) -> None:
        """End the connection after a response. Its caller may still be sending."""
        self.responses.flush()
        self.is_refused = True
        if self.transport.is_closing():
            return
        if self._reader.is_reading_body or self._ahead or self._held.data or self.is_parsing_paused:
            self._linger()
        else:
            self.close()

    def _linger(self) -> None:
        self.is_refused = True
        self._dropped_bytes = 0
        self._held.drop()
        self.is_parsing_paused = False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.reading.resume()
        self.timeouts.linger()

    def close(self) -> None:
        """Close the connection once all written bytes have been sent, or abort it if the caller stops reading."""
        self.is_refused = True
        self.timeouts.stop_patience()
        self.responses.close()


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
