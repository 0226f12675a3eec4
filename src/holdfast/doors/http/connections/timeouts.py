"""The time limits of one HTTP connection: for a head, between two requests, and for the end of the connection."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.doors.http.connections.connection import HttpConnection

# The time from the first byte of a head, or from the start of the connection, to the end of the head.
HEAD_PATIENCE_S = 10.0
# If the connection of a refused caller were closed while the caller still sends, a reset could destroy the response.
# Therefore bytes are read and dropped for this time.
LINGER_S = 1.0


class CallerTimeouts:
    """The timers of one connection, which close it when its caller does not continue.

    `idle_since_s` is the time of the last response, if no request has arrived since. One timer per connection checks
    it, because a timer per response would cost too much.
    """

    __slots__ = ("_connection", "_keep_alive_s", "_loop", "idle_since_s", "idle_timer", "patience")

    def __init__(self, connection: "HttpConnection", loop: asyncio.AbstractEventLoop, keep_alive_s: float) -> None:
        self._connection = connection
        self._loop = loop
        self._keep_alive_s = keep_alive_s
        self.idle_since_s: float | None = None
        self.idle_timer: asyncio.TimerHandle | None = None
        # The timeout of an incomplete head, or of an ending connection.
        self.patience: asyncio.TimerHandle | None = None

    def wait_for_head(self) -> None:
        """Start the timeout of a head, unless it runs."""
        if self.patience is None:
            self.patience = self._loop.call_later(HEAD_PATIENCE_S, self.lose_patience)

    def lose_patience(self) -> None:
        """End the timeout of a head: close the connection, unless requests are running or waiting."""
        self.patience = None
        if not self._connection.is_busy:
            self._connection.close()

    def stop_patience(self) -> None:
        """Cancel the timeout of an incomplete head, or of an ending connection."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def wait_for_request(self) -> None:
        """Start the time between two requests."""
        self.idle_since_s = self._loop.time()
        if self.idle_timer is None:
            self.idle_timer = self._loop.call_later(self._keep_alive_s, self._check_idle)

    def note_bytes(self) -> None:
        """Note that the caller has sent bytes, which now wait for a turn."""
        self.stop_patience()
        self.idle_since_s = None

    def linger(self) -> None:
        """Close the connection after `LINGER_S`, and by no other timeout."""
        self.stop()
        self.patience = self._loop.call_later(LINGER_S, self._connection.close)

    def stop(self) -> None:
        """Stop all timeouts of the connection: it is ending."""
        self.note_bytes()
        if self.idle_timer is not None:
            self.idle_timer.cancel()

    def _check_idle(self) -> None:
        now_s = self._loop.time()
        since_s = now_s if self.idle_since_s is None else self.idle_since_s
        remaining_s = since_s + self._keep_alive_s - now_s
        if remaining_s > 0:
            self.idle_timer = self._loop.call_later(remaining_s, self._check_idle)
        elif not self._connection.transport.is_closing():
            self._connection.close()
