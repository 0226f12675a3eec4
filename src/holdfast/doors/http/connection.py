"""HTTP/1.1 on one connection.

`HttpConnection` reads requests, runs them one after the other in the order in which they came, and writes their
responses. A request of a hot path that came whole is carried out at once, without a task. Every other request goes to
the ASGI application, as a task.

All responses that are ready by the end of one read leave by one write.

While several tenants call at once, what was read is held back until the connection's turn comes (`RequestTurns`).
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from holdfast.doors.http.exchange import Exchange
from holdfast.doors.http.request_heads import RefusedRequest, RequestHead
from holdfast.doors.http.request_reader import RequestReader
from holdfast.doors.http.steps import Rest
from holdfast.doors.http.turns import UnreadRequest, first_request
from holdfast.doors.identity import PeerCertificate, peer_of
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import normalise_correlation_id
from holdfast.service.request_turns import UNIDENTIFIED, TurnTaken
from holdfast.wire.errors import error_document
from holdfast.wire.http import encode

if TYPE_CHECKING:
    from holdfast.doors.http.connections import HttpConnections, KnownHead

# Requests sent ahead of their turn. Reading stops at the first of them, but one read may bring thousands.
MAX_PIPELINED = 64
# From the first byte, or from the connection, to the end of the headers.
HEAD_PATIENCE_S = 10.0
# A caller that is refused while it sends would lose the answer to a reset: what it still sends is read and dropped.
LINGER_S = 1.0
MAX_LINGER_BYTES = 64 * 1_024 * 1_024
# A caller that takes nothing of its last response for this long is given up, and the response with it.
UNREAD_PATIENCE_S = 30.0
# Bytes of a body that nobody has taken, above which no more is read; and of responses that wait for the end of a read.
_HIGH_WATER_BYTES = 64 * 1_024
# Larger heads are read anew every time.
_MAX_KNOWN_HEAD_BYTES = 4 * 1_024
_MAX_KNOWN_HEADERS = 32

_log = logging.getLogger("holdfast")


class HttpConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, group: "HttpConnections") -> None:
        self._group = group
        self._hot_calls = group.hot_calls
        self._known_heads = group.known_heads
        self._turns = group.turns
        self.heads = group.heads
        self.loop = group.loop
        self.peer: PeerCertificate | None = None
        self.scheme = "http"
        self.client_address: tuple[str, int] | None = None
        self.server_address: tuple[str, int] | None = None
        self._reader = RequestReader(self)
        # The bytes that are being read, if a request begins with them.
        self._read_from_start: bytes | None = None
        # The request that is being answered, the ones that wait for their turn, and the one whose body is being read.
        self._current: Exchange | None = None
        self._ahead: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        # The current request, if it is carried out at once should the rest of its body come with this read.
        self._awaited: Exchange | None = None
        # Bytes that were read and wait for the connection's turn, whether it is in the line, and under which name.
        self._held = b""
        self._is_in_line = False
        self._turns_as = group.turns.name_connection()
        # Requests that were begun: what a turn costs.
        self._requests_begun = 0
        # Responses that are ready while a read goes on.
        self._is_collecting = False
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self.is_write_paused = False
        self._drains: list[asyncio.Future[None]] = []
        # Nothing more is to be parsed for now, and whether the socket is read.
        self._is_read_paused = False
        self._is_socket_paused = False
        # When the last response was written and nothing was asked since; one timer looks at it, not one a response.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        # Everything that comes from now on is dropped.
        self._is_refused = False
        self._dropped_bytes = 0

    # --- Called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self.client_address = _address(transport.get_extra_info("peername"))
        self.server_address = _address(transport.get_extra_info("sockname"))
        self._group.add(self)
        self._patience = self.loop.call_later(HEAD_PATIENCE_S, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._is_refused = True
        self._ahead.clear()
        self._held = b""
        if self._current is not None:
            self._current.leave()
        self.resume_writing()
        self._group.discard(self)

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        drains, self._drains = self._drains, []
        for each in drains:
            if not each.done():
                each.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._held or self._turns.is_contended:
            self._take_in_turn(data)
        else:
            self._take(data)

    # --- Turns -----------------------------------------------------------------------------------------------------

    def note_tenant(self, tenant: str, credential: bytes | None = None) -> None:
        """Learn whose request is being carried out, and by which verified credential that is known."""
        turns = self._turns
        if tenant != turns.tenant:
            turns.note(tenant)
        if tenant != self._turns_as:
            self._turns_as = tenant
            if credential is not None:
                turns.remember(credential, tenant)

    def note_unidentified(self) -> None:
        """Learn that the caller could not say who it is."""
        self.note_tenant(UNIDENTIFIED)

    def _take_in_turn(self, data: bytes) -> None:
        """Go on at once if it is one request and few of its tenant's came before it; else hold back what was read."""
        if self._is_refused:
            self._take(data)
        elif self._held:
            # One read ahead is enough: the rest waits in the socket.
            self._held += data
            self._pause_socket()
        else:
            first = self._first_request(data)
            name = self._name_of(first)
            if first.size >= len(data) and self._turns.may_go_on(name):
                self._take_first(first, data)
            else:
                self._held = data
                # It has sent something: from now on it waits for us.
                self._stop_patience()
                self._idle_since = None
                self._is_in_line = True
                self._turns.wait(name, self)

    def _first_request(self, data: bytes) -> UnreadRequest:
        return first_request(data, self._reader, self._known_heads)

    def _name_of(self, first: UnreadRequest) -> str:
        """Return the name under which a request waits."""
        turns = self._turns
        # Without credentials a connection is known by its last request alone.
        if turns.has_credentials and (credential := first.credential) is not None:
            return turns.tenant_of(credential) or self._turns_as
        return self._turns_as

    def _take_first(self, first: UnreadRequest, data: bytes) -> None:
        """Parse and begin the first request in `data`."""
        known = first.known
        if known is not None and first.size <= len(data) and self._current is None and not self._ahead:
            self._stop_patience()
            self._run_at_once(known, data[known.head_bytes : first.size])
        else:
            self._take(data[: first.size])

    def take_turn(self) -> TurnTaken:
        """Parse and begin one of the requests that are held back, or a part of a large one."""
        self._is_in_line = False
        held, begun = self._held, self._requests_begun
        if not held:  # the connection was lost
            return TurnTaken(0, 0)
        first = self._first_request(held)
        self._held = held[first.size :]
        self._take_first(first, held)
        if self._is_refused:
            self._held = b""
        elif not self._is_read_paused:
            self._read_on()
        return TurnTaken(self._requests_begun - begun, min(first.size, len(held)))

    def _read_on(self) -> None:
        if not self._held:
            self._resume_socket()
        elif not self._is_in_line:
            self._is_in_line = True
            self._turns.wait(self._name_of(self._first_request(self._held)), self)

    # --- Reading ---------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Parse what was read, and begin its requests."""
        if self._is_refused:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_LINGER_BYTES:
                self.transport.abort()
            return
        self._is_collecting = True
        try:
            if self._reader.is_idle:
                data = self._run_known(data)
            if data:
                self._read(data)
        except RefusedRequest as refusal:
            self._refuse(refusal)
            return
        finally:
            self._is_collecting = False
            if self._collected:
                self._flush()
        # In the middle of a head, or of a body that nobody reads any more: not for long. While a request is being
        # answered, its handler decides how long its body may take.
        if self._current is None and (self._reader.is_reading_head or self._reader.is_reading_body):
            self._idle_since = None
            if self._patience is None and not self._is_refused:
                self._patience = self.loop.call_later(HEAD_PATIENCE_S, self._lose_patience)
        elif self._patience is not None and not self._is_refused:
            self._stop_patience()

    def _run_known(self, data: bytes) -> bytes:
        """Carry out the requests at the start of `data` whose heads were read before; return the rest.

        Clients send the same head again and again. The same bytes at the same place mean the same, so such a head is
        looked up and not parsed. Only heads that the parser has taken, that keep the connection open and whose body
        has a stated length are among them.
        """
        start, size = 0, len(data)
        while self._current is None and not self._ahead and not self._is_refused:
            end = data.find(b"\r\n\r\n", start) + 4
            known = self._known_heads.get(data[start:end])
            if known is None or start + known.whole_bytes > size:
                break
            stop = start + known.whole_bytes
            self._run_at_once(known, data[end:stop])
            if stop == size:
                return b""
            start = stop
        return b"" if self._is_refused else data[start:]

    def _run_at_once(self, known: "KnownHead", body: bytes) -> None:
        self._reader.take_whole()
        self._requests_begun += 1
        self._idle_since = None
        self._current = exchange = Exchange(self, known.head, body, is_body_whole=True)
        exchange.run(known.call(exchange))

    def _read(self, data: bytes) -> None:
        self._read_from_start = data if self._reader.is_idle and data.startswith(b"POST ") else None
        self._reader.feed(data)
        self._read_from_start = None
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            self._start_task(awaited)  # there is more of it to come

    def begin_request(self, head: RequestHead) -> None:
        if self._is_refused:
            return  # behind the last request of its connection
        if len(self._ahead) >= MAX_PIPELINED:
            raise RefusedRequest(400, f"more than {MAX_PIPELINED} requests were sent ahead: wait for answers")
        self._idle_since = None
        self._requests_begun += 1
        is_hot = head.is_plain and head.target in self._hot_calls
        if is_hot and self._read_from_start is not None:
            self._remember(self._read_from_start, head)
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
            self._start_task(exchange)

    def _remember(self, data: bytes, head: RequestHead) -> None:
        end = data.find(b"\r\n\r\n") + 4
        if (
            4 <= end <= _MAX_KNOWN_HEAD_BYTES
            and len(head.pairs) <= _MAX_KNOWN_HEADERS
            and head.keep_alive
            and b"transfer-encoding" not in head.headers
        ):
            self._group.remember(data[:end], head)

    def add_body(self, part: bytes) -> None:
        exchange = self._incoming
        if exchange is None or exchange.is_answered:
            return
        if exchange.add_body(part) > _HIGH_WATER_BYTES and exchange is not self._awaited:
            self._pause_reading()

    def end_request(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is None or exchange.is_answered:
            return
        exchange.end_body()
        if exchange is self._awaited:
            self._awaited = None
            exchange.run(self._hot_calls[exchange.head.target](exchange))

    def _pause_reading(self) -> None:
        self._is_read_paused = True
        self._pause_socket()

    def resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            self._read_on()

    def _pause_socket(self) -> None:
        if not self._is_socket_paused:
            self._is_socket_paused = True
            self.transport.pause_reading()

    def _resume_socket(self) -> None:
        if self._is_socket_paused:
            self._is_socket_paused = False
            self.transport.resume_reading()

    # --- Running ---------------------------------------------------------------------------------------------------

    def _start_task(self, exchange: Exchange) -> None:
        scope, receive, send = exchange.events()
        self._group.own(self.loop.create_task(self._run_app(exchange, self._group.app(scope, receive, send))))

    async def _run_app(self, exchange: Exchange, work: Awaitable[None]) -> None:
        try:
            await self._finish(exchange, work)
        except Exception as error:
            if exchange.has_begun:
                self.break_off(exchange, error)
            else:
                _log.error("a call failed", exc_info=error)
                exchange.keep_alive = False
                if not exchange.answer(500, [(b"content-type", b"text/plain")], b"Internal Server Error"):
                    self.close_after_response()

    def go_on_as_task(self, exchange: Exchange, rest: Rest[None]) -> None:
        """Carry on a call that was begun without a task and turns out to need one."""
        self._group.own(self.loop.create_task(self._run_rest(exchange, rest)))

    async def _run_rest(self, exchange: Exchange, rest: Rest[None]) -> None:
        try:
            await self._finish(exchange, rest)
        except Exception as error:
            self.break_off(exchange, error)

    async def _finish(self, exchange: Exchange, work: Awaitable[None]) -> None:
        try:
            await work
            exchange.check_answered()
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        finally:
            exchange.forget_events()

    def break_off(self, exchange: Exchange, error: BaseException) -> None:
        """End the connection: errors of a caller are answered, and this is none."""
        _log.error("a call broke off", exc_info=error)
        if not exchange.is_answered:
            self.close_after_response()

    def _run_ahead(self) -> None:
        """Begin the requests that were sent ahead, until one of them has to wait."""
        self._is_collecting = True
        try:
            while self._ahead and self._current is None and not self._is_refused:
                self._current = exchange = self._ahead.popleft()
                call = self._hot_calls.get(exchange.head.target)
                if call is not None and exchange.is_body_whole and exchange.head.is_plain:
                    exchange.run(call(exchange))
                else:
                    self._start_task(exchange)
        finally:
            self._is_collecting = False
            if self._collected:
                self._flush()
        if not self._ahead and not self.transport.is_closing():
            self.resume_reading()

    # --- Writing ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write a part of a response."""
        if self._collected:
            self._flush()
        self.transport.write(data)

    def write_last(self, data: bytes, *, keep_alive: bool = True) -> None:
        """Write a response, or the rest of one."""
        if self._is_collecting:
            self._collected.append(data)
            self._collected_bytes += len(data)
            if self._collected_bytes > _HIGH_WATER_BYTES:
                self._flush()
        else:
            self.transport.write(data)
        self.end_response(keep_alive=keep_alive)

    def end_response(self, *, keep_alive: bool) -> None:
        """Go on to the next request, or end the connection."""
        self._current = None
        if not keep_alive:
            self.close_after_response()
            return
        if self._is_refused or self.transport.is_closing():
            return
        if self._ahead:
            self.loop.call_soon(self._run_ahead)
            return
        if self._is_read_paused:
            self.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self._group.keep_alive_s, self._look_whether_idle)

    def _flush(self) -> None:
        data = self._collected[0] if len(self._collected) == 1 else b"".join(self._collected)
        self._collected.clear()
        self._collected_bytes = 0
        self.transport.write(data)

    async def drained(self) -> None:
        """Wait until the connection takes more, or is lost."""
        while self.is_write_paused:
            drain: asyncio.Future[None] = self.loop.create_future()
            self._drains.append(drain)
            await drain

    # --- Ending ----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Exchange | None:
        """The request that is being answered."""
        return self._current

    def shut_down(self) -> None:
        """End the connection as soon as nothing is being answered on it."""
        if self._current is not None:
            self._current.keep_alive = False
        elif not self._ahead and not self._held:
            self._close()

    def _refuse(self, refusal: RefusedRequest) -> None:
        if self._current is self._awaited:
            self._current = self._awaited = None  # nobody was called for it: the refusal is its response
        if self._current is not None or self._ahead or self.transport.is_closing():
            # A response is under way, and this would be read as part of it.
            self._is_refused = True
            if self._collected:
                self._flush()
            self._close()
            return
        body = encode({"error": error_document(InvalidArgument(refusal.message))})
        given = self._reader.headers_so_far.get(b"x-correlation-id", b"")
        correlation_id = normalise_correlation_id(given.decode("latin-1")) or secrets.token_hex(12)
        headers = [(b"content-type", b"application/json"), (b"x-correlation-id", correlation_id.encode())]
        head = self.heads.make(refusal.status, headers, keep_alive=False, now_s=self.loop.time())
        self.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def close_after_response(self) -> None:
        """End the connection behind a response, whose caller may still be sending."""
        if self._collected:
            self._flush()
        self._is_refused = True
        if self.transport.is_closing():
            return
        if self._reader.is_reading_body or self._ahead or self._held or self._is_read_paused:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        self._is_refused = True
        self._dropped_bytes = 0
        self._held = b""
        self._is_read_paused = False
        self._stop_patience()
        self._idle_since = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._resume_socket()
        self._patience = self.loop.call_later(LINGER_S, self._close)

    def _close(self) -> None:
        """Close once everything that was written is sent, unless the caller stops reading."""
        self._is_refused = True
        self._stop_patience()
        self.transport.close()
        self._give_up_unread(None)

    def _give_up_unread(self, unsent_before: int | None) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent_before is not None and unsent >= unsent_before:
            self.transport.abort()
        elif unsent:
            self._patience = self.loop.call_later(UNREAD_PATIENCE_S, self._give_up_unread, unsent)

    def _look_whether_idle(self) -> None:
        now_s = self.loop.time()
        since = now_s if self._idle_since is None else self._idle_since
        left_s = since + self._group.keep_alive_s - now_s
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_whether_idle)
        elif not self.transport.is_closing():
            self._close()

    def _lose_patience(self) -> None:
        self._patience = None
        if self._current is None and not self._ahead and not self._held:
            self._close()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
