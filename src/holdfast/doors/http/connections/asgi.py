"""Present an exchange as an ASGI call: a scope, and events to receive and to send."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.doors.http.connections.response_heads import CONTINUE, check_header

if TYPE_CHECKING:
    from holdfast.doors.http.connections.exchange import Exchange

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

# Statuses whose responses never have a body.
_BODILESS = frozenset({204, 304})


class AsgiCall(NamedTuple):
    """The arguments of an ASGI application."""

    scope: AsgiScope
    receive: Receive
    send: Send


class AsgiEvents:
    """The converter of one exchange's request to ASGI events, and of ASGI events to its response."""

    def __init__(self, exchange: "Exchange") -> None:
        self._exchange = exchange
        self._connection = exchange.connection
        self._must_continue = exchange.head.expects_continue
        # The head waits for the first part of the body, so that both leave in one packet. A handler whose first part
        # may take long sends an empty part after the head.
        self._held_head = b""
        self._is_chunked = False
        self._bytes_left = 0
        self._is_bodiless = exchange.head.method == "HEAD"
        self.changed = asyncio.Event()
        self.scope = self._make_scope()

    def _make_scope(self) -> AsgiScope:
        head, connection = self._exchange.head, self._connection
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": connection.server_address,
            "client": connection.client_address,
            "scheme": connection.scheme,
            "root_path": "",
            "headers": list(head.pairs),
            "state": {},
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "extensions": {"holdfast": self._exchange},
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next event: a part of the body, or that the caller has left."""
        exchange = self._exchange
        if self._must_continue and not exchange.is_answered and not self._connection.transport.is_closing():
            self._must_continue = False
            self._connection.responses.write(CONTINUE)
        if not exchange.has_caller_left and not exchange.is_answered:
            self._connection.resume_reading()
            await self.changed.wait()
            self.changed.clear()
        if exchange.has_caller_left or exchange.is_answered:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": exchange.take_part(), "more_body": not exchange.is_body_whole}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Write an event once the connection takes more bytes, or drop it if the caller has left.

        Raise `RuntimeError` for an event out of order.
        """
        exchange, connection = self._exchange, self._connection
        if connection.responses.is_paused and not exchange.has_caller_left:
            await connection.responses.drained()
        if exchange.has_caller_left:
            return
        if exchange.is_answered:
            raise RuntimeError(f"{message['type']} was sent after the end of the response")
        expected = "http.response.body" if exchange.has_begun else "http.response.start"
        if message["type"] != expected:
            raise RuntimeError(f"{message['type']} was sent instead of {expected}")
        if exchange.has_begun:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._begin(message["status"], list(message.get("headers", ())))

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange, connection = self._exchange, self._connection
        length: int | None = None
        lines: list[tuple[bytes, bytes]] = []
        if connection.heads.is_last:
            exchange.keep_alive = False
        for name, value in headers:
            check_header(name, value)
            name = name.lower()
            if name == b"connection":
                # The server writes this header itself. A response may only ask to close its connection.
                if b"close" in (token.strip().lower() for token in value.split(b",")):
                    exchange.keep_alive = False
                continue
            if name == b"content-length":
                length = int(value)
            lines.append((name, value))
        self._is_bodiless |= status in _BODILESS
        if length is not None:
            self._bytes_left = length
        elif not self._is_bodiless:
            self._is_chunked = True
            lines.append((b"transfer-encoding", b"chunked"))
        exchange.has_begun = True
        self._must_continue = False
        head = connection.heads.make(status, lines, keep_alive=exchange.keep_alive, now_s=connection.loop.time())
        self._held_head = head + b"\r\n"

    def _send_body(self, part: bytes, *, is_last: bool) -> None:
        exchange = self._exchange
        if self._is_bodiless:
            written = b""
        elif self._is_chunked:
            written = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            if is_last:
                written += b"0\r\n\r\n"
        else:
            if len(part) > self._bytes_left:
                raise RuntimeError("the response is longer than its Content-Length")
            self._bytes_left -= len(part)
            if is_last and self._bytes_left:
                raise RuntimeError("the response is shorter than its Content-Length")
            written = part
        self._write(written)
        if is_last:
            exchange.is_answered = True
            self.changed.set()
            self._connection.end_response(keep_alive=exchange.keep_alive)

    def _write(self, data: bytes) -> None:
        if self._held_head:
            head, self._held_head = self._held_head, b""
            self._connection.responses.write(head + data)
        elif data:
            self._connection.responses.write(data)

    def write_held_head(self) -> None:
        """Write the head of a response that failed before its first part."""
        if self._held_head and not self._connection.transport.is_closing():
            self._write(b"")
