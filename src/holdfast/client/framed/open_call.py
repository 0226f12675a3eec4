"""The interface of an open call, which calls in threads and on an event loop share, and its response frames."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from holdfast.wire.framed.frames import FrameKind
from holdfast.wire.framed.greetings import ServerHello

# The kind and the body of a frame.
ResponseFrame = tuple[int, bytes]

# Plain numbers, because comparing enum members costs several times as much.
RESULT: Final = int(FrameKind.RESULT)
ERROR: Final = int(FrameKind.ERROR)
ITEM: Final = int(FrameKind.ITEM)
CREDIT: Final = int(FrameKind.CREDIT)

# The client does not limit the size of responses.
LONGEST_FRAME: Final = 1 << 31
# The keepalive interval until the server's hello has the real one.
KEEPALIVE_S: Final = 30.0
# After this many keepalive intervals without a byte, the connection counts as broken.
MAX_SILENT_INTERVALS: Final = 2.5


class OpenCall(Protocol):
    """One call on a connection, opened once by `request` or `open`."""

    @property
    def is_over(self) -> bool:
        """True if the call was not sent or has its final response."""

    async def request(self, body: bytes, limit_s: float | None) -> ResponseFrame:
        """Open the call, and return its first response frame. Raise `Lost`."""

    async def open(self, body: bytes) -> None:
        """Open the call without waiting for a response. Raise `Lost`."""

    async def server_hello(self, limit_s: float) -> ServerHello:
        """Return the hello of the server, waiting for it if necessary. Raise `Lost`."""

    async def send(self, kind: int, body: bytes) -> None:
        """Send another frame of an open call. Raise `Lost`."""

    async def receive(self, limit_s: float | None) -> ResponseFrame:
        """Return the next response frame. Raise `Lost`."""

    @property
    def received_at(self) -> float:
        """The time of the last frame, in seconds of the same clock as `steady_s`."""

    def abandon(self, on_late: Callable[[ResponseFrame], None] | None) -> None:
        """Ignore further responses to the call, whose caller was cancelled or timed out.

        `on_late` gets results, and items of a stream, that arrive later if the connection stays open.
        """

    async def cancel_and_drain(self, limit_s: float) -> list[ResponseFrame]:
        """Cancel the call, and return the frames that its caller did not receive, up to the final response.

        A waiting caller gets `Lost`. If there is no final response in time, the server gives the remaining messages
        back when the connection ends.
        """


class CallPool(Protocol):
    """The connections of a client, from which a call gets one."""

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> Any:
        """Return an `OpenCall` that is not open yet. Raise `Lost`.

        Long calls do not count against a limit on connections, so that a verdict always gets one.
        `is_fresh`: use a connection that is not about to close.
        """

    def put_back(self, call: Any, *, is_long: bool) -> None:
        """Take back a call that is over or was abandoned."""

    def detach(self, call: Any, *, is_long: bool) -> None:
        """Forget a call that `cancel_and_drain` will end."""

    def close(self) -> None:
        """Close every connection: calls under way end without a response."""
