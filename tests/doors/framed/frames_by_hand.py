"""A caller of the framed door that writes and reads frames by hand."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import HoldfastError
from holdfast.model.requests import ClaimRequest
from holdfast.wire.framed import answers, greetings
from holdfast.wire.framed.frames import CONNECTION, Frame, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import ClientHello, ServerHello

PATIENCE_S = 20.0


class Peer:
    """One connection. Frames that belong to other calls are kept until somebody asks for them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader(1 << 30)
        self.read_frames: list[Frame] = []
        self._numbers = itertools.count(1)

    # --- Frames ----------------------------------------------------------------------------------------------------

    def write(self, kind: int, call: int = CONNECTION, body: bytes = b"") -> None:
        self.writer.write(write_frame(kind, call, body))

    def open(self, *places: Any, number: int | None = None) -> int:
        """Send a CALL, and return its number."""
        number = next(self._numbers) if number is None else number
        self.write(FrameKind.CALL, number, msgspec.msgpack.encode(places))
        return number

    async def next_of(self, *calls: int) -> Frame:
        """Return the next frame of one of these calls."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for frame in self.read_frames:
                    if frame[1] in calls:
                        self.read_frames.remove(frame)
                        return frame
                data = await self.reader.read(1 << 20)
                if not data:
                    raise EOFError
                self.read_frames += self._frames.feed(data)

    async def end(self) -> list[Frame]:
        """Return the frames until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while data := await self.reader.read(1 << 20):
                self.read_frames += self._frames.feed(data)
        return self.read_frames

    async def result(self, call: int) -> bytes:
        """Return the body of a call's RESULT; raise its ERROR."""
        kind, _, body = await self.next_of(call)
        if kind == FrameKind.ERROR:
            raise greetings.read_error(body)
        assert kind == FrameKind.RESULT, kind
        return body

    async def refusal(self, *places: Any) -> HoldfastError:
        """Return the error that a call is answered by."""
        kind, _, body = await self.next_of(self.open(*places))
        assert kind == FrameKind.ERROR, (kind, body)
        return greetings.read_error(body)

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def hello(self, token: str | None = None) -> ServerHello:
        self.greet(token)
        kind, _, body = await self.next_of(CONNECTION)
        assert kind == FrameKind.HELLO, greetings.read_error(body)
        return greetings.read_server_hello(body)

    def greet(self, token: str | None = None) -> None:
        self.write(FrameKind.HELLO, body=greetings.write_hello(ClientHello(1, token, "by hand")))

    async def call(self, *places: Any) -> bytes:
        return await self.result(self.open(*places))

    async def enqueue(
        self, *payloads: bytes, tenant: str | None = "acme", queue: str | None = "jobs"
    ) -> list[Enqueued]:
        body = await self.call("enqueue", tenant, queue, None, [[each] for each in payloads])
        return answers.read_enqueued(body)

    async def claim(self, limit: int = 1, tenant: str | None = "acme", queue: str | None = "jobs") -> list[Delivery]:
        body = await self.call("claim", tenant, queue, None, [limit])
        return answers.read_claimed(body).deliveries

    def open_claim(
        self, wait_ms: int | None = None, *, limit: int = 1, tenant: str = "acme", queue: str = "jobs"
    ) -> int:
        return self.open("claim", tenant, queue, None, [limit], wait_ms)

    async def claimed(self, call: int) -> list[Delivery]:
        return answers.read_claimed(await self.result(call)).deliveries

    async def settle(self, *verdicts: Any, tenant: str = "acme", queue: str = "jobs") -> list[Result]:
        return answers.read_results(await self.call("settle", tenant, queue, None, list(verdicts)))

    async def stats(self, tenant: str = "acme", queue: str = "jobs") -> dict[str, Any]:
        stats: dict[str, Any] = msgspec.msgpack.decode(await self.call("stats", tenant, queue, None))
        return stats

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            return  # the server was quicker


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[Peer]:
    """A connection that has not said hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, **more)
    peer = Peer(reader, writer)
    try:
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def greeted(port: int, token: str | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    async with connected(port, tls) as peer:
        await peer.hello(token)
        yield peer


def ask(**fields: Any) -> tuple[Any, ...]:
    return msgspec.structs.astuple(ClaimRequest(**fields))
