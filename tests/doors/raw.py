"""A connection on which a test writes what it likes, as it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from tests.doors.serving import Answer, Server


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, *parts: bytes | str) -> None:
        self.writer.write(b"".join(each.encode("latin-1") if isinstance(each, str) else each for each in parts))

    def ask(self, method: str, path: str, body: bytes | Any = None, **headers: str) -> None:
        """One request; a body that is not bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        whole = {"Host": "localhost", **headers}
        if body is not None:
            whole.setdefault("Content-Length", str(len(body)))
        self.write(head(method, path, whole), body or b"")

    async def answer(self, *, is_head: bool = False) -> Answer:
        """The next answer; interim ones (100) are passed over."""
        async with asyncio.timeout(60):
            while True:
                lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
                status = int(lines[0].split(b" ", 2)[1])
                if status >= 200:
                    break
            headers = Headers(line.split(b": ", 1) for line in lines[1:-2])
            body = b""
            if headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readline(), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
            elif not is_head:
                body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(status, headers, body)

    async def rest(self, *, within_s: float = 20) -> bytes:
        """All until the other side closes."""
        async with asyncio.timeout(within_s):
            return await self.reader.read()

    def cut(self) -> None:
        self.writer.transport.abort()


class Headers(dict[str, str]):
    """By lower-case name; one that comes twice shows as both."""

    def __init__(self, pairs: Iterable[list[bytes]]) -> None:
        super().__init__()
        for name, value in pairs:
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1")
            self[key] = f"{self[key]}, {text}" if key in self else text

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


def head(method: str, path: str, headers: Mapping[str, str], version: str = "1.1") -> str:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n"


@contextlib.asynccontextmanager
async def wire(server: Server) -> AsyncIterator[Wire]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    connection = Wire(reader, writer)
    try:
        yield connection
    finally:
        connection.cut()


async def once(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    async with wire(server) as connection:
        connection.ask(method, path, body, **headers)
        return await connection.answer()
