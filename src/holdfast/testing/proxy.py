"""A proxy on the loopback on which the network fails as a test says: for our tests and our users'.

    client ──▶ FaultProxy ──▶ server

A connection carries one exchange after the other: a request, then its reply. A fault belongs to one exchange. It is
planned, by script or by seed, or struck at whichever exchange comes next:

    async with FaultProxy(server_url, plan=seeded(7)) as proxy:
        async with holdfast.open_async(proxy.url) as hf: ...

    proxy.strike(Fault(Kind.CUT_BEFORE_REPLY))
    await hf.queue("mail").enqueue("hello")  # the server has it, and the client does not hear of it

It passes bytes and knows nothing of HTTP but the blank line before a body, so TLS goes through it as well.
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
from holdfast.testing.proxy_plans import HALF_OPEN, Fault, Kind, Plan, scripted, seeded, without_faults

__all__ = ["Fault", "FaultProxy", "Kind", "Plan", "scripted", "seeded", "without_faults"]

_CHUNK = 64 << 10
# A connection on which no reply went on for so long is idle.
_IDLE_S = 0.002
# Sent at a time: enough for a request to be whole some day, in a test that waits for it.
_LORIS_BYTES = 16
# close() sends RST instead of FIN, and what was not sent is dropped.
_NO_LINGER = struct.pack("ii", 1, 0)


class _CutError(Exception):
    """The connection ends here, on both sides."""


@dataclass(slots=True, eq=False)
class _Link:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    number: int
    exchanges: int = 0
    is_asking: bool = False
    fault: Fault | None = None

    @property
    def kind(self) -> Kind | None:
        return None if self.fault is None else self.fault.kind

    @property
    def is_half_open(self) -> bool:
        return self.kind in HALF_OPEN


class FaultProxy:
    def __init__(self, url: str, plan: Plan = without_faults, *, forget_s: float = 5.0) -> None:
        """`forget_s`: a half-open connection whose other end is gone is ended after this long."""
        self._upstream = urlsplit(url)
        self._plan = plan
        self._forget_s = forget_s
        self._struck: deque[Fault] = deque()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.exchanges = 0
        self.faults: Counter[Kind] = Counter()  # that happened so far

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
        """As the server's, with the proxy's own address."""
        assert self._server is not None, "enter the proxy first"
        port = self._server.sockets[0].getsockname()[1]
        return self._upstream._replace(netloc=f"127.0.0.1:{port}").geturl()

    def strike(self, *faults: Fault) -> None:
        """The next exchanges, on whichever connections, meet these."""
        self._struck.extend(faults)

    def heal(self) -> None:
        """From here on nothing goes wrong any more. What is half open stays so until it is forgotten."""
        self._plan = without_faults
        self._struck.clear()

    async def cut(self) -> None:
        """Every connection there is, at once."""
        for link in list(self._links):
            _end(link, is_reset=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # whoever shares this loop has heard of it now

    # --- One connection --------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number, self.connections = self.connections, self.connections + 1
        try:
            upstream = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        except (OSError, asyncio.CancelledError):  # no server there, or the proxy's end: none here either
            writer.transport.abort()
            return
        link = _Link(client=writer, server=upstream[1], number=number)
        for each in (link.client, link.server):
            each.transport.set_write_buffer_limits(0)  # what was drained was sent, so that ending it drops nothing
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_requests(link, reader))
                both.create_task(self._carry_replies(link, upstream[0]))
        except* (_CutError, OSError, asyncio.CancelledError):
            pass  # an error is an end that left without a word; cancelled is the proxy's own end
        finally:
            _end(link, is_reset=link.kind is Kind.RESET)
            self._links.discard(link)

    async def _carry_requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if not link.is_asking:
                    link.is_asking = True
                    self._choose(link)
                    link.exchanges += 1
                    self.exchanges += 1
                await self._pass_request(link, data)
        if link.is_half_open:
            await asyncio.sleep(self._forget_s)
            raise _CutError
        link.server.write_eof()

    async def _carry_replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await self._reply(link, reader):
            await self._pass_reply(link, data)
            link.is_asking = False
        if link.is_half_open:
            await asyncio.sleep(self._forget_s)
        raise _CutError

    async def _reply(self, link: _Link, reader: asyncio.StreamReader) -> bytes:
        if link.kind is not Kind.RESET or link.is_asking:
            return await reader.read(_CHUNK)
        try:
            async with asyncio.timeout(_IDLE_S):
                return await reader.read(_CHUNK)
        except TimeoutError:
            self._cut(link)

    # --- What goes wrong -------------------------------------------------------------------------------------------

    def _choose(self, link: _Link) -> None:
        """The fault of an exchange that begins. What is half open stays so."""
        if link.is_half_open:
            return
        if link.kind is Kind.RESET:
            self._cut(link)  # the next request crosses the reset on its way
        link.fault = self._struck.popleft() if self._struck else self._plan(link.number, link.exchanges)
        if link.kind in (Kind.LATENCY, Kind.BANDWIDTH, Kind.SLOW_LORIS, *HALF_OPEN):
            self._count(link)

    def _cut(self, link: _Link) -> NoReturn:
        self._count(link)
        raise _CutError

    def _count(self, link: _Link) -> None:
        if link.kind is not None:
            self.faults[link.kind] += 1

    async def _pass_request(self, link: _Link, data: bytes) -> None:
        match link.fault:
            case Fault(kind=Kind.SILENCE):
                pass
            case Fault(kind=Kind.CUT_BEFORE_REQUEST):
                self._cut(link)
            case Fault(kind=Kind.CUT_IN_REQUEST):
                await _send(link.server, data[: _half(data)])
                self._cut(link)
            case Fault(kind=Kind.SLOW_LORIS, ms=ms):
                for at in range(0, len(data), _LORIS_BYTES):
                    await _send(link.server, data[at : at + _LORIS_BYTES], delay_s=ms / 1_000)
            case fault:
                await _send(link.server, data, delay_s=_delay_s(fault, data))

    async def _pass_reply(self, link: _Link, data: bytes) -> None:
        match link.fault:
            case Fault(kind=kind) if kind in HALF_OPEN:
                pass
            case Fault(kind=Kind.CUT_BEFORE_REPLY) if link.is_asking:
                self._cut(link)
            case Fault(kind=Kind.CUT_IN_REPLY) if link.is_asking:
                await _send(link.client, data[: _half(data)])
                self._cut(link)
            case fault:
                await _send(link.client, data, delay_s=_delay_s(fault, data))


def _delay_s(fault: Fault | None, data: bytes) -> float:
    match fault:
        case Fault(kind=Kind.LATENCY, ms=ms):
            return ms / 1_000
        case Fault(kind=Kind.BANDWIDTH, bytes_per_s=bytes_per_s):
            return len(data) / bytes_per_s
    return 0


async def _send(writer: asyncio.StreamWriter, data: bytes, *, delay_s: float = 0) -> None:
    if delay_s:
        await asyncio.sleep(delay_s)
    writer.write(data)
    await writer.drain()


def _half(data: bytes) -> int:
    """Where to cut: in the middle of the body, or of the whole where there is none."""
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
