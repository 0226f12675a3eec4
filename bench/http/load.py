"""A load of HTTP requests light enough that the server is what is measured: raw connections, no client library."""

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

# The next request of a connection, given the answer to its last one (None at first); None ends it.
Script = Callable[[bytes | None], bytes | None]


def request(path: str, body: bytes, method: str = "POST") -> bytes:
    headers = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\n{headers}\r\n".encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, script: Script) -> None:
        self._script = script
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._go_on(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        head = head.lower()
        start = head.index(b"content-length:") + len(b"content-length:")
        length = int(head[start : head.find(b"\r\n", start) if head.find(b"\r\n", start) > 0 else None])
        if len(rest) < length:
            return
        if not head.startswith(b"http/1.1 200"):
            self.done.set_exception(RuntimeError(self._buffer.decode()))
            self._transport.close()
            return
        self._buffer = b""
        self._go_on(rest)

    def _go_on(self, answer: bytes | None) -> None:
        following = self._script(answer)
        if following is None:
            self._transport.close()
            self.done.set_result(None)
        else:
            self._transport.write(following)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def run(port: int, scripts: list[Script]) -> None:
    """One connection per script, all at once, until each has ended."""
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda script=script: _Connection(script), "127.0.0.1", port) for script in scripts
    ]
    await asyncio.gather(*(connection.done for _, connection in connections))


def repeat(body: bytes, times: int) -> Script:
    """The same request again and again."""
    bodies: Iterator[bytes] = iter([body] * times)
    return lambda answer: next(bodies, None)
