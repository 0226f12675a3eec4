"""Claims of one queue that come while others are under way are made together.

A claim from what is reserved costs a call to Redis and a statement, whether of one message or of fifty. So one round at
a time is under way for a queue; who comes meanwhile waits for the next, which serves all of them, in their order, as
one claim of many asks. A round begins with landing what was answered for before it: that is before whoever is in it
asked.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.buffered.buffer import Buffer
from holdfast.stores.buffered.prefetcher import Prefetcher
from holdfast.stores.contract import Claims


class _Caller(NamedTuple):
    asks: list[ClaimRequest]
    wanted: int
    now_ms: int
    # None: it goes by the index.
    answer: "asyncio.Future[Claims | None]"


class ClaimRounds:
    """All of it runs on the driver's loop."""

    def __init__(self, prefetcher: Prefetcher, buffer: Buffer, lane_of: Callable[[QueueRef], int]) -> None:
        self._prefetcher = prefetcher
        self._buffer = buffer
        self._lane_of = lane_of
        self._lines: dict[QueueRef, deque[_Caller]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims | None:
        """A claim that could pop (`Prefetcher.wanted`). None: it goes by the index, and the prefetcher is to hear how
        that went."""
        loop = asyncio.get_running_loop()
        caller = _Caller(asks, self._prefetcher.wanted(asks), now_ms, loop.create_future())
        line = self._lines.get(ref)
        if line is not None:
            line.append(caller)
        else:
            self._lines[ref] = deque([caller])
            task = loop.create_task(self._run(ref))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await caller.answer

    async def _run(self, ref: QueueRef) -> None:
        line = self._lines[ref]
        while line:
            callers = self._first(line)
            try:
                rest = await self._serve(ref, callers)
            except Exception as error:
                for caller in callers:
                    if not caller.answer.done():
                        caller.answer.set_exception(error)
            else:
                line.extendleft(reversed(rest))
        del self._lines[ref]

    def _first(self, line: deque[_Caller]) -> list[_Caller]:
        """As many as one reservation may have enough for; at least one."""
        callers = [line.popleft()]
        total = callers[0].wanted
        while line and total + line[0].wanted <= self._prefetcher.batch:
            callers.append(line.popleft())
            total += callers[-1].wanted
        return callers

    async def _serve(self, ref: QueueRef, callers: list[_Caller]) -> list[_Caller]:
        """Answers those that are left for another round."""
        await self._buffer.settle_own(ref, self._lane_of(ref))
        wanted = [caller.wanted for caller in callers]
        popped = await self._prefetcher.pop(ref, wanted)
        if popped.held:
            await self._buffer.land_held(ref, popped.held)
            # What is buffered by now came after these claims.
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
        for caller in callers:
            self._prefetcher.goes_by_index(ref)
            caller.answer.set_result(None)
