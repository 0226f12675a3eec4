"""Real connections to an application that a test can look into."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from holdfast.doors.http.connections.connections import KEEP_ALIVE_S, HotCall, HttpConnections

Run: TypeAlias = Callable[[Awaitable[None]], None]
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


async def within(test: Awaitable[None]) -> None:
    async with asyncio.timeout(60):
        await test


class App:
    """A handler that answers with its arguments, and keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.hot_calls: dict[bytes, HotCall] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append(scope)
        body = b""
        if scope["path"] != "/unread":
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
        await self.may_answer.wait()
        answer = json.dumps({"path": scope["path"], "body": body.decode("latin-1")}).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", str(len(answer)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": answer})


@contextlib.asynccontextmanager
async def serving(
    app: App, *, keep_alive_s: float = KEEP_ALIVE_S, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    group = HttpConnections(app, app.hot_calls, keep_alive_s=keep_alive_s)
    listening = await asyncio.get_running_loop().create_server(group.make, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        app.may_answer.set()
        listening.close()
        for connection in group.open:
            connection.transport.abort()
        if group.tasks:
            await asyncio.wait(group.tasks)
        await listening.wait_closed()


async def talk(port: int, *parts: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send the parts, then read until the server closes."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    # From the first part on: a reset by a server that has closed would take along what is not read yet.
    answer = asyncio.create_task(_read(reader))
    try:
        for part in parts:
            # The server may have closed, which uvloop calls a RuntimeError.
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(part)
                await writer.drain()
            if len(parts) > 1:
                await asyncio.sleep(0.01)
        return await answer
    finally:
        answer.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """All until the server closes, or resets the connection after it has answered."""
    answer = b""
    try:
        while part := await reader.read(1 << 16):
            answer += part
    except ConnectionError:
        if not answer:
            raise
    return answer


def assert_refused(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"connection: close" in head
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_argument"
    assert error["message"]


def head_of(size: int, header_bytes: int = 8_000) -> bytes:
    """Exactly `size` bytes as they are counted."""
    url, rest = b"/a", size - len(b"/a")
    headers = [(b"Host", b"x"), (b"Connection", b"close")]
    rest -= sum(len(name) + len(value) + 4 for name, value in headers)
    while rest:
        take = min(rest, header_bytes)
        if 0 < rest - take < 8:
            take -= 8
        headers.append((b"X-%d" % (len(headers) % 10), b"v" * (take - 7)))
        rest -= take
    return b"GET %b HTTP/1.1\r\n" % url + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"
