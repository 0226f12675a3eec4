"""uvicorn as this server uses it: started and stopped by us, with its calls finished before it goes."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from holdfast.doors.http.app import Asgi
from holdfast.doors.http.exchange import ShortExchange
from holdfast.doors.http.protocol import HttpProtocol

# Longer than the idle time of the usual load balancers (60 s): the side that waits longer never closes a connection on
# which the other is just sending.
_KEEP_ALIVE_S = 75
_BACKLOG = 2_048
# Callers in the middle of asking again hear that the server is closing, instead of finding the connection closed.
_LINGER_S = 0.2


class HttpServer(uvicorn.Server):
    """Leaves signals alone: whoever runs it begins its end."""

    def __init__(self, door: Asgi, tls: ssl.SSLContext | None) -> None:
        options: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda config, default: tls}
        super().__init__(
            uvicorn.Config(
                door,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                **options,
            )
        )
        self._begun = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun.set()

    async def begun(self, serving: "asyncio.Task[None]") -> None:
        """Until it listens; if it ended instead, why."""
        await either(serving, self._begun)

    def in_hand(self) -> "set[asyncio.Future[None]]":
        short = {cycle.ended() for cycle in self._cycles() if isinstance(cycle, ShortExchange)}
        return {*self.server_state.tasks, *short}

    def close_after_answers(self) -> None:
        """Every answer from now on is its connection's last."""
        last = (b"connection", b"close")
        self.config.encoded_headers = [*self.config.encoded_headers, last]
        self.server_state.default_headers = [*self.server_state.default_headers, last]
        for cycle in self._cycles():
            cycle.keep_alive = False

    def describe_calls(self) -> str:
        calls = Counter(f"{cycle.scope['method']} {cycle.scope['path']}" for cycle in self._cycles())
        return ", ".join(f"{count} {call}" for call, count in calls.most_common(10))

    def cut_off(self) -> None:
        for cycle in self._cycles():
            cycle.transport.abort()

    async def close(self, serving: "asyncio.Task[None]", deadline: float, *, at_least_s: float) -> int:
        """No more connections, and an end to those there are. How many had to be cut: their callers do not read."""
        loop = asyncio.get_running_loop()
        lingers_until = min(loop.time() + _LINGER_S, deadline)
        for each in self.servers:
            each.close()
        while self.server_state.connections and loop.time() < lingers_until:  # noqa: ASYNC110  # uvicorn tells no event
            await asyncio.sleep(_LINGER_S / 10)
        self.config.timeout_graceful_shutdown = max(deadline - loop.time(), at_least_s)  # type: ignore[assignment]
        self.should_exit = True
        await serving
        unread = list(self.server_state.connections)
        for connection in unread:
            connection.transport.abort()
        return len(unread)

    def _cycles(self) -> Iterator[Any]:
        """The calls that connections are in the middle of."""
        for connection in list(self.server_state.connections):
            cycle: Any = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                yield cycle


async def either(serving: "asyncio.Task[None]", event: asyncio.Event) -> None:
    """Until the event; a server that ends without it has failed, and says why."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if serving.done():
        serving.result()
