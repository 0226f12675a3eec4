"""Concurrent calls of one item each, sent together in one request.

The first call is sent at once. Calls that arrive while it is open share the next request. No call waits in order to be
shared, and the more callers there are, the fewer requests each of them costs.
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
    """Calls that may share a request, which carries out all items or none, or returns one result for each."""

    async def add(self, item: In_contra) -> Out_co:
        """Send an item, perhaps together with those of other callers, and return its result."""


class LoopCoalescer(Generic[In, Out]):
    """The coalescer for callers on one event loop."""

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
            self._send_next()

    def _send_next(self) -> None:
        if self._waiting:
            self._spawn(self._run())
        else:
            self._is_busy = False

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._send_batch(batch)
        finally:
            self._send_next()

    def _take(self) -> list[tuple[In, asyncio.Future[Out]]]:
        batch: list[tuple[In, asyncio.Future[Out]]] = []
        size = 0
        while self._waiting and len(batch) < MAX_ITEMS:
            item, future = self._waiting[0]
            size += self._size_of(item)
            if batch and size > MAX_BYTES:
                break
            self._waiting.popleft()
            if not future.done():  # skip a caller that was cancelled while it waited
                batch.append((item, future))
        return batch

    async def _send_batch(self, batch: list[tuple[In, asyncio.Future[Out]]]) -> None:
        try:
            results = await self._send([item for item, _ in batch])
        except (Refused, Throttled) as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # no item was carried out: send each alone, so that one error does not fail the other callers
                await asyncio.gather(*(self._send_batch([each]) for each in batch))
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
    """Return a copy of an error for one of several callers, because a raised error collects tracebacks and notes."""
    return error.copy() if isinstance(error, HoldfastError) else error


# --- In threads ---------------------------------------------------------------------------------------------------


class _CallState(Enum):
    # The call waits for its turn, or another caller sends it.
    WAITING = "waiting"
    # The caller sends the next request, with the items of other callers.
    SENDER = "sender"
    # The shared request was refused and had no effect, so the caller sends its item alone.
    ALONE = "alone"
    OVER = "over"


class _WaitingCall(Generic[In, Out]):
    __slots__ = ("error", "item", "result", "state", "woken")

    def __init__(self, item: In) -> None:
        self.item = item
        self.state = _CallState.WAITING
        self.result: Out
        self.error: BaseException | None = None
        # Held until the caller has to act or has its result; the caller waits by acquiring it.
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self, state: _CallState) -> None:
        self.state = state
        self.woken.release()


class ThreadCoalescer(Generic[In, Out]):
    """The coalescer for callers in threads. When a sender is done, one of the waiting callers sends for all of them."""

    def __init__(self, send: Callable[[list[In]], Awaitable[list[Out]]], size_of: Callable[[In], int]) -> None:
        self._send = send
        self._size_of = size_of
        self._lock = threading.Lock()
        self._waiting: deque[_WaitingCall[In, Out]] = deque()
        self._is_busy = False
        # A forked child makes its own coalescers.
        self._main_thread = threading.main_thread().ident

    async def add(self, item: In) -> Out:
        if threading.get_ident() == self._main_thread:
            # Only the main thread can be interrupted, at any point, so it must not send for other callers.
            [result] = await self._send([item])
            return result
        call: _WaitingCall[In, Out] | None = None
        with self._lock:
            if self._is_busy:
                call = _WaitingCall(item)
                self._waiting.append(call)
            self._is_busy = True
        if call is not None:
            return await self._wait_turn(call)
        try:
            [result] = await self._send([item])
            return result
        finally:
            self._wake_next()

    async def _wait_turn(self, call: "_WaitingCall[In, Out]") -> Out:
        call.woken.acquire()
        if call.state is _CallState.SENDER:
            try:
                await self._send_batch(call)
            finally:
                self._wake_next()
        if call.state is _CallState.ALONE:
            [result] = await self._send([call.item])
            return result
        if call.error is not None:
            raise call.error
        return call.result

    def _wake_next(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().wake(_CallState.SENDER)
            else:
                self._is_busy = False

    async def _send_batch(self, sender: "_WaitingCall[In, Out]") -> None:
        """Send the items of this caller and of those that wait behind it, and wake them."""
        batch = self._take(sender)
        others = batch[1:]
        try:
            results = await self._send([each.item for each in batch])
        except (Refused, Throttled):
            if not others:
                raise
            for each in batch:
                each.state = _CallState.ALONE
            for each in others:
                each.woken.release()
        except BaseException as error:
            for each in others:
                each.error = _copy(error)
                each.wake(_CallState.OVER)
            raise
        else:
            for each, result in zip(batch, results, strict=True):
                each.result = result
            sender.state = _CallState.OVER
            for each in others:
                each.wake(_CallState.OVER)

    def _take(self, sender: "_WaitingCall[In, Out]") -> "list[_WaitingCall[In, Out]]":
        batch, size = [sender], self._size_of(sender.item)
        with self._lock:
            while self._waiting and len(batch) < MAX_ITEMS:
                size += self._size_of(self._waiting[0].item)
                if size > MAX_BYTES:
                    break
                batch.append(self._waiting.popleft())
        return batch
