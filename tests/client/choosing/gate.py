"""A proxy before an HTTP port, which can refuse upgrades and hold back responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Gate:
    """Forwards connections to a port of this machine. It can refuse upgrades, and keep responses from the client."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.handlers: set[asyncio.Task[object]] = set()
        # Whether the framed protocol gets through, and whether any connection does.
        self.lets_frames = True
        self.is_open = True
        # Requests still reach the server, but no response reaches the client.
        self.is_deaf = False
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.close()
            return
        self._writers.add(writer)
        handler = asyncio.current_task()
        assert handler is not None
        self.handlers.add(handler)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"Upgrade: holdfast" in head and not self.lets_frames:
                writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            to_server.write(head)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, to_server))
                both.create_task(self._forward(from_server, writer, is_response=True))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client or the test has closed this connection
        finally:
            self._writers.discard(writer)
            self.handlers.discard(handler)
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_response: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not (is_response and self.is_deaf):
                    writer.write(data)
        except ConnectionError:
            pass  # the other direction ends the connection
        finally:
            writer.close()

    def cut(self) -> None:
        """Close every open connection."""
        for writer in list(self._writers):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def gate_before(port: int) -> AsyncIterator[Gate]:
    gate = Gate(port)
    server = await asyncio.start_server(gate.handle, "127.0.0.1", 0)
    gate.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        server.close()
        gate.cut()
        if gate.handlers:
            await asyncio.wait(gate.handlers)
