"""A way to a server on which things go wrong when a test says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self


class Relay:
    """Passes bytes on between a client and a server. Told to lose answers, it cuts a connection instead of answering:
    the server did what it was asked, and the client does not hear of it."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.requests = 0
        self._answers_to_lose = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lose_answers(self, number: int = 1) -> None:
        self._answers_to_lose = number

    async def cut(self) -> None:
        """Every connection there is."""
        for writer in self._links:
            writer.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._links |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._up(reader, server_writer))
                both.create_task(self._down(server_reader, writer))
        finally:
            for each in (writer, server_writer):
                each.transport.abort()
                self._links.discard(each)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.requests += data.count(b" HTTP/1.1\r\n")
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self._answers_to_lose and data.startswith(b"HTTP/1.1"):
                    self._answers_to_lose -= 1
                    break
                writer.write(data)
                await writer.drain()
            writer.transport.abort() if not data else writer.close()


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The URL of something that answers every connection with these bytes, and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
