"""Write the responses of one connection, and abort it if its caller stops reading them."""

import asyncio

from holdfast.doors.sockets.socket_state import unacknowledged_bytes

# A connection is aborted if its caller acknowledges no bytes of its responses for this long.
UNREAD_PATIENCE_S = 30.0
# The number of checks within that time.
_CHECKS = 6
# The limit of responses that are collected until the end of a read.
_MAX_COLLECTED_BYTES = 64 * 1_024


class ResponseWriter:
    """The writer of one connection's responses.

    While `is_collecting`, whole responses are collected and leave in one write. `is_paused` means that the caller reads
    more slowly than responses are written. If it then reads nothing for `UNREAD_PATIENCE_S`, its connection is aborted.
    """

    __slots__ = (
        "_collected",
        "_collected_bytes",
        "_drains",
        "_is_ending",
        "_loop",
        "_timer",
        "_transport",
        "_unacknowledged",
        "_unacknowledged_since_s",
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
        # The bytes that the caller has not acknowledged, and the time of the last acknowledgement.
        self._unacknowledged = 0
        self._unacknowledged_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self.is_collecting = False
        self.is_paused = False
        # Whether the connection was aborted because its caller did not read.
        self.has_aborted = False

    def connect(self, transport: asyncio.Transport) -> None:
        """Set the transport of the connection."""
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write part of a response."""
        assert self._transport is not None
        if self._collected:
            self.flush()
        self._transport.write(data)

    def write_last(self, data: bytes) -> None:
        """Write a whole response, or the last part of one."""
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
        """Return the number of collected bytes that are not written yet."""
        return self._collected_bytes

    def end_collecting(self) -> None:
        """Write the collected responses, and collect no more."""
        self.is_collecting = False
        if self._collected:
            self.flush()

    def flush(self) -> None:
        """Write the collected responses."""
        collected = self._collected
        if not collected:
            return
        assert self._transport is not None
        data = collected[0] if len(collected) == 1 else b"".join(collected)
        collected.clear()
        self._collected_bytes = 0
        self._transport.write(data)

    def pause(self) -> None:
        """Note that the transport's buffer is full."""
        self.is_paused = True
        self._start_patience()

    def resume(self) -> None:
        """Note that the transport takes more, and wake those who wait for it."""
        self.is_paused = False
        drains, self._drains = self._drains, []
        for each in drains:
            if not each.done():
                each.set_result(None)

    async def drained(self) -> None:
        """Wait until the connection takes more bytes, or is lost."""
        while self.is_paused:
            drain: asyncio.Future[None] = self._loop.create_future()
            self._drains.append(drain)
            await drain

    # --- The end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection once the caller has received everything, or abort it if the caller does not read."""
        assert self._transport is not None
        self._is_ending = True
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._start_patience()

    def stop(self) -> None:
        """Stop the timer and wake those who wait in `drained`: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_ending = False
        self.resume()

    def _start_patience(self) -> None:
        """Start the caller's time to read: bytes were just acknowledged, or the last response was written."""
        assert self._transport is not None
        self._unacknowledged = unacknowledged_bytes(self._transport)
        self._unacknowledged_since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(UNREAD_PATIENCE_S / _CHECKS, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self.is_paused and not self._is_ending:
            return
        assert self._transport is not None
        now_s, unacknowledged = self._loop.time(), unacknowledged_bytes(self._transport)
        if unacknowledged < self._unacknowledged:
            self._unacknowledged_since_s = now_s
        elif now_s - self._unacknowledged_since_s >= UNREAD_PATIENCE_S:
            self.has_aborted = True
            self._transport.abort()
            return
        self._unacknowledged = unacknowledged
        self._timer = self._loop.call_later(UNREAD_PATIENCE_S / _CHECKS, self._check)
