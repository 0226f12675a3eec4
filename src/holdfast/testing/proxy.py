"""A fault proxy: a TCP proxy on the loopback interface that makes the network between client and server fail.

    client ──▶ FaultProxy ──▶ server

A connection carries one exchange after another: a request, then its reply. A fault applies to one exchange. A
plan chooses the faults, from a script or from a seed, and `inject` sets the fault of the next exchange:

    async with FaultProxy(server_url, plan=seeded(7)) as proxy:
        async with holdfast.open_async(proxy.url) as hf: ...

    proxy.inject(Fault(NetworkFaultKind.CUT_BEFORE_REPLY))
    await hf.queue("mail").enqueue("hello")  # the server stores the message, but its reply is lost

The proxy passes bytes. The only part of HTTP it knows is the blank line before a body, so it also works with TLS.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter, deque
from dataclasses import dataclass
from typing import NoReturn, Self
from urllib.parse import urlsplit

from holdfast.testing.listening import stop_listening
from holdfast.testing.proxy_plans import HALF_OPEN, Fault, NetworkFaultKind, Plan, scripted, seeded, without_faults

__all__ = ["Fault", "FaultProxy", "NetworkFaultKind", "Plan", "scripted", "seeded", "without_faults"]

_CHUNK = 64 << 10
# A connection is idle when no part of a reply has passed for this long.
_IDLE_S = 0.002
# Bytes of a slow request that are sent at a time. A request still completes in a test that waits for it.
_SLOW_REQUEST_BYTES = 16
# With this value of SO_LINGER, closing a socket sends RST instead of FIN and drops unsent bytes.
_NO_LINGER = struct.pack("ii", 1, 0)


class _CutError(Exception):
    """A signal to end the connection on both sides."""


@dataclass(slots=True, eq=False)
class _Link:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    number: int
    exchanges: int = 0
    is_awaiting_reply: bool = False
    fault: Fault | None = None

    @property
    def kind(self) -> NetworkFaultKind | None:
        return None if self.fault is None else self.fault.kind

    @property
    def is_half_open(self) -> bool:
        return self.kind in HALF_OPEN


class FaultProxy:
    """A TCP proxy in front of a server that applies faults to exchanges. Use it in an `async with` block.

    `url` is the server's URL, and `plan` chooses the fault of each exchange. A half-open connection is closed
    `half_open_timeout_s` seconds after one of its ends has closed it. `connections` and `exchanges` count those seen
    so far, and `faults` counts the faults that have happened, by kind.
    """

    def __init__(self, url: str, plan: Plan = without_faults, *, half_open_timeout_s: float = 5.0) -> None:
        self._upstream = urlsplit(url)
        self._plan = plan
        self._half_open_timeout_s = half_open_timeout_s
        self._injected: deque[Fault] = deque()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.exchanges = 0
        self.faults: Counter[NetworkFaultKind] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        """The URL of the server, with the address of the proxy instead of the server's."""
        assert self._server is not None, "enter the proxy first"
        port = self._server.sockets[0].getsockname()[1]
        return self._upstream._replace(netloc=f"127.0.0.1:{port}").geturl()

    def inject(self, *faults: Fault) -> None:
        """Apply these faults, one each, to the next exchanges on any connection."""
        self._injected.extend(faults)

    def stop_faults(self) -> None:
        """Apply no more faults. Connections that are half open stay so until they are closed."""
        self._plan = without_faults
        self._injected.clear()

    async def cut(self) -> None:
        """Reset every open connection."""
        for link in list(self._links):
            _end(link, is_reset=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # clients and servers on the same event loop have noticed by now

    # --- One connection --------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number, self.connections = self.connections, self.connections + 1
        try:
            upstream = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        except (OSError, asyncio.CancelledError):  # the server refuses connections, or the proxy is closing
            writer.transport.abort()
            return
        link = _Link(client=writer, server=upstream[1], number=number)
        for each in (link.client, link.server):
            each.transport.set_write_buffer_limits(0)  # drained bytes were sent, so an abort cannot drop them
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_requests(link, reader))
                both.create_task(self._carry_replies(link, upstream[0]))
        except* (_CutError, OSError, asyncio.CancelledError):
            pass  # an OSError is an end that closed abruptly; a cancellation means that the proxy is closing
        finally:
            _end(link, is_reset=link.kind is NetworkFaultKind.RESET)
            self._links.discard(link)

    async def _carry_requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if not link.is_awaiting_reply:
                    link.is_awaiting_reply = True
                    self._choose(link)
                    link.exchanges += 1
                    self.exchanges += 1
                await self._pass_request(link, data)
        if link.is_half_open:
            await asyncio.sleep(self._half_open_timeout_s)
            raise _CutError
        link.server.write_eof()

    async def _carry_replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await self._reply(link, reader):
            await self._pass_reply(link, data)
            link.is_awaiting_reply = False
        if link.is_half_open:
            await asyncio.sleep(self._half_open_timeout_s)
        raise _CutError

    async def _reply(self, link: _Link, reader: asyncio.StreamReader) -> bytes:
        if link.kind is not NetworkFaultKind.RESET or link.is_awaiting_reply:
            return await reader.read(_CHUNK)
        try:
            async with asyncio.timeout(_IDLE_S):
                return await reader.read(_CHUNK)
        except TimeoutError:
            self._cut(link)

    # --- Faults -------------------------------------------------------------------------------------------

    def _choose(self, link: _Link) -> None:
        """Choose the fault of an exchange that begins. A half-open connection keeps its fault."""
        if link.is_half_open:
            return
        if link.kind is NetworkFaultKind.RESET:
            self._cut(link)  # the reset and the next request cross on the way
        link.fault = self._injected.popleft() if self._injected else self._plan(link.number, link.exchanges)
        if link.kind in (NetworkFaultKind.LATENCY, NetworkFaultKind.BANDWIDTH, NetworkFaultKind.SLOW_LORIS, *HALF_OPEN):
            self._count(link)

    def _cut(self, link: _Link) -> NoReturn:
        self._count(link)
        raise _CutError

    def _count(self, link: _Link) -> None:
        if link.kind is not None:
            self.faults[link.kind] += 1

    async def _pass_request(self, link: _Link, data: bytes) -> None:
        match link.fault:
            case Fault(kind=NetworkFaultKind.SILENCE):
                pass
            case Fault(kind=NetworkFaultKind.CUT_BEFORE_REQUEST):
                self._cut(link)
            case Fault(kind=NetworkFaultKind.CUT_IN_REQUEST):
                await _send(link.server, data[: _half(data)])
                self._cut(link)
            case Fault(kind=NetworkFaultKind.SLOW_LORIS, ms=ms):
                for at in range(0, len(data), _SLOW_REQUEST_BYTES):
                    await _send(link.server, data[at : at + _SLOW_REQUEST_BYTES], delay_s=ms / 1_000)
            case fault:
                await _send(link.server, data, delay_s=_delay_s(fault, data))

    async def _pass_reply(self, link: _Link, data: bytes) -> None:
        match link.fault:
            case Fault(kind=kind) if kind in HALF_OPEN:
                pass
            case Fault(kind=NetworkFaultKind.CUT_BEFORE_REPLY) if link.is_awaiting_reply:
                self._cut(link)
            case Fault(kind=NetworkFaultKind.CUT_IN_REPLY) if link.is_awaiting_reply:
                await _send(link.client, data[: _half(data)])
                self._cut(link)
            case fault:
                await _send(link.client, data, delay_s=_delay_s(fault, data))


def _delay_s(fault: Fault | None, data: bytes) -> float:
    match fault:
        case Fault(kind=NetworkFaultKind.LATENCY, ms=ms):
            return ms / 1_000
        case Fault(kind=NetworkFaultKind.BANDWIDTH, bytes_per_s=bytes_per_s):
            return len(data) / bytes_per_s
    return 0


async def _send(writer: asyncio.StreamWriter, data: bytes, *, delay_s: float = 0) -> None:
    if delay_s:
        await asyncio.sleep(delay_s)
    writer.write(data)
    await writer.drain()


def _half(data: bytes) -> int:
    """Return the middle of the body, or the middle of all bytes if there is no body."""
    head = data.find(b"\r\n\r\n") + 4
    begin = head if 4 <= head < len(data) - 1 else 0
    return begin + (len(data) - begin) // 2


def _end(link: _Link, *, is_reset: bool) -> None:
    for writer in (link.client, link.server):
        sock = writer.get_extra_info("socket")
        if is_reset and sock is not None and sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        writer.transport.abort()
