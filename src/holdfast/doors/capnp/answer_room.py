"""The bytes of answers that wait for a caller to read them, and the calls that wait for room.

pycapnp and the socket keep an answer in memory until its caller has read it. A caller that asks for much and reads
nothing would fill the memory of the server. So an answer is only written while there is room. Without room, a call
drops what it has, waits for its turn, and gets it again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# pycapnp writes an answer within this number of turns of the loop. From then on it counts among the unsent bytes.
_TURNS_TO_WRITE = 4
# A smaller answer is not counted before it is written. A connection has at most 4,096 calls, so these are 16 MiB.
_SMALL_BYTES = 4_096


class AnswerRoom:
    """The room for answers of one connection.

    It holds up to `max_bytes`, and one more answer.
    """

    def __init__(self, max_bytes: int, unsent_bytes: Callable[[], int]) -> None:
        """`unsent_bytes` returns the number of bytes that were written and not sent yet."""
        self._max_bytes = max_bytes
        self._unsent_bytes = unsent_bytes
        self._loop = asyncio.get_running_loop()
        # Bytes of answers that pycapnp has not written yet.
        self._unwritten_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._has_turn = False

    @property
    def is_full(self) -> bool:
        """Return whether no further answer may be written now."""
        return self._unwritten_bytes + self._unsent_bytes() >= self._max_bytes

    @property
    def is_contended(self) -> bool:
        """Return whether a call has to wait for its turn before it does anything."""
        return self.is_full or bool(self._waiting)

    def take(self, size: int) -> bool:
        """Take room for an answer of `size` bytes that is about to be written. Return False if there is none."""
        if self.is_full:
            return False
        if size < _SMALL_BYTES:
            return True
        self._unwritten_bytes += size
        self._free_later(size, _TURNS_TO_WRITE)
        return True

    def _free_later(self, size: int, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._free_later, size, turns - 1)
            return
        self._unwritten_bytes -= size
        self.wake()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until there is room, in the order of the calls. Only one call has a turn at a time."""
        ticket: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(ticket)
        self.wake()
        try:
            await ticket
        except BaseException:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            elif not ticket.cancelled():
                self._end_turn()
            raise
        try:
            yield
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._has_turn = False
        self.wake()

    def wake(self) -> None:
        """Give the first waiting call its turn, if there is room. Call this when bytes have been sent."""
        while self._waiting and not self._has_turn and not self.is_full:
            ticket = self._waiting.popleft()
            if not ticket.done():
                self._has_turn = True
                ticket.set_result(None)
