"""One request on a connection, and its response."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.doors.http.connections.asgi import AsgiCall, AsgiEvents
from holdfast.doors.http.connections.request_heads import RequestHead
from holdfast.doors.http.connections.response_heads import CLOSE, Headers, check_header
from holdfast.doors.identity import PeerCertificate
from holdfast.doors.sockets.steps import RemainingSteps

if TYPE_CHECKING:
    from holdfast.doors.http.connections.connection import HttpConnection


class Exchange:
    """A request and its response, from the end of the request's head to the last byte of the response.

    Most requests arrive whole in one read and get their response in one write. Such a request has no ASGI scope, no
    task and no events, unless its handler asks for them.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_ended",
        "_events",
        "_leaving",
        "_work",
        "has_begun",
        "has_caller_left",
        "head",
        "is_answered",
        "is_body_whole",
        "keep_alive",
    )

    def __init__(self, connection: "HttpConnection", head: RequestHead, body: bytes, *, is_body_whole: bool) -> None:
        self._connection = connection
        # The part of the body that the handler has not taken yet; None once it has taken all of it.
        self._body: bytes | bytearray | None = body
        self._events: AsgiEvents | None = None
        self._work: Coroutine[Any, Any, None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self.head = head
        self.is_body_whole = is_body_whole
        # Whether the connection stays open after the response.
        self.keep_alive = head.keep_alive
        # Whether a response sent as events has begun.
        self.has_begun = False
        # Whether the whole response was written.
        self.is_answered = False
        self.has_caller_left = False

    # --- Called by the connection ----------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call without a task: now, and again whenever a future that it waits for is done.

        A task would cost as much as everything else here. A call that waits only for the store does not need one. A
        call that has asked for events, or waits in another way, continues as a task.
        """
        self._work = work
        self._go_on(None)

    def _go_on(self, _: object) -> None:
        work = self._work
        assert work is not None
        try:
            waits_for = work.send(None)
        except StopIteration:
            self._end()
            if not self.is_answered:
                self._break_off_unanswered()
        except (Exception, asyncio.CancelledError) as error:
            self._end()
            self._connection.break_off(self, error)
        else:
            if self._events is None and getattr(waits_for, "_asyncio_future_blocking", False):
                # A task resets this flag too: it tells asyncio that the future is being waited for.
                waits_for._asyncio_future_blocking = False
                waits_for.add_done_callback(self._go_on)
            else:
                self._work = None
                self._connection.tasks.go_on(self, RemainingSteps(work, waits_for))

    def _break_off_unanswered(self) -> None:
        try:
            self.check_answered()
        except RuntimeError as error:
            self._connection.break_off(self, error)

    def check_answered(self) -> None:
        """Raise `RuntimeError` if a call has ended without a whole response although its caller is connected."""
        if not (self.is_answered or self.has_caller_left or self.transport.is_closing()):
            raise RuntimeError("the call ended without a whole response")

    def _end(self) -> None:
        self._work = None
        if self._events is not None:
            self.forget_events()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def ended(self) -> "asyncio.Future[None]":
        """Return a future that is done once a call without a task has ended or has become a task."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self._work is None:
                self._ended.set_result(None)
        return self._ended

    def add_body(self, part: bytes) -> int:
        """Add a received part of the body, and return the number of bytes that the handler has not taken yet."""
        if not self._body:
            self._body = part
        elif isinstance(self._body, bytearray):
            self._body += part
        else:
            self._body = bytearray(self._body) + part
        self._notify_events()
        return len(self._body)

    def end_body(self) -> None:
        """Note that the body is complete."""
        self.is_body_whole = True
        self._notify_events()

    def leave(self) -> None:
        """Note that the caller has left."""
        self.has_caller_left = True
        self._notify_events()
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)

    def forget_events(self) -> None:
        """Drop the events of a call that has ended.

        They refer to this exchange, and such a reference cycle would be freed only by the garbage collector.
        """
        events, self._events = self._events, None
        if events is not None and not self.has_caller_left:
            events.write_held_head()

    def _notify_events(self) -> None:
        if self._events is not None:
            self._events.changed.set()

    # --- Called by the door ----------------------------------------------------------------------------------------

    @property
    def connection(self) -> "HttpConnection":
        """Return the connection of the request."""
        return self._connection

    @property
    def peer(self) -> PeerCertificate | None:
        """Return the verified client certificate of the connection."""
        return self._connection.peer

    @property
    def transport(self) -> asyncio.Transport:
        """Return the transport of the connection."""
        return self._connection.transport

    def leaving(self) -> "asyncio.Future[None]":
        """Return a future that is done once the caller has left. It may be cancelled."""
        if self._leaving is None or self._leaving.cancelled():
            self._leaving = asyncio.get_running_loop().create_future()
            if self.has_caller_left:
                self._leaving.set_result(None)
            else:
                self._connection.watch_caller()
        return self._leaving

    @property
    def is_watched(self) -> bool:
        """Return whether the call must end when the caller leaves."""
        return self._leaving is not None and not self._leaving.done()

    def events(self) -> AsgiCall:
        """Return the exchange as an ASGI call. From now on the call runs as a task."""
        if self._events is None:
            self._events = AsgiEvents(self)
            if self._body or (self._body is not None and self.is_body_whole):
                self._events.changed.set()
        return AsgiCall(self._events.scope, self._events.receive, self._events.send)

    def take_body(self) -> bytes | None:
        """Return the body if all of it has arrived, otherwise None: then it must be received as events."""
        if not self.is_body_whole or self.has_caller_left:
            return None
        if self._events is not None:
            self._events.changed.clear()  # the next event will be that the caller has left
        body, self._body = self._body or b"", None
        return bytes(body)

    def take_part(self) -> bytes:
        """Return the part of the body that has arrived since the previous call."""
        part, self._body = self._body or b"", None if self.is_body_whole else b""
        return bytes(part)

    def answer_json(self, correlation_id: str, body: bytes) -> bool:
        """Write a 200 with a JSON document at once; return False if it must be sent as events."""
        connection = self._connection
        if (
            connection.responses.is_paused
            or not self.keep_alive
            or self._events is not None
            or connection.heads.is_last
        ):
            return self.answer(
                200, ((b"content-type", b"application/json"), (b"x-correlation-id", correlation_id.encode())), body
            )
        if self.has_caller_left:
            return True
        self.is_answered = True
        now_s = connection.loop.time()
        head = connection.heads.json_ok(now_s)
        connection.write_whole(
            b"%b%d\r\nx-correlation-id: %b\r\n\r\n%b" % (head, len(body), correlation_id.encode(), body), now_s
        )
        return True

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write the whole response at once; return False if it must be sent as events."""
        connection = self._connection
        if connection.responses.is_paused or self.head.method == "HEAD":
            return False
        if self.has_begun:
            return False
        if self.has_caller_left:
            return True
        headers = list(headers)
        for name, value in headers:
            check_header(name, value)
        if connection.heads.is_last or CLOSE in headers:
            self.keep_alive = False
            headers = [each for each in headers if each != CLOSE]
        head = connection.heads.make(status, headers, keep_alive=self.keep_alive, now_s=connection.loop.time())
        self.is_answered = True
        self._notify_events()
        connection.write_last(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body), keep_alive=self.keep_alive)
        return True
