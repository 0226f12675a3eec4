"""Keep the calls of one queue from using all connections of a database.

Calls of a queue that another transaction has locked wait for the lock, each with a connection. They may not take the
connections that calls of other queues need.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.database import LockTimeout

T = TypeVar("T")

_log = logging.getLogger("holdfast")


class QueueTurns:
    """The turns of calls, queue by queue. It runs on the driver's loop."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._limit = bounds.per_queue
        self._wait_s = bounds.statement_timeout_ms / 1000
        self._calls: dict[QueueRef, _QueueCalls] = {}

    def locked_queues(self) -> list[QueueRef]:
        """Return the queues whose last call gave up waiting for a lock."""
        return [ref for ref, calls in self._calls.items() if calls.lock_error is not None]

    async def run(self, ref: QueueRef, make: Callable[[], Awaitable[T]]) -> T:
        """Run a call of this queue once it is its turn.

        After a call has given up waiting for a lock, one call at a time tries again, and the others are refused at once
        with `LockTimeout`. Raise `StoreUnavailable` if the turn does not come in time.
        """
        calls = self._calls.get(ref)
        if calls is None:
            calls = self._calls[ref] = _QueueCalls(self._limit)
        try:
            await self._take_turn(ref, calls)
            try:
                return await self._run(ref, calls, make)
            finally:
                calls.end_turn()
        finally:
            if calls.is_idle:
                self._calls.pop(ref, None)

    async def _take_turn(self, ref: QueueRef, calls: "_QueueCalls") -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await calls.take_turn()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._limit} calls of queue {ref} were in progress for {self._wait_s:g} s; try again"
            ) from error

    async def _run(self, ref: QueueRef, calls: "_QueueCalls", make: Callable[[], Awaitable[T]]) -> T:
        if calls.lock_error is not None and calls.running > 1:
            raise LockTimeout(calls.lock_error)
        try:
            value = await make()
        except LockTimeout as error:
            if calls.lock_error is None:
                _log.warning("queue_locked tenant=%s queue=%s error=%s", *ref, error.message)
            calls.lock_error = f"queue {ref} is locked: {error.message}"
            raise LockTimeout(calls.lock_error) from error
        if calls.lock_error is not None:
            calls.lock_error = None
            _log.warning("queue_unlocked tenant=%s queue=%s", *ref)
        return value


class _QueueCalls:
    """The calls of one queue."""

    def __init__(self, limit: int) -> None:
        self.running = 0
        # Why the last call gave up waiting for a lock; None if it did not.
        self.lock_error: str | None = None
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self.running and not self._waiting and self.lock_error is None

    async def take_turn(self) -> None:
        """Wait until fewer calls than the limit are running, and count one more."""
        if self.running < self._limit:
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.end_turn()  # the turn came while this call gave up
            raise

    def end_turn(self) -> None:
        """Pass the turn of a call that has ended on to the first that waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a call that gave up left its future cancelled
                turn.set_result(None)
                return
        self.running -= 1
