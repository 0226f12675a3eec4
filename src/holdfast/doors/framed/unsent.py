"""Deliveries in frames that may not have been sent yet. If the connection is lost, they are given back."""

import asyncio
from collections import deque
from collections.abc import Callable

# Iterations of the loop after which written bytes have left for the operating system, unless its buffers are full.
_ROUNDS = 2
# The time between two checks while they are full.
_LOOK_S = 0.02


class UnsentDeliveries:
    """The written frames with deliveries, by the position of their end in the bytes of the connection.

    `sent_bytes` returns the number of bytes that have left for the operating system.
    """

    __slots__ = ("_is_looking", "_loop", "_sent_bytes", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, sent_bytes: Callable[[], int]) -> None:
        self._loop = loop
        self._sent_bytes = sent_bytes
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_looking = False

    def hold(self, end: int, give_back: Callable[[], None]) -> None:
        """Call `give_back` if the connection is lost before its first `end` bytes have been sent."""
        self._waiting.append((end, give_back))
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look, _ROUNDS)

    def forget_sent(self) -> None:
        """Forget the frames that have been sent by now."""
        waiting = self._waiting
        if waiting:
            sent = self._sent_bytes()
            while waiting and waiting[0][0] <= sent:
                waiting.popleft()

    def give_back(self) -> None:
        """Give back the deliveries of frames that were not sent, because the connection is lost."""
        waiting, self._waiting = self._waiting, deque()
        for _, give_back in waiting:
            give_back()

    def _look(self, rounds: int) -> None:
        self.forget_sent()
        if not self._waiting:
            self._is_looking = False
        elif rounds:
            self._loop.call_soon(self._look, rounds - 1)
        else:
            self._loop.call_later(_LOOK_S, self._look, 0)
