"""A server of frames that does what a test says, for what a real one does only at bad moments."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.wire.framed.frames import CONNECTION, FrameKind, FrameReader, write_frame
from holdfast.wire.framed.greetings import VERSION, ServerHello, write_error, write_hello

WINDOW = 100_000
ID = 1 << 60
RECEIPT = [ID, b"t" * 16, 1]
# One message, as a claim answers it.
DELIVERY = [ID, None, RECEIPT, b"1", None, "application/json", True, {}, 100, 1, 0, 1 << 50, None, None]


class Peer:
    """One connection of a client."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.writer = writer
        # Every frame of it: kind, call and body, which is decoded but for DATA.
        self.seen: list[tuple[FrameKind, int, Any]] = []
        self.reads = 0

    def send(self, kind: FrameKind, call: int = CONNECTION, value: Any = None, *, raw: bytes | None = None) -> None:
        body = b"" if raw is None and value is None else (raw or msgspec.msgpack.encode(value))
        self.writer.write(write_frame(kind, call, body))

    def result(self, call: int, value: Any) -> None:
        self.writer.write(write_frame(FrameKind.RESULT, call, msgspec.msgpack.encode(value)))

    def refuse(self, call: int, error: HoldfastError) -> None:
        self.writer.write(write_frame(FrameKind.ERROR, call, write_error(error)))

    def kinds(self) -> list[FrameKind]:
        return [kind for kind, _, _ in self.seen]

    def calls(self) -> list[str]:
        """Return the operations that were called."""
        return [value[0] for kind, _, value in self.seen if kind is FrameKind.CALL]


Script = Callable[[Peer, FrameKind, int, Any], Awaitable[None] | None]


class Scripted:
    def __init__(self, script: Script, hello: ServerHello | None) -> None:
        self._script = script
        self._hello = hello
        self.peers: list[Peer] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"holdfast://127.0.0.1:{self.port}"

    @property
    def seen(self) -> list[tuple[FrameKind, int, Any]]:
        return [each for peer in self.peers for each in peer.seen]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(self.peers), writer)
        self.peers.append(peer)
        frames = FrameReader(1 << 30)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                peer.reads += 1
                for number, call, body in frames.feed(data):
                    kind = FrameKind(number)
                    is_raw = kind in (FrameKind.DATA, FrameKind.PING, FrameKind.PONG) or not body
                    value = body if is_raw else msgspec.msgpack.decode(body)
                    peer.seen.append((kind, call, value))
                    if kind is FrameKind.HELLO:
                        if self._hello is not None and peer.kinds().count(FrameKind.HELLO) == 1:
                            peer.writer.write(write_frame(FrameKind.HELLO, CONNECTION, write_hello(self._hello)))
                        continue
                    if (work := self._script(peer, kind, call, value)) is not None:
                        await work
        writer.close()


@contextlib.asynccontextmanager
async def scripted(
    script: Script,
    *,
    max_frame_bytes: int = 1 << 20,
    max_calls: int = 100,
    keepalive_ms: int = 30_000,
    says_hello: bool = True,
) -> AsyncIterator[Scripted]:
    hello = ServerHello(VERSION, "0", max_frame_bytes, max_calls, keepalive_ms, WINDOW)
    server = Scripted(script, hello if says_hello else None)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for peer in server.peers:
            peer.writer.close()
