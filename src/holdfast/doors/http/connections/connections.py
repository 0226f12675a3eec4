"""The connections of one server, and the state that they share."""

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
from holdfast.doors.sockets.open_connections import OpenConnections
from holdfast.service.limits.request_turns import RequestTurns

# Longer than the idle timeout of common load balancers (60 s), so that the load balancer closes idle connections. If
# this server did, a request might just be on its way.
KEEP_ALIVE_S = 75.0
# The limits of the cache of parsed heads. Larger heads are parsed every time.
_MAX_KNOWN_HEADS = 1_024
_MAX_KNOWN_HEAD_BYTES = 4 * 1_024
_MAX_KNOWN_HEADERS = 32
# Headers that differ from request to request. A head with one of them is not cached, because it will not come again.
_UNIQUE_HEADERS = (b"x-correlation-id", b"traceparent")

_MAX_SHOWN = 200

HotCall = Callable[[Exchange], Coroutine[Any, Any, None]]


class KnownHead(NamedTuple):
    """A head that was parsed before, so that a request with the same bytes needs no parsing."""

    head: RequestHead
    call: HotCall
    head_bytes: int
    # The bytes of the head and the body.
    whole_bytes: int


class HttpConnections:
    """The HTTP connections of one server.

    `app` gets every request except the hot ones, which are POST requests to the paths in `hot_calls` that arrive whole
    and need no ASGI events.
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
        self._open: OpenConnections[HttpConnection] = OpenConnections()

    def make(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    @property
    def open(self) -> list[HttpConnection]:
        """Return the open connections."""
        return list(self._open)

    @property
    def tasks(self) -> "set[asyncio.Task[None]]":
        """Return the calls that run as tasks."""
        return self.calls.running

    # --- Called by connections -------------------------------------------------------------------------------------

    def add(self, connection: HttpConnection) -> None:
        """Note a connection that was made."""
        self._open.add(connection)

    def discard(self, connection: HttpConnection) -> None:
        """Note that a connection was lost, or was upgraded to another protocol."""
        self._open.discard(connection)

    def remember_head(self, data: bytes, head: RequestHead) -> None:
        """Cache the head at the start of `data` if the same bytes are likely to arrive again and mean the same."""
        end = data.find(b"\r\n\r\n") + 4
        if (
            not 4 <= end <= _MAX_KNOWN_HEAD_BYTES
            or len(head.pairs) > _MAX_KNOWN_HEADERS
            or not head.keep_alive
            or b"transfer-encoding" in head.headers
            or any(name in head.headers for name in _UNIQUE_HEADERS)
        ):
            return
        if len(self.known_heads) >= _MAX_KNOWN_HEADS:
            self.known_heads.clear()
        body_bytes = int(head.headers.get(b"content-length", b"0"))
        self.known_heads[data[:end]] = KnownHead(head, self.hot_calls[head.target], end, end + body_bytes)

    # --- Shutdown --------------------------------------------------------------------------------------------------

    def in_hand(self) -> "set[asyncio.Future[None]]":
        """Return a future for each call that has not ended."""
        return {*self.tasks, *(exchange.ended() for exchange in self._exchanges())}

    def close_after_responses(self) -> None:
        """Make every response from now on the last of its connection."""
        self.heads.is_last = True
        for exchange in self._exchanges():
            exchange.keep_alive = False

    def describe_calls(self) -> str:
        """Return the most frequent of the current calls with their numbers, for the log."""
        # The path as it was sent, because a decoded path may contain line breaks.
        calls = Counter(
            f"{exchange.head.method} {exchange.head.raw_path[:_MAX_SHOWN].decode('ascii', 'replace')}"
            for exchange in self._exchanges()
        )
        return ", ".join(f"{count} {call}" for call, count in calls.most_common(10))

    def cut_off(self) -> None:
        """Abort the connections with a current call."""
        for connection in self.open:
            if connection.current is not None:
                connection.transport.abort()

    async def close(self, timeout_s: float) -> int:
        """Close connections as they become idle, and abort the remaining ones after `timeout_s`.

        Return the number of aborted connections: their callers did not read.
        """
        for connection in self.open:
            connection.shut_down()
        await self.emptied(timeout_s)
        unread = self.open
        for connection in unread:
            connection.transport.abort()
        return len(unread)

    async def emptied(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until no connection is open."""
        await self._open.wait_until_empty(timeout_s)

    def _exchanges(self) -> list[Exchange]:
        return [each.current for each in self._open if each.current is not None]
