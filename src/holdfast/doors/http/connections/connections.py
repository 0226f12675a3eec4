"""The connections of one server, and what they share."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from holdfast.clock import Clock, SystemClock
from holdfast.doors.http.connections.asgi import Asgi
from holdfast.doors.http.connections.call_tasks import CallTasks
from holdfast.doors.http.connections.connection import HttpConnection
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.http.connections.request_heads import RequestHead
from holdfast.doors.http.connections.response_heads import ResponseHeads
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.service.limits.request_turns import RequestTurns

# Longer than the idle time of the usual load balancers (60 s): the side that waits longer never closes a connection on
# which the other is just sending.
KEEP_ALIVE_S = 75.0
# Heads that clients sent before. Larger ones are read anew every time.
_MAX_KNOWN_HEADS = 1_024
_MAX_KNOWN_HEAD_BYTES = 4 * 1_024
_MAX_KNOWN_HEADERS = 32
# Headers that differ from request to request: a head with one of them is not sent again.
_NEVER_AGAIN = (b"x-correlation-id", b"traceparent")

_MAX_SHOWN = 200

HotCall = Callable[[Exchange], Coroutine[Any, Any, None]]


class KnownHead(NamedTuple):
    """A head that was read before: the request it begins is carried out without reading it again."""

    head: RequestHead
    call: HotCall
    head_bytes: int
    # With the body.
    whole_bytes: int


class HttpConnections:
    """Makes a server's connections, and ends them.

    `app` gets every request but the hot ones: POST requests to the paths in `hot_calls` that come whole and need no
    events.
    """

    def __init__(
        self,
        app: Asgi,
        hot_calls: Mapping[bytes, HotCall],
        *,
        turns: RequestTurns | None = None,
        upgrade: Upgrade | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
        clock: Clock | None = None,
    ) -> None:
        self.hot_calls = hot_calls
        self.upgrade = upgrade
        self.keep_alive_s = keep_alive_s
        self.loop = asyncio.get_running_loop()
        self.turns = turns or RequestTurns(lambda tenant: 1)
        self.heads = ResponseHeads(clock or SystemClock())
        self.known_heads: dict[bytes, KnownHead] = {}
        self.calls = CallTasks(app, self.loop)
        self._open: set[HttpConnection] = set()
        self._emptied: asyncio.Future[None] | None = None

    def make(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    @property
    def open(self) -> list[HttpConnection]:
        return list(self._open)

    @property
    def tasks(self) -> "set[asyncio.Task[None]]":
        """The calls that run as tasks."""
        return self.calls.running

    # --- For a connection ------------------------------------------------------------------------------------------

    def add(self, connection: HttpConnection) -> None:
        self._open.add(connection)

    def discard(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def remember(self, data: bytes, head: RequestHead) -> None:
        """Remember the head at the start of `data`, if the same bytes are likely to come again and mean the same."""
        end = data.find(b"\r\n\r\n") + 4
        if (
            not 4 <= end <= _MAX_KNOWN_HEAD_BYTES
            or len(head.pairs) > _MAX_KNOWN_HEADERS
            or not head.keep_alive
            or b"transfer-encoding" in head.headers
            or any(name in head.headers for name in _NEVER_AGAIN)
        ):
            return
        if len(self.known_heads) >= _MAX_KNOWN_HEADS:
            self.known_heads.clear()
        body_bytes = int(head.headers.get(b"content-length", b"0"))
        self.known_heads[data[:end]] = KnownHead(head, self.hot_calls[head.target], end, end + body_bytes)

    # --- The end ---------------------------------------------------------------------------------------------------

    def in_hand(self) -> "set[asyncio.Future[None]]":
        """Return a future for each call that has not ended."""
        return {*self.tasks, *(exchange.ended() for exchange in self._exchanges())}

    def close_after_responses(self) -> None:
        """Make every response from now on its connection's last."""
        self.heads.is_last = True
        for exchange in self._exchanges():
            exchange.keep_alive = False

    def describe_calls(self) -> str:
        # As it was sent: a decoded path may hold line breaks, and this goes to the log.
        calls = Counter(
            f"{exchange.head.method} {exchange.head.raw_path[:_MAX_SHOWN].decode('ascii', 'replace')}"
            for exchange in self._exchanges()
        )
        return ", ".join(f"{count} {call}" for call, count in calls.most_common(10))

    def cut_off(self) -> None:
        """Drop the connections on which a call is in hand."""
        for connection in self.open:
            if connection.current is not None:
                connection.transport.abort()

    async def close(self, timeout_s: float) -> int:
        """Close connections as they become idle. Return how many had to be dropped: their callers did not read."""
        for connection in self.open:
            connection.shut_down()
        await self.emptied(timeout_s)
        unread = self.open
        for connection in unread:
            connection.transport.abort()
        return len(unread)

    async def emptied(self, timeout_s: float) -> None:
        """Wait until there is no connection any more, at most `timeout_s`."""
        if self._open:
            self._emptied = self.loop.create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)

    def _exchanges(self) -> list[Exchange]:
        return [each.current for each in self._open if each.current is not None]
