"""Concurrent calls of one item each, carried as one request.

The first goes at once. Those that come while it is under way ride together on the next: nobody waits for company, and
the more callers there are, the fewer requests each of them costs.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.model.errors import HoldfastError, Refused, Throttled

In = TypeVar("In")
Out = TypeVar("Out")

MAX_ITEMS = 1_000
MAX_BYTES = 1 << 20


class Coalescer(Generic[In, Out]):
    """Of calls that may share a request. `send` carries out all or none, unless it answers each on its own."""

    def __init__(
        self,
        send: Callable[[list[In]], Awaitable[list[Out]]],
        size_of: Callable[[In], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_idle: Callable[[], object],
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._spawn = spawn
        self._on_idle = on_idle
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
            self._on_idle()

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
            # Each caller its own: a raised error collects tracebacks and notes.
            future.set_exception(
                type(error)(error.message, **error.facts) if isinstance(error, HoldfastError) else error
            )
