"""One call and its answer, past the events that ASGI would make of them.

Most calls come whole in one read and are answered in one write. Such a call takes the short way: no scope, no task and
no events are made for it unless its handler turns out to need them.
"""

import asyncio
from asyncio import isfuture
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol
from weakref import ref

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from holdfast.doors.http.steps import Rest
from holdfast.doors.identity import PeerCertificate

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_CLOSE = (b"connection", b"close")


class Events(NamedTuple):
    """A call as ASGI gives it."""

    scope: AsgiScope
    receive: Receive
    send: Send


class Exchange(Protocol):
    """What the door asks of a connection for one call."""

    @property
    def peer(self) -> PeerCertificate | None: ...

    @property
    def transport(self) -> asyncio.Transport | None:
        """None: the connection is out of reach."""

    def events(self) -> Events: ...

    def take_body(self) -> bytes | None:
        """The body, if all of it is there; else None, and it is to be received."""

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send it at once; false if that cannot be, and it is to be sent as events."""


class ForeignExchange:
    """Under a server that is not ours there are only events."""

    peer: PeerCertificate | None = None
    transport: asyncio.Transport | None = None

    def __init__(self, events: Events) -> None:
        self._events = events

    def events(self) -> Events:
        return self._events

    def take_body(self) -> bytes | None:
        return None

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        return False


class CycleExchange:
    """A call that uvicorn runs."""

    __slots__ = ("_close", "_cycle", "peer", "transport")

    def __init__(self, cycle: RequestResponseCycle, connection: "Connection") -> None:
        # Weak: the cycle's scope holds this, and what holds itself waits for the garbage collector.
        self._cycle = ref(cycle)
        self._close = connection.close_after_answer
        self.peer = connection.peer
        self.transport = connection.transport
        # From now on what is sent as events goes out with its head.
        is_held = cycle.scope["method"] != "HEAD"
        cycle.transport = HeldHead(connection.transport, self._close, is_held)  # type: ignore[assignment]

    def events(self) -> Events:
        cycle = self._cycle()
        assert cycle is not None, "whoever asks was called by it"
        return Events(cycle.scope, cycle.receive, cycle.send)  # type: ignore[arg-type]

    def take_body(self) -> bytes | None:
        cycle = self._cycle()
        if cycle is None or cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()  # what is received next is that the caller left
        return body

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        cycle = self._cycle()
        if cycle is None or cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        if cycle.disconnected:
            return True
        answer, cycle.keep_alive = _answer(status, cycle.default_headers, headers, body, cycle.keep_alive)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(answer)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._close()
        cycle.on_response()
        return True


class _NobodyWaits:
    """Where a cycle has the event that its receiver waits for."""

    def set(self) -> None: ...


class Connection(Protocol):
    """What a short call needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    peer: PeerCertificate | None

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]: ...

    def close_after_answer(self) -> None: ...

    def on_response_complete(self) -> None: ...

    def go_on_as_task(self, rest: Rest[None]) -> None: ...

    def break_off(self, error: BaseException) -> None: ...

    def lengthen(self, short: "ShortExchange") -> RequestResponseCycle:
        """A cycle, in the place of a call that has begun the short way."""


class ShortExchange:
    """A call that came whole in one read. To its connection it is a cycle, as far as it looks at one."""

    __slots__ = (
        "_body",
        "_connection",
        "_cycle",
        "_ended",
        "_long",
        "_work",
        "disconnected",
        "headers",
        "keep_alive",
        "path",
        "peer",
        "response_complete",
        "transport",
    )

    message_event = _NobodyWaits()

    def __init__(
        self, connection: Connection, path: bytes, headers: Mapping[bytes, bytes], body: bytes, keep_alive: bool
    ) -> None:
        self._connection = connection
        self._body: bytes | None = body
        self._cycle: RequestResponseCycle | None = None
        self._long: CycleExchange | None = None
        self._work: Coroutine[Any, Any, None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self.path = path
        # By name; of a header that comes twice the first counts.
        self.headers = headers
        self.peer = connection.peer
        self.transport: asyncio.Transport | None = connection.transport
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out the call, as far as it goes at once and then whenever it can go on.

        A task costs as much as all else that is done here. A call that waits for the store alone has no use for one;
        what a call may wait for once it has events does.
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
        except (Exception, asyncio.CancelledError) as error:
            self._end()
            self._connection.break_off(error)
        else:
            if self._long is None and isfuture(waits_for):
                waits_for._asyncio_future_blocking = False  # as a task does: it says that whoever waits has seen it
                waits_for.add_done_callback(self._go_on)
            else:
                self._work = None
                self._connection.go_on_as_task(Rest(work, waits_for))

    def _end(self) -> None:
        self._work = None
        if self._ended is not None:
            self._ended.set_result(None)

    def ended(self) -> "asyncio.Future[None]":
        """For those who wait until nothing is in hand."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self._work is None:
                self._ended.set_result(None)
        return self._ended

    @property
    def scope(self) -> AsgiScope:
        return self.events().scope

    def events(self) -> Events:
        if self._long is None:
            # Held here: everything else that holds a cycle does so weakly, or for its connection's sake.
            self._cycle = cycle = self._connection.lengthen(self)
            self._long = CycleExchange(cycle, self._connection)
            cycle.disconnected = self.disconnected
            cycle.response_complete = self.response_complete
            if self._body is not None:
                cycle.body += self._body
                cycle.message_event.set()
        return self._long.events()

    def take_body(self) -> bytes | None:
        body, self._body = self._body, None
        return body

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        if self._long is not None:
            return self._long.answer(status, headers, body)
        connection = self._connection
        if connection.flow.write_paused:
            return False
        if self.disconnected:
            return True
        answer, self.keep_alive = _answer(status, connection.default_headers, headers, body, self.keep_alive)
        self.response_complete = True
        connection.transport.write(answer)
        if not self.keep_alive:
            connection.close_after_answer()
        connection.on_response_complete()
        return True


def _answer(status: int, defaults: Headers, headers: Headers, body: bytes, keep_alive: bool) -> tuple[bytes, bool]:
    """Its bytes, and whether the connection is kept after it."""
    every = [*defaults, *headers]
    if _CLOSE in every:
        keep_alive = False
    elif not keep_alive:
        every.append(_CLOSE)
    head = b"".join([b"%b: %b\r\n" % header for header in every])
    return b"%bcontent-length: %d\r\n%b\r\n%b" % (STATUS_LINE[status], len(body), head, body), keep_alive


class HeldHead:
    """The transport of one answer, whose head goes out with the first part of its body: one packet, not two.

    An answer of which nothing may be there for long sends an empty part after its head. To a HEAD no part is ever
    written: nothing is held then.
    """

    __slots__ = ("_close", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], is_held: bool) -> None:
        self._transport = transport
        self._close = close
        self._head: bytes | None = None if is_held else b""

    def write(self, data: bytes) -> None:
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# What uvicorn writes before the answer to callers that wait for leave to send their body.
_CONTINUE = b"HTTP/1.1 100 "
