"""Claims that wait while the test goes on: no sleeping, and no waiting for ever on a claim that never wakes."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue

T = TypeVar("T")

Waiting = asyncio.Task[list[AsyncMessage]]

# Real seconds: only a law that is broken ever waits for them, for the manual clock ends no wait by itself.
_BROKEN_AFTER_S = 30.0
# Turns of the loop: enough for whatever can go on to have gone on, with a network in between too.
_TURNS = 50
# More turns than a claim on its way through any store and door takes.
_LOOKS = 10_000


async def turns(number: int = _TURNS) -> None:
    """Let the other tasks take that many steps."""
    for _ in range(number):
        await asyncio.sleep(0)


async def soon(work: Awaitable[T]) -> T:
    """The result of what must need no further passing of time; fails where it would wait for ever."""
    async with asyncio.timeout(_BROKEN_AFTER_S):
        return await work


async def started(hf: AsyncHoldfast, waiters: int = 1) -> None:
    """Let the other tasks run until that many claims wait. (Asked of the tenant: the queue may not exist yet.)"""
    for _ in range(_LOOKS):
        if (await hf.tenant().stats()).waiters >= waiters:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"there are not {waiters} claims waiting")


async def leave(claim: Waiting) -> list[AsyncMessage]:
    """Cancel a claim. Answers what it received, if it was too late to cancel it."""
    claim.cancel()
    await asyncio.wait([claim])
    return [] if claim.cancelled() else claim.result()


async def start_claim(q: AsyncQueue, limit: int = 1, **options: Any) -> Waiting:
    """A claim that has joined the line of its queue, which exists; it waits for ever unless told otherwise."""
    before = (await q.stats()).waiters
    task = asyncio.create_task(q.claim(limit, **{"wait": None, **options}))
    await until_waiting(q, before + 1)
    return task


async def until_waiting(q: AsyncQueue, number: int) -> None:
    """Exactly that many claims wait, however long their coming or leaving takes to arrive."""
    for _ in range(_LOOKS):
        if (await q.stats()).waiters == number:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{(await q.stats()).waiters} claims wait, not {number}")


async def assert_waits(q: AsyncQueue, *tasks: Waiting) -> None:
    await turns()
    assert not any(task.done() for task in tasks)
    assert (await q.stats()).waiters == len(tasks)
