"""The frames that answer a call, and the interface that calls in threads and on a loop share."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from holdfast.wire.framed.frames import FrameKind
from holdfast.wire.framed.greetings import ServerHello

# Kind and body.
Answer = tuple[int, bytes]

# As plain numbers: comparing enum members costs several times as much.
RESULT: Final = int(FrameKind.RESULT)
ERROR: Final = int(FrameKind.ERROR)
ITEM: Final = int(FrameKind.ITEM)
CREDIT: Final = int(FrameKind.CREDIT)

# A server is trusted with the size of its answers.
LONGEST_FRAME: Final = 1 << 31
# Until the server has said how often it is to be heard.
KEEPALIVE_S: Final = 30.0
# After this many keepalive intervals of silence, the other side is taken for gone.
SILENCES: Final = 2.5


class OpenCall(Protocol):
    """One call on a connection. It is opened once, by `ask` or `open`."""

    @property
    def is_over(self) -> bool:
        """Return whether the call was not sent, or has its final answer."""

    async def ask(self, body: bytes, limit_s: float | None) -> Answer:
        """Open the call and return the first frame that answers it. Raise `Lost`."""

    async def open(self, body: bytes) -> None:
        """Open a call whose answers are heard later. Raise `Lost`."""

    async def server(self, limit_s: float) -> ServerHello:
        """Return what the server said of itself, waiting for it where it has not come. Raise `Lost`."""

    async def send(self, kind: int, body: bytes) -> None:
        """Send another frame of an open call. Raise `Lost`."""

    async def hear(self, limit_s: float | None) -> Answer:
        """Return the next frame that answers it. Raise `Lost`."""

    @property
    def heard_at(self) -> float:
        """When the last frame came, on the clock of `steady_s`."""

    def give_up(self, late: Callable[[Answer], None] | None) -> None:
        """Hear no more of the call, whose caller has left or waited long enough.

        `late` is given results, and items of a stream, that come afterwards, if the connection goes on.
        """

    async def leave(self, limit_s: float) -> list[Answer]:
        """Cancel the call, and return the frames that its caller did not hear, up to the final answer.

        A caller that still waits for a frame gets `Lost`. Without a final answer in time the rest stays with the
        server, which gives it back when the connection ends.
        """


class Calling(Protocol):
    """Connections, as far as calls need them."""

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> Any:
        """Return an `OpenCall` that is not opened yet. Raise `Lost`.

        Calls that wait long do not count against a bound on connections, so that a verdict always finds its way.
        `is_fresh`: not on a connection that may be about to close.
        """

    def put_back(self, call: Any, *, is_long: bool) -> None:
        """Take back a call that is over, or was given up."""

    def let_go(self, call: Any, *, is_long: bool) -> None:
        """Forget a call that `leave` will end."""

    def close(self) -> None:
        """Close every connection: calls under way end without an answer."""
