"""Concurrent calls of one item each, carried as one request.

The first goes at once. Those that come while it is under way ride together on the next: nobody waits for company, and
the more callers there are, the fewer requests each of them costs.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from holdfast.model.errors import HoldfastError, Refused, Throttled

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

MAX_ITEMS = 1_000
MAX_BYTES = 1 << 20


class Coalescer(Protocol[In_contra, Out_co]):
    """Calls that may share a request, which carries out all or none, unless it answers each on its own."""

    async def add(self, item: In_contra) -> Out_co: ...


class LoopCoalescer(Generic[In, Out]):
    """For callers on one event loop."""

    def __init__(
        self,
        send: Callable[[list[In]], Awaitable[list[Out]]],
        size_of: Callable[[In], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._spawn = spawn
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._is_busy = False

    async def add(self, item: In) -> Out:
        if self._is_busy:
            future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            return await future
        self._is_busy = True
        try:
            [result] = await self._send([item])
            return result
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._spawn(self._run())
        else:
            self._is_busy = False

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._carry(batch)
        finally:
            self._go_on()

    def _take(self) -> list[tuple[In, asyncio.Future[Out]]]:
        batch: list[tuple[In, asyncio.Future[Out]]] = []
        size = 0
        while self._waiting and len(batch) < MAX_ITEMS:
            item, future = self._waiting[0]
            size += self._size_of(item)
            if batch and size > MAX_BYTES:
                break
            self._waiting.popleft()
            if not future.done():  # whoever left before its turn is left out
                batch.append((item, future))
        return batch

    async def _carry(self, batch: list[tuple[In, asyncio.Future[Out]]]) -> None:
        try:
            results = await self._send([item for item, _ in batch])
        except (Refused, Throttled) as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # nothing of it was done: each is asked for on its own, so that one does not fail the others
                await asyncio.gather(*(self._carry([each]) for each in batch))
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, HoldfastError):
                raise
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)


def _fail(batch: "list[tuple[In, asyncio.Future[Out]]]", error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(_copy(error))


def _copy(error: BaseException) -> BaseException:
    """Return an error for one of several callers: a raised error collects tracebacks and notes."""
    return type(error)(error.message, **error.facts) if isinstance(error, HoldfastError) else error


# --- In threads ---------------------------------------------------------------------------------------------------


class _Turn(Enum):
    # Behind others, or on another caller's request.
    WAITING = "waiting"
    # It is to send the next request, with others along.
    LEADING = "leading"
    # It was refused together with others, of which nothing was done: it is to go alone.
    ALONE = "alone"
    OVER = "over"


class _Rider(Generic[In, Out]):
    __slots__ = ("error", "item", "result", "turn", "woken")

    def __init__(self, item: In) -> None:
        self.item = item
        self.turn = _Turn.WAITING
        self.result: Out
        self.error: BaseException | None = None
        # Held until the caller has something to do, or its result: acquiring it waits.
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self, turn: _Turn) -> None:
        self.turn = turn
        self.woken.release()


class ThreadCoalescer(Generic[In, Out]):
    """For callers in threads: one of those that wait sends for all of them, as soon as the sender before is done."""

    def __init__(self, send: Callable[[list[In]], Awaitable[list[Out]]], size_of: Callable[[In], int]) -> None:
        self._send = send
        self._size_of = size_of
        self._lock = threading.Lock()
        self._waiting: deque[_Rider[In, Out]] = deque()
        self._is_busy = False
        # A forked child makes its own coalescers.
        self._main_thread = threading.main_thread().ident

    async def add(self, item: In) -> Out:
        if threading.get_ident() == self._main_thread:
            # Only the main thread can be interrupted, at any point: it holds nothing that others wait for.
            [result] = await self._send([item])
            return result
        rider: _Rider[In, Out] | None = None
        with self._lock:
            if self._is_busy:
                rider = _Rider(item)
                self._waiting.append(rider)
            self._is_busy = True
        if rider is not None:
            return await self._ride(rider)
        try:
            [result] = await self._send([item])
            return result
        finally:
            self._hand_on()

    async def _ride(self, rider: "_Rider[In, Out]") -> Out:
        rider.woken.acquire()
        if rider.turn is _Turn.LEADING:
            try:
                await self._lead(rider)
            finally:
                self._hand_on()
        if rider.turn is _Turn.ALONE:
            [result] = await self._send([rider.item])
            return result
        if rider.error is not None:
            raise rider.error
        return rider.result

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().wake(_Turn.LEADING)
            else:
                self._is_busy = False

    async def _lead(self, leader: "_Rider[In, Out]") -> None:
        """Send for this caller and for those that wait behind it, and wake them."""
        batch = self._take(leader)
        others = batch[1:]
        try:
            results = await self._send([each.item for each in batch])
        except (Refused, Throttled):
            if not others:
                raise
            for each in batch:
                each.turn = _Turn.ALONE
            for each in others:
                each.woken.release()
        except BaseException as error:
            for each in others:
                each.error = _copy(error)
                each.wake(_Turn.OVER)
            raise
        else:
            for each, result in zip(batch, results, strict=True):
                each.result = result
            leader.turn = _Turn.OVER
            for each in others:
                each.wake(_Turn.OVER)

    def _take(self, leader: "_Rider[In, Out]") -> "list[_Rider[In, Out]]":
        batch, size = [leader], self._size_of(leader.item)
        with self._lock:
            while self._waiting and len(batch) < MAX_ITEMS:
                size += self._size_of(self._waiting[0].item)
                if size > MAX_BYTES:
                    break
                batch.append(self._waiting.popleft())
        return batch
