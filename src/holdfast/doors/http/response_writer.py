"""The responses of one connection on their way to its caller."""

import asyncio

# Bytes of responses that wait for the end of a read.
_MAX_COLLECTED_BYTES = 64 * 1_024


class ResponseWriter:
    """Writes responses.

    While `is_collecting`, whole responses are kept and leave by one write. `is_paused` says that the caller reads more
    slowly than it is written to.
    """

    __slots__ = ("_collected", "_collected_bytes", "_drains", "_loop", "_transport", "is_collecting", "is_paused")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._drains: list[asyncio.Future[None]] = []
        self.is_collecting = False
        self.is_paused = False

    def connect(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write a part of a response."""
        assert self._transport is not None
        if self._collected:
            self.flush()
        self._transport.write(data)

    def write_last(self, data: bytes) -> None:
        """Write a response, or the rest of one."""
        if self.is_collecting:
            self._collected.append(data)
            self._collected_bytes += len(data)
            if self._collected_bytes > _MAX_COLLECTED_BYTES:
                self.flush()
        else:
            assert self._transport is not None
            self._transport.write(data)

    def end_collecting(self) -> None:
        self.is_collecting = False
        if self._collected:
            self.flush()

    def flush(self) -> None:
        """Write the responses that were collected."""
        collected = self._collected
        if not collected:
            return
        assert self._transport is not None
        data = collected[0] if len(collected) == 1 else b"".join(collected)
        collected.clear()
        self._collected_bytes = 0
        self._transport.write(data)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        drains, self._drains = self._drains, []
        for each in drains:
            if not each.done():
                each.set_result(None)

    async def drained(self) -> None:
        """Wait until the connection takes more, or is lost."""
        while self.is_paused:
            drain: asyncio.Future[None] = self._loop.create_future()
            self._drains.append(drain)
            await drain
