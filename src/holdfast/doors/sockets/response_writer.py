"""The responses of one connection on their way to its caller."""

import asyncio

from holdfast.doors.sockets.socket_state import untaken_bytes

# A caller that takes nothing of its responses for this long is given up, and they with it.
UNREAD_PATIENCE_S = 30.0
_LOOKS = 6
# Bytes of responses that wait for the end of a read.
_MAX_COLLECTED_BYTES = 64 * 1_024


class ResponseWriter:
    """Writes responses.

    While `is_collecting`, whole responses are kept and leave by one write. `is_paused` says that the caller reads more
    slowly than it is written to. If it then takes nothing at all for `UNREAD_PATIENCE_S`, its connection is aborted.
    """

    __slots__ = (
        "_collected",
        "_collected_bytes",
        "_drains",
        "_is_ending",
        "_loop",
        "_timer",
        "_transport",
        "_untaken",
        "_untaken_since_s",
        "has_aborted",
        "is_collecting",
        "is_paused",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._drains: list[asyncio.Future[None]] = []
        # Bytes that the caller has yet to take, and since when it has taken none of them.
        self._untaken = 0
        self._untaken_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self.is_collecting = False
        self.is_paused = False
        # The connection was aborted, for its caller took nothing.
        self.has_aborted = False

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

    @property
    def unflushed_bytes(self) -> int:
        """Return the bytes that were collected and not written yet."""
        return self._collected_bytes

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
        self._be_patient()

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

    # --- The end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection once the caller has taken everything, or has taken nothing for too long."""
        assert self._transport is not None
        self._is_ending = True
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._be_patient()

    def stop(self) -> None:
        """Let go of those who wait for the caller: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_ending = False
        self.resume()

    def _be_patient(self) -> None:
        """Begin the time that the caller has: it has just taken something, or its last response was written."""
        assert self._transport is not None
        self._untaken = untaken_bytes(self._transport)
        self._untaken_since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(UNREAD_PATIENCE_S / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.is_paused and not self._is_ending:
            return
        assert self._transport is not None
        now_s, untaken = self._loop.time(), untaken_bytes(self._transport)
        if untaken < self._untaken:
            self._untaken_since_s = now_s
        elif now_s - self._untaken_since_s >= UNREAD_PATIENCE_S:
            self.has_aborted = True
            self._transport.abort()
            return
        self._untaken = untaken
        self._timer = self._loop.call_later(UNREAD_PATIENCE_S / _LOOKS, self._look)
