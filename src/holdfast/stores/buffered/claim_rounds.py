"""Claims of one queue that arrive while another is in progress are made together.

A claim from a reservation costs one call to Redis and one statement, whether it takes one message or fifty. Each queue
has one round in progress at a time. Claims that arrive meanwhile wait for the next round, which serves all of them in
order, as one claim with many asks. A round first lands the messages that were buffered before it began, which is before
any of its claims.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.buffered.buffer import Buffer
from holdfast.stores.buffered.prefetcher import Prefetcher
from holdfast.stores.values import Claims


class _Caller(NamedTuple):
    """A claim that waits for a round. Its answer is None if it must go by the index."""

    asks: list[ClaimRequest]
    wanted: int
    now_ms: int
    answer: "asyncio.Future[Claims | None]"


class ClaimRounds:
    """The rounds of all queues. It runs on the driver's loop."""

    def __init__(self, prefetcher: Prefetcher, buffer: Buffer, shard_of: Callable[[QueueRef], int]) -> None:
        self._prefetcher = prefetcher
        self._buffer = buffer
        self._shard_of = shard_of
        self._waiting: dict[QueueRef, deque[_Caller]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims | None:
        """Serve a claim that could be served from a reservation (`Prefetcher.wanted`). Return None if it must go by the
        index; `Prefetcher.went_by_index` must be called afterwards."""
        loop = asyncio.get_running_loop()
        caller = _Caller(asks, self._prefetcher.wanted(asks), now_ms, loop.create_future())
        waiting = self._waiting.get(ref)
        if waiting is not None:
            waiting.append(caller)
        else:
            self._waiting[ref] = deque([caller])
            task = loop.create_task(self._run(ref))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await caller.answer

    async def _run(self, ref: QueueRef) -> None:
        """Serve the queue's waiting claims, round after round."""
        waiting = self._waiting[ref]
        while waiting:
            callers = self._first(waiting)
            try:
                rest = await self._serve(ref, callers)
            except Exception as error:
                for caller in callers:
                    if not caller.answer.done():
                        caller.answer.set_exception(error)
            else:
                waiting.extendleft(reversed(rest))
        del self._waiting[ref]

    def _first(self, waiting: deque[_Caller]) -> list[_Caller]:
        """Remove and return the first claims that one reservation may have enough messages for; at least one."""
        callers = [waiting.popleft()]
        total = callers[0].wanted
        while waiting and total + waiting[0].wanted <= self._prefetcher.batch:
            callers.append(waiting.popleft())
            total += callers[-1].wanted
        return callers

    async def _serve(self, ref: QueueRef, callers: list[_Caller]) -> list[_Caller]:
        """Serve claims, and return those that must wait for another round."""
        await self._buffer.land_own(ref, self._shard_of(ref))
        wanted = [caller.wanted for caller in callers]
        popped = await self._prefetcher.pop(ref, wanted)
        if popped.held:
            await self._buffer.land_held(ref, popped.held)
            # Calls that are buffered by now came after these claims.
            popped = await self._prefetcher.pop(ref, wanted)
        if not popped.mine and await self._prefetcher.has_reserved(ref):
            popped = await self._prefetcher.pop(ref, wanted)
        served, number = 0, len(popped.mine)
        while served < len(callers) and callers[served].wanted <= number:
            number -= callers[served].wanted
            served += 1
        if not served:
            self._send_by_index(ref, callers)
            return []
        first = callers[:served]
        asks = [ask for caller in first for ask in caller.asks]
        claims = await self._prefetcher.claim(ref, asks, popped, max(caller.now_ms for caller in first))
        if claims is None:
            self._send_by_index(ref, first)
        else:
            at = 0
            for caller in first:
                caller.answer.set_result(Claims(claims.per_ask[at : at + len(caller.asks)], claims.next_at))
                at += len(caller.asks)
        return callers[served:]

    def _send_by_index(self, ref: QueueRef, callers: list[_Caller]) -> None:
        """Answer that these claims must go by the index."""
        for caller in callers:
            self._prefetcher.goes_by_index(ref)
            caller.answer.set_result(None)
